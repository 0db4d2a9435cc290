"""Dropout of activations: fair, independent, the same forward and backward, and a function of its key alone."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax.nn.dropout import Dropout

B, L, D = 6, 100, 64


def kept(rate, seed=0, shape=(B, L, D)):
  """Which elements survive."""
  output = np.asarray(Dropout(rate)(jnp.ones(shape), rngs=jax.random.key(seed)))
  assert set(np.unique(output)) <= {np.float32(0), np.float32(1 / (1 - rate))}
  return output > 0


def deviations(keep, rate, axes):
  """How many standard deviations the means over some axes are from what is expected."""
  count = np.prod([keep.shape[axis] for axis in axes])
  return (keep.mean(axes) - (1 - rate)) / np.sqrt(rate * (1 - rate) / count)


@pytest.mark.parametrize("rate", [0.02, 0.1, 0.5, 0.9])
def test_the_share_of_what_is_kept(rate):
  """In all, and in each sequence, position and column: as binomial samples vary, no more and no less."""
  keep = kept(rate)
  assert abs(deviations(keep, rate, (0, 1, 2))) < 4
  for axes in ((1, 2), (0, 2), (0, 1)):
    found = deviations(keep, rate, axes)
    assert np.max(np.abs(found)) < 5
    assert abs(found.std() - 1) < 4 / np.sqrt(2 * found.size)


def correlation(x, y):
  """In standard deviations of that of independent samples."""
  return np.corrcoef(x.ravel(), y.ravel())[0, 1] * np.sqrt(x.size)


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_neighbours_are_independent(rate):
  keep = kept(rate)
  for axis, distance in itertools.product((0, 1, 2), (1, 2, 3)):
    x = np.delete(keep, range(distance), axis)
    y = np.delete(keep, range(keep.shape[axis] - distance, keep.shape[axis]), axis)
    assert abs(correlation(x, y)) < 4, (axis, distance)


def test_rectangles_are_independent():
  """Of two rows and two columns, three elements say nothing of the fourth, although the words of all four add up."""
  keep = kept(0.5).reshape(-1, D)
  rows = keep[::2] ^ keep[1::2]
  parity = rows[:, ::2] ^ rows[:, 1::2]
  assert abs(parity.mean() - 0.5) * 2 * np.sqrt(parity.size) < 4


def test_keys_are_independent():
  assert np.array_equal(kept(0.5, seed=1), kept(0.5, seed=1))
  assert abs(correlation(kept(0.5, seed=1), kept(0.5, seed=2))) < 4


def test_the_mean_stays():
  """Over keys, outputs average to the inputs: within five standard deviations of such a mean."""
  inputs = jax.random.normal(jax.random.key(0), (4, 8))
  dropout = Dropout(0.3)
  outputs = jax.vmap(lambda key: dropout(inputs, rngs=key))(jax.random.split(jax.random.key(1), 4000))
  spread = np.abs(inputs) * np.sqrt(0.3 / 0.7 / 4000)
  assert np.all(np.abs(outputs.mean(0) - inputs) < 5 * spread)


def test_the_gradient_has_the_same_mask():
  dropout, inputs, key = Dropout(0.4), jax.random.normal(jax.random.key(0), (5, 7)), jax.random.key(3)
  output, pull_back = jax.vjp(lambda x: dropout(x, rngs=key), inputs)
  (gradient,) = pull_back(jnp.ones_like(output))
  np.testing.assert_allclose(gradient * inputs, output, rtol=1e-6)
  assert {0.0} < set(np.unique(gradient).tolist()) and len(np.unique(gradient)) == 2


def test_deterministic():
  inputs = jnp.ones((3, 4))
  module = Dropout(0.9, rngs=nnx.Rngs(0))
  assert module(inputs, deterministic=True) is inputs
  assert not np.array_equal(module(inputs), inputs)
  module.eval()
  assert module(inputs) is inputs
  assert not np.array_equal(module(inputs, deterministic=False), inputs)  # the call has the say
  module.train()
  assert not np.array_equal(module(inputs), inputs)
  assert Dropout(0.0)(inputs) is inputs
  assert np.array_equal(Dropout(1.0, rngs=nnx.Rngs(0))(inputs), jnp.zeros((3, 4)))
  with pytest.raises(ValueError, match="deterministic: expected True or False"):
    Dropout(0.5, deterministic=None, rngs=nnx.Rngs(0))(inputs)


def test_streams():
  """Of the module or of the call; each call has a mask of its own."""
  inputs = jnp.ones((20, 20))
  module = Dropout(0.5, rngs=nnx.Rngs(0))
  first, second = module(inputs), module(inputs)
  assert not np.array_equal(first, second)
  assert np.array_equal(Dropout(0.5, rngs=nnx.Rngs(0))(inputs), first)
  given = [
    module(inputs, rngs=rngs) for rngs in (nnx.Rngs(dropout=7), nnx.Rngs(dropout=7).dropout, nnx.Rngs(dropout=8))
  ]
  assert np.array_equal(given[0], given[1]) and not np.array_equal(given[0], given[2])
  rngs = nnx.Rngs(dropout=7)
  assert np.array_equal(module(inputs, rngs=rngs), given[0]) and not np.array_equal(module(inputs, rngs=rngs), given[0])
  other = Dropout(0.5, rng_collection="noise")
  assert np.array_equal(other(inputs, rngs=nnx.Rngs(noise=7)), other(inputs, rngs=nnx.Rngs(noise=7, dropout=1)))
  with pytest.raises(ValueError, match=r"rngs: expected nnx.Rngs"):
    Dropout(0.5)(inputs)


def test_bfloat16_stays():
  output = Dropout(0.5)(jnp.ones((4, 4), jnp.bfloat16), rngs=jax.random.key(0))
  assert output.dtype == jnp.bfloat16 and set(np.unique(output.astype(np.float32))) == {0.0, 2.0}


def test_what_cannot_be():
  with pytest.raises(ValueError, match=r"rate: expected a number from 0 to 1, got 1.5"):
    Dropout(1.5)
  with pytest.raises(ValueError, match=r"broadcast_dims: expected none, got \(1,\)"):
    Dropout(0.5, broadcast_dims=(1,))
