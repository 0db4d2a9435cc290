"""Feature maps: their formulas, FAVOR+'s statistics and range, and what is no feature map."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import feature_maps, linear
from tests.kernels import linear_problem

H, F = 8, 32


def normal(*shape, seed=0):
  return np.random.default_rng(seed).standard_normal(shape)


@pytest.mark.parametrize("name", linear_problem.MAPS)
def test_formulas(name):
  """Keys: e^scale · features is φ; queries: features are φ up to a factor of each row."""
  feature_map, definition = linear_problem.MAPS[name]
  x = normal(5, H)
  x[0] = -np.abs(x[0])
  expected = definition(H)(x)
  phi = feature_maps.resolve(feature_map, H)
  features, scale = phi.key(jnp.asarray(x, jnp.float32))
  if scale is not None:
    features = np.asarray(features, np.float64) * np.exp(np.asarray(scale, np.float64))[:, None]
    expected *= np.sqrt(expected.shape[-1])  # FAVOR+ leaves this constant out
  np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-7)
  query = np.asarray(phi.query(jnp.asarray(x, jnp.float32)), np.float64)
  np.testing.assert_allclose(
    query * expected.sum(-1, keepdims=True), expected * query.sum(-1, keepdims=True), rtol=1e-5
  )
  np.testing.assert_array_equal(query.sum(-1) > 0, expected.sum(-1) > 0)
  assert feature_maps.num_features(feature_map, H) == expected.shape[-1]


def test_elu_keeps_small_features_and_is_smooth_at_zero():
  x = jnp.array([-60.0, -20.0, 0.0, 1.0])
  np.testing.assert_allclose(feature_maps.Elu()(x), np.exp([-60.0, -20.0, 0.0, np.log(2.0)]), rtol=1e-5)
  np.testing.assert_allclose(jax.vmap(jax.grad(feature_maps.Elu()))(x), np.exp([-60.0, -20.0, 0.0, 0.0]), rtol=1e-5)
  np.testing.assert_array_equal(feature_maps.Elu()(jnp.array([jnp.nan, -jnp.inf, 1e30])), np.float32([np.nan, 0, 1e30]))


def test_dpfp_has_products_of_cyclic_neighbours():
  np.testing.assert_array_equal(feature_maps.Dpfp()(jnp.array([2.0, 3.0, -5.0])), [10, 6, 0, 0, 0, 0])
  np.testing.assert_array_equal(feature_maps.Dpfp(nu=2)(jnp.array([2.0, -3.0])), [6, 0, 0, 0, 0, 0, 0, 0])


def test_favor_projection_is_orthogonal_in_blocks_with_gaussian_norms():
  projection = np.asarray(feature_maps.favor(jax.random.key(1), 16, 4090).projection, np.float64)
  assert projection.shape == (4090, 16)
  for block in (projection[:16], projection[16:32], projection[4080:]):
    unit = block / np.linalg.norm(block, axis=-1, keepdims=True)
    np.testing.assert_allclose(unit @ unit.T, np.eye(len(block)), atol=1e-5)
  squared = np.sum(projection**2, -1)  # χ² of 16 degrees of freedom: mean 16, variance 32
  assert abs(squared.mean() - 16) < 5 * math.sqrt(32 / 4090)
  assert 0.8 < squared.var() / 32 < 1.2
  # Uniformly distributed directions: every coordinate of every row is standard normal.
  assert np.all(np.abs(projection.mean(0)) < 5 / math.sqrt(4090))
  assert abs(np.mean(projection**4) / 3 - 1) < 0.1


@pytest.fixture(scope="module")
def estimates():
  """φ(x)·φ(y) with ω and with −ω, [2, 4000], for orthogonal and for independent projections, and exp(x·y/√H)."""
  x, y = 0.3 * normal(2, H, seed=3)
  draws = 4000

  def both_signs(projection):
    favors = feature_maps.Favor(projection), feature_maps.Favor(-projection)
    return jnp.stack([favor(jnp.asarray(x, jnp.float32)) @ favor(jnp.asarray(y, jnp.float32)) for favor in favors])

  keys = jax.random.split(jax.random.key(5), draws)
  orthogonal = jax.jit(jax.vmap(lambda key: both_signs(feature_maps.favor(key, H, H).projection), out_axes=1))(keys)
  independent = jax.jit(jax.vmap(both_signs, out_axes=1))(jnp.asarray(normal(draws, H, H, seed=6), jnp.float32))
  return np.asarray(orthogonal, np.float64), np.asarray(independent, np.float64), math.exp(x @ y / math.sqrt(H))


def test_favor_is_unbiased(estimates):
  for estimate in (estimates[0][0], estimates[1][0]):
    assert abs(estimate.mean() - estimates[2]) < 4 * estimate.std() / math.sqrt(len(estimate))
    assert estimate.std() < 0.5 * estimates[2]  # else the bound would say little


def test_favor_orthogonal_projections_have_less_variance(estimates):
  """The directions' signs are independent either way; without the odd part of exp, the variance is below a half."""
  orthogonal, independent = (np.mean(x, axis=0) for x in estimates[:2])
  assert orthogonal.var() < 0.5 * independent.var()


