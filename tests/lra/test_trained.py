"""The model of a run as a module, read from its checkpoints."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import mgk_jax
from lra import listops, train, trained
from mgk_jax import training
from tests.lra import small

ARG = "mgk,prior=em,dropout=0.5,steps=4,eval_every=2,batch=4"


def test_parameters_and_variables_are_those_of_the_checkpoint(tmp_path):
  train.train(small.get_config("listops", ARG), tmp_path / "run", prepared_dir=tmp_path / "data")
  models = {step: trained.load(tmp_path / "run", step=step) for step in (2, "latest")}
  for step, model in models.items():
    assert isinstance(model, mgk_jax.Classifier)
    saved = small.checkpoint(tmp_path / "run", 4 if step == "latest" else step)
    found = nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.RngState)))
    assert any(isinstance(variable, mgk_jax.EMPrior) for _, variable in found)
    for path, variable in found:
      kind = "params" if isinstance(variable, nnx.Param) else "variables"
      expected = saved["".join(f"['{part}']" for part in (kind, *path, "value"))]
      np.testing.assert_array_equal(variable[...], expected)
  tokens = jnp.asarray(listops.encode("[MAX 2 9 [MIN 4 7 ] 0 ]"))[None]
  first, second = (models["latest"](tokens) for _ in range(2))
  np.testing.assert_array_equal(first, second)  # nothing is dropped
  assert not np.array_equal(first, models[2](tokens))


def test_no_run(tmp_path):
  with pytest.raises(training.TrainingStopped, match=r"expected a config\.json"):
    trained.load(tmp_path)
