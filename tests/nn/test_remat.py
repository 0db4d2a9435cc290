"""Rematerialised blocks: the same numbers, one M step, and less that is kept."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from mgk_jax.nn import Classifier, ClassifierConfig
from mgk_jax.training import make_mesh, state as states
from tests.nn.compiling import jit

SIZES = {
  "vocab_size": 12, "max_len": 10, "emb_dim": 8, "mlp_dim": 8, "head_dim": 4, "num_classes": 3, "classifier_dim": 8,
}  # fmt: skip
TOKENS = np.random.default_rng(0).integers(1, 12, (4, 10)).astype(np.int32)
LENGTHS = np.array([10, 3, 7, 10])


def plan(config):
  """The structure of a model, and the shapes of its parameters and variables."""
  structure, init, _ = states.plan(lambda rngs: Classifier(config, rngs=rngs), optax.sgd(0.1), make_mesh(1), 0)
  state = jax.eval_shape(init)
  return structure, state.params, state.variables


def values_and_gradients(config):
  """Of a training call with dropout and made-up parameters: gradients, logits, and the variables after it."""
  structure, params, variables = plan(config)
  rng = np.random.default_rng(1)
  params = jax.tree.map(lambda x: jnp.asarray(rng.normal(size=x.shape) / 2, x.dtype), params)
  variables = jax.tree.map(lambda x: jnp.full(x.shape, 0.5, x.dtype), variables)

  def loss(params, variables):
    model = structure.merge(params, variables)
    logits = model(TOKENS, lengths=LENGTHS, rngs=nnx.Rngs(dropout=3))
    return jnp.sum(jnp.sin(logits)), (logits, states.variables_of(model))

  return jit(jax.grad(loss, has_aux=True))(params, variables)


@pytest.mark.parametrize(
  "config",
  [
    pytest.param(ClassifierConfig(**SIZES, num_layers=1, attention="smgk"), marks=pytest.mark.slow),
    ClassifierConfig(**SIZES, num_layers=2, attention="mgk", prior="em", implementation="reference"),
  ],
  ids=["smgk", "mgk em"],
)
def test_the_same_values_and_gradients(config):
  """With dropout on; an EM prior has been updated once and not again in the backward pass."""
  kept, computed_again = (values_and_gradients(dataclasses.replace(config, remat=remat)) for remat in (False, True))
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-5, rtol=1e-5), kept, computed_again)
  gradients, (_, variables) = computed_again
  assert max(np.max(np.abs(x)) for x in jax.tree.leaves(gradients)) > 0.1
  if config.prior == "em":
    priors = jax.tree.leaves(variables)
    assert len(priors) == 2 and all(np.max(np.abs(prior - 0.5)) > 0.01 for prior in priors)


def kept_bytes(remat, num_layers):
  """What the forward pass keeps for the backward pass, parameters left out."""
  config = ClassifierConfig(
    vocab_size=12, max_len=256, num_layers=num_layers, emb_dim=32, mlp_dim=512, num_classes=3, remat=remat
  )
  structure, params, variables = plan(config)

  def residuals(params, tokens):
    def loss(params):
      return jnp.sum(structure.merge(params, variables)(tokens, rngs=nnx.Rngs(dropout=3)))

    return jax.vjp(loss, params)[1]

  def total(tree):
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))

  return total(jax.eval_shape(residuals, params, jax.ShapeDtypeStruct((8, 256), jnp.int32))) - total(params)


def test_memory():
  """Each more block keeps what lies between blocks, 8 × 256 × 32 floats, and not the 512 hidden units of its MLP.

  By what JAX hands from the forward to the backward pass: XLA's compiler for CPUs computes everything again at once.
  """
  between, hidden = 8 * 256 * 32 * 4, 8 * 256 * 512 * 4
  more = {remat: (kept_bytes(remat, 4) - kept_bytes(remat, 2)) / 2 for remat in (False, True)}
  assert more[False] > hidden
  assert 0.9 * between < more[True] < 1.1 * between