def test_favor_approaches_softmax_attention():
  """With many features the attention is that of exp(q·k/√H)."""
  query, key, value = (jnp.asarray(0.6 * normal(1, 12, 1, 4, seed=seed), jnp.float32) for seed in range(3))
  many = feature_maps.favor(jax.random.key(0), 4, 2**16)
  got = jax.jit(linear.linear_attention)(query, key, value, feature_map=many)
  expected = jax.nn.dot_product_attention(query, key, value)
  error = np.max(np.abs(got - expected))
  assert error < 0.05
  assert np.max(np.abs(np.mean(value, axis=1) - expected)) > 5 * error  # attention to everything alike would not do


def test_favor_is_redrawn_by_key_and_passes_through_jit():
  query, key, value = (jnp.asarray(normal(1, 5, 1, H, seed=seed), jnp.float32) for seed in range(3))
  call = jax.jit(lambda favor: linear.linear_attention(query, key, value, feature_map=favor))
  first, again, other = (call(feature_maps.favor(jax.random.key(seed), H, F)) for seed in (0, 0, 1))
  np.testing.assert_array_equal(first, again)
  assert np.max(np.abs(first - other)) > 1e-3
  assert call._cache_size() == 1
  gradient = jax.grad(lambda favor: jnp.sum(call(favor) ** 2))(feature_maps.favor(jax.random.key(0), H, F))
  assert np.all(np.isfinite(gradient.projection)) and np.any(gradient.projection != 0)


def test_name_favor_has_a_fixed_projection():
  query, key, value = (jnp.asarray(normal(1, 5, 1, H, seed=seed), jnp.float32) for seed in range(3))
  named = jax.jit(lambda: linear.linear_attention(query, key, value, feature_map="favor"))()
  drawn = feature_maps.favor(jax.random.key(0), H)
  assert drawn.projection.shape == (4 * H, H)
  np.testing.assert_allclose(named, linear.linear_attention(query, key, value, feature_map=drawn), atol=1e-5)


@pytest.mark.parametrize("head_dim", [8, 256])
def test_favor_features_are_in_range(head_dim):
  """The largest feature of every query and key is 1, also where exp(−‖x̂‖²/2) is zero."""
  x = jnp.asarray(normal(6, head_dim) * np.array([1, 1, 1, 30, 1e3, 1e3])[:, None], jnp.float32)
  favor = feature_maps.favor(jax.random.key(0), head_dim)
  features, scale = favor.key(x)
  np.testing.assert_array_equal(np.max(features, -1), 1)
  np.testing.assert_array_equal(np.max(favor.query(x), -1), 1)
  exponents = np.asarray(x, np.float64) @ np.asarray(favor.projection, np.float64).T / head_dim**0.25
  expected = np.max(exponents, -1) - np.sum(np.asarray(x, np.float64) ** 2, -1) / 2 / math.sqrt(head_dim)
  np.testing.assert_allclose(scale, expected, rtol=1e-5, atol=1e-4)


class Lopsided:
  """More features of queries than of keys."""

  def query(self, x):
    return jnp.concatenate([x, x], -1)

  def key(self, x):
    return x, None


@pytest.mark.parametrize(
  ("feature_map", "error", "message"),
  [
    ("softplus", ValueError, r"feature_map: expected one of \('elu', 'relu', 'favor', 'dpfp'\), got 'softplus'"),
    (3, TypeError, r"feature_map: expected one of \('elu', 'relu', 'favor', 'dpfp'\), a function .* got 3"),
    (None, TypeError, r"feature_map: expected one of \('elu', 'relu', 'favor', 'dpfp'\), a function .* got None"),
    (feature_maps.Dpfp, TypeError, r"a function .* got <class"),
    (lambda x: x.sum(-1), ValueError, r"features \[\.\.\., F\] of an input \[1, 5, 1, 8\], got float32 \[1, 5, 1\]"),
    (lambda x: x > 0, ValueError, r"floating-point features .* got bool"),
    (Lopsided(), ValueError, r"expected as many features of a key as of a query, got 16 and 8"),
    (feature_maps.Favor(np.zeros((6, 4), np.float32)), ValueError, r"\[F, H\] with H = 8, got \[6, 4\]"),
  ],
)
def test_what_is_no_feature_map(feature_map, error, message):
  x = jnp.ones((1, 5, 1, H))
  with pytest.raises(error, match=message):
    linear.linear_attention(x, x, x, feature_map=feature_map)


@pytest.mark.parametrize(
  ("call", "message"),
  [
    (lambda: feature_maps.Dpfp(nu=0), "nu: expected a positive int, got 0"),
    (lambda: feature_maps.favor(jax.random.key(0), 0), "head_dim: expected a positive int, got 0"),
    (lambda: feature_maps.favor(jax.random.key(0), 4, 2.5), "num_features: expected a positive int, got 2.5"),
  ],
)
def test_wrong_settings(call, message):
  with pytest.raises(ValueError, match=message):
    call()
