"""Ten training steps of the authors' PyTorch models, repeated from their parameters and batches.

The golden files hold the state before, ten batches, the learning rate and loss of each step, and the parameters after
(without embeddings).
"""

from pathlib import Path

import jax
import jax.flatten_util
import numpy as np
import optax
import pytest
from flax import nnx

from mgk_jax.nn import load_reference_lra
from mgk_jax.training import one_cycle_adamw
from tests.nn.compiling import jit

GOLDEN = Path(__file__).parents[1] / "golden"
NO_DROPOUT = {"dropout_rate": 0.0, "attention_dropout_rate": 0.0}


def train(model, golden):
  """The losses of the ten steps; the model is updated."""
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)
  vector, unravel = jax.flatten_util.ravel_pytree(params)  # one array compiles faster than fifty
  optimizer = one_cycle_adamw(1e-3, warmup_steps=5, total_steps=20)

  def loss_fn(vector, rest, tokens, targets):
    model = nnx.merge(graphdef, unravel(vector), rest, copy=True)
    loss = optax.softmax_cross_entropy_with_integer_labels(model(*tokens), targets).mean()
    return loss, nnx.split(model, nnx.Param, ...)[2]

  @jit
  def step(vector, rest, state, tokens, targets):
    (loss, rest), gradient = jax.value_and_grad(loss_fn, has_aux=True)(vector, rest, tokens, targets)
    updates, state = optimizer.update(gradient, state, vector)
    return vector + updates, rest, state, loss

  losses, state = [], optimizer.init(vector)
  for i, targets in enumerate(golden["targets"]):
    tokens = [golden[name][i] for name in ("inputs", "inputs2") if name in golden]
    vector, rest, state, loss = step(vector, rest, state, tokens, targets)
    losses.append(loss)
  nnx.update(model, unravel(vector), rest)
  return np.asarray(losses)


@pytest.mark.parametrize(
  "name",
  [
    *("softmax", "mgk", "mgk_em", "smgk", "smgk_hard", "retrieval_smgk"),
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("mgk_hard", "smgk_em")),
  ],
)
def test_ten_steps(name):
  golden = dict(np.load(GOLDEN / f"model_{name}.npz"))
  before = {key.removeprefix("param/"): x for key, x in golden.items() if key.startswith("param/")}
  after = {key.removeprefix("final/"): x for key, x in golden.items() if key.startswith("final/")}
  model = load_reference_lra(before, **NO_DROPOUT)
  losses = train(model, golden)

  factor = 10 if name.endswith("_em") else 1  # the reference's EM step adds 1e-6 to a denominator
  np.testing.assert_allclose(losses, golden["loss"], atol=2e-5 * factor, rtol=0)
  expected = dict(nnx.to_flat_state(nnx.state(load_reference_lra({**before, **after}, **NO_DROPOUT))))
  compared = 0
  for path, variable in nnx.to_flat_state(nnx.state(model)):
    if "embedding" in str(path):
      continue
    got, want = np.asarray(variable[...], np.float64), np.asarray(expected[path][...], np.float64)
    compared += want.size
    assert np.linalg.norm(got - want) <= 1e-3 * factor * np.linalg.norm(want), path
  assert compared >= sum(x.size for key, x in after.items() if not key.endswith("attn.pi"))
