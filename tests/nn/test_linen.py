"""Linen users wrap `MixtureAttention` in one line."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import linen, nnx

from mgk_jax.nn import MixtureAttention
from tests.nn.compiling import jit

X = jax.random.normal(jax.random.key(1), (2, 5, 8))


class Layer(linen.Module):
  @linen.compact
  def __call__(self, x, deterministic):
    attention = nnx.bridge.to_linen(
      MixtureAttention, num_heads=2, in_features=8, prior="em", max_len=5, dropout_rate=0.5
    )
    return x + attention(x, deterministic=deterministic)


def test_one_line():
  layer = Layer()
  variables = layer.init({"params": jax.random.key(0), "dropout": jax.random.key(2)}, X, deterministic=True)
  assert set(variables) == {"params", "EMPrior"}
  (params,) = variables["params"].values()
  assert params["key"]["kernel"].shape == (8, 2, 2, 4)

  module = MixtureAttention(2, 8, prior="em", max_len=5, rngs=nnx.Rngs(0))
  for name in ("query", "key", "value", "out"):
    getattr(module, name).kernel[...] = params[name]["kernel"]
  expected = X + module(X, deterministic=True)
  np.testing.assert_allclose(layer.apply(variables, X, deterministic=True), expected, atol=1e-6)

  # Training changes the collection of the prior, and dropout follows the keys that apply gets.
  @jit
  def train(variables, x, key):
    return layer.apply(variables, x, deterministic=False, mutable=["EMPrior"], rngs={"dropout": key})

  keys = [jax.random.key(i) for i in (3, 3, 4)]
  (first, changed), (same, _), (other, _) = (train(variables, X, key) for key in keys)
  module(X, deterministic=False, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(jax.tree.leaves(changed["EMPrior"])[0], module.prior[...], atol=1e-6)
  assert not np.allclose(module.prior[...], 0.5, atol=1e-2)
  assert np.array_equal(first, same)
  assert not np.allclose(first, other)
  assert jnp.all(jnp.isfinite(first))
