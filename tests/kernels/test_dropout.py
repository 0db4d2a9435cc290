"""Attention dropout: fair, uncorrelated, and the same weights forward, backward and in every implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from tests.kernels import problem
from tests.kernels.problem import Case

both_implementations = pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)


def kept(rng, rate, *, B=2, N=2, T=200, S=250, implementation="reference", kind="softmax"):
  """Which weights survive, boolean [B, N, T, S], read off the output: uniform weights on an identity of values."""
  weights = np.asarray(_uniform_attention(kind, implementation, rate, B, N, T, S)(rng)).transpose(0, 2, 1, 3)
  np.testing.assert_allclose(weights[weights > 0], 1 / S / (1 - rate), rtol=1e-5)
  return weights > 0


@functools.cache
def _uniform_attention(kind, implementation, rate, B, N, T, S):
  @jax.jit
  def attention(rng):
    inputs = {"query": jnp.zeros((B, T, N, 2)), "key": jnp.zeros((B, S, N, 2, 2) if kind == "mgk" else (B, S, N, 2))}
    inputs["value"] = jnp.broadcast_to(jnp.eye(S)[None, :, None], (B, S, N, S))
    if kind == "smgk":
      inputs["shift"] = jnp.zeros((N, 2, 2))
    return problem.function(kind, dropout_rate=rate, dropout_rng=rng, implementation=implementation)(inputs)

  return attention


def assert_uncorrelated(x, y):
  """Within five standard deviations of the correlation of independent samples."""
  correlation = np.corrcoef(x.ravel(), y.ravel())[0, 1]
  assert abs(correlation) < 5 / np.sqrt(x.size), correlation


@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5])
def test_keep_rate(rate):
  """The total, and each row's and column's, within five standard deviations of a binomial's."""
  keep = kept(jax.random.key(0), rate)
  deviation = np.sqrt(rate * (1 - rate))
  assert abs(keep.mean() - (1 - rate)) < 5 * deviation / np.sqrt(keep.size)
  for axis in (2, 3):
    means = keep.mean(axis)
    assert np.max(np.abs(means - (1 - rate))) < 5 * deviation / np.sqrt(keep.shape[axis]) + 1 / keep.shape[axis]
    # The spread of the means is neither larger nor smaller than chance: of n means, 1/√(2n) relative.
    expected = deviation / np.sqrt(keep.shape[axis])
    assert abs(means.std() / expected - 1) < 5 / np.sqrt(2 * means.size) + 0.05


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_weights_are_dropped_independently(rate):
  keep = kept(jax.random.key(1), rate)
  for distance in (1, 2, 16):
    assert_uncorrelated(keep[:, :, distance:], keep[:, :, :-distance])
    assert_uncorrelated(keep[..., distance:], keep[..., :-distance])
    assert_uncorrelated(keep[:, :, distance:, distance:], keep[:, :, :-distance, :-distance])
  assert_uncorrelated(keep[0], keep[1])
  assert_uncorrelated(keep[:, 0], keep[:, 1])
  assert_uncorrelated(keep[:, :, :200, :200], keep[:, :, :200, :200].swapaxes(2, 3))
  # Four corners of a rectangle share two row words and two column words.
  sign = 2.0 * keep - 1 - (2.0 * keep - 1).mean()
  corners = sign[:, :, 1:, 1:] * sign[:, :, :-1, 1:] * sign[:, :, 1:, :-1] * sign[:, :, :-1, :-1]
  assert abs(corners.mean()) < 5 * corners.std() / np.sqrt(corners.size)


def test_another_key_drops_other_weights():
  one, again, other = (kept(jax.random.key(seed), 0.5) for seed in (3, 3, 4))
  np.testing.assert_array_equal(one, again)
  assert_uncorrelated(one, other)


def test_folded_keys_drop_other_weights():
  """Layers and steps fold their number into one key."""
  key = jax.random.key(5)
  assert_uncorrelated(kept(jax.random.fold_in(key, 0), 0.5), kept(jax.random.fold_in(key, 1), 0.5))


@pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
def test_implementations_drop_the_same_weights(kind):
  """In several blocks too, of which the reference knows nothing."""
  size = {"B": 2, "N": 2, "T": 530, "S": 600}
  expected = kept(jax.random.key(6), 0.3, **size)
  np.testing.assert_array_equal(kept(jax.random.key(6), 0.3, **size, implementation="xla", kind=kind), expected)


def test_the_multiplier_is_what_the_kernels_apply():
  """On which the comparison with the definition, in test_attention, rests."""
  case = Case(kind="softmax", B=2, N=2, T=200, S=250)
  multiplier = problem.multiplier(case, 0.1, jax.random.key(7))
  np.testing.assert_array_equal(multiplier > 0, kept(jax.random.key(7), 0.1))
  assert set(np.unique(multiplier)) == {0.0, 1 / 0.9}


@both_implementations
def test_backward_drops_the_same_weights_as_forward(implementation):
  """With uniform weights ∂h_i/∂v_j is the dropped weight itself: compare it with the forward pass."""
  rng, T, S = jax.random.key(8), 40, 50

  def attention(value):
    zeros = jnp.zeros((1, T, 1, 2)), jnp.zeros((1, S, 1, 2))
    return mgk_jax.softmax_attention(*zeros, value, dropout_rate=0.4, dropout_rng=rng, implementation=implementation)

  @jax.jit
  def forward_and_backward(value, cotangents):
    output, pull_back = jax.vjp(attention, value)
    return output, jax.lax.map(lambda g: pull_back(g)[0], cotangents)

  cotangents = jnp.eye(T)[:, None, :, None, None] * jnp.ones(S)  # one row of the output at a time
  identity = jnp.eye(S)[None, :, None]
  output, gradients = forward_and_backward(identity, cotangents)
  np.testing.assert_allclose(output[0, :, 0], gradients[:, 0, :, 0, 0], rtol=1e-6)
  assert np.any(output == 0)


@both_implementations
@pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
def test_gradients_are_those_of_the_dropped_weights(kind, implementation):
  case = Case(kind=kind, M=1 if kind == "softmax" else 2, dropout_rate=0.5, T=40, S=50, lengths="both")
  problem.check(problem.make(case), implementation)


@both_implementations
def test_rate_zero_needs_no_key_and_drops_nothing(implementation):
  point = problem.make(Case(T=20, S=30))
  output, _ = problem.run(point._replace(options=point.options | {"dropout_rate": 0.0}), implementation)
  np.testing.assert_allclose(output, point.define().output, atol=1e-5)


def test_expectation_is_the_attention_without_dropout():
  """The mean over 400 keys, each weight's standard deviation being √(r / (1 − r)) of it."""
  point = problem.make(Case(kind="mgk", T=6, S=30, B=1, N=1))
  inputs = problem.device_inputs(point)

  def attention(rng):
    return problem.function("mgk", dropout_rate=0.2, dropout_rng=rng, implementation="reference")(inputs)

  outputs = np.asarray(jax.jit(jax.vmap(attention))(jax.random.split(jax.random.key(9), 400)))
  bound = 5 * outputs.std(0) / np.sqrt(400)
  assert np.all(np.abs(outputs.mean(0) - point.define().output) < bound + 1e-6)


@both_implementations
def test_one_mask_for_the_whole_batch_and_all_heads_on_request(implementation):
  T, S = 20, 30
  zeros = jnp.zeros((2, T, 3, 2)), jnp.zeros((2, S, 3, 2))
  identity = jnp.broadcast_to(jnp.eye(S)[None, :, None], (2, S, 3, S))
  options = {"dropout_rate": 0.5, "dropout_rng": jax.random.key(10), "implementation": implementation}

  @jax.jit
  def attention():
    return mgk_jax.softmax_attention(*zeros, identity, broadcast_dropout=True, **options)

  keep = np.asarray(attention()) > 0
  np.testing.assert_array_equal(keep, np.broadcast_to(keep[:1, :, :1], keep.shape))
  assert 0.4 < keep.mean() < 0.6
