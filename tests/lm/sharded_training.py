"""A program for eight devices: short runs of language models on several meshes, compared with those on one device.

Run by test_train in a process of its own:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.lm.sharded_training FOLDER
"""

import sys
from pathlib import Path

import jax
import numpy as np

from lm import train
from lm.corpus import Corpus
from mgk_jax import training
from mgk_jax.training import make_mesh
from tests.lm import small

STEPS = 3
# Both meshes and both kinds of batches, but not all of their pairs: compiling a step takes seconds.
CASES = {"mgk,div_val=2,implementation=reference": ((4, 2),), "linear,carry_state=true": ((8, 1),)}


def losses(arg: str, corpus: Corpus, folder: Path, data: int, model: int) -> np.ndarray:
  """Of the first steps in training, with dropout, and of the validation set."""
  config = small.get_config(f"{arg},batch=8,mesh_data={data},mesh_model={model},clip_norm=0.25")
  trainer = train.make_trainer(config, training.Workdir(folder), corpus)
  state = jax.jit(trainer._init, out_shardings=trainer.shardings)()
  found = []
  for _ in range(STEPS):
    state, sums = trainer.train_step(state, trainer._put(next(trainer.train_data)))
    found.append(float(sums["loss"] / sums["count"]))
  return np.array([*found, trainer.evaluate(state, "valid")["loss"]])


def main(folder: str) -> None:
  assert jax.device_count() == 8, jax.devices()
  assert make_mesh(8, 1).size == 8
  corpus = small.prepared(Path(folder))
  for arg, meshes in CASES.items():
    one = losses(arg, corpus, Path(folder), 1, 1)
    assert np.ptp(one) > 1e-3
    for data, model in meshes:
      many = losses(arg, corpus, Path(folder), data, model)
      np.testing.assert_allclose(many, one, atol=2e-5, rtol=0, err_msg=f"{arg} on {data} × {model}")
  print("all equal")


if __name__ == "__main__":
  main(*sys.argv[1:])
