"""What linear attention sees of queries and keys: features, and the mixture of a position's M keys in one vector.

    Φ_j = Σ_r π_jr φ(k_jr) = e^{w_j} Φ̃_j,   w_j = max_r (log π_jr + scale_jr)

where the feature map gives φ(k) = e^{scale} · features. The log weight w_j keeps the range of priors and scales out of
the features: whoever sums over positions subtracts the largest one first. It carries no gradient, that of the prior
flows through the shares e^{log π_jr + scale_jr − w_j} with which Φ̃_j is mixed.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels.feature_maps import FeatureMap
from mgk_jax.kernels.precision import at_least_float32

FLOOR = -1e30  # the log weight of what weighs nothing: finite, so that differences of two are


def query_and_key_features(
  feature_map: FeatureMap,
  query_BTNH: jax.Array,
  key_BSNMH: jax.Array,
  log_prior: jax.Array | None,
  *,
  scale_cancels: bool = False,
) -> tuple[jax.Array, jax.Array, jax.Array | None]:
  """φ(q), [B, T, N, F], up to a factor of each row, and Φ̃ and w of `key_features`."""
  query = at_least_float32(query_BTNH)
  query_BTNF = _checked(feature_map.query(query), query)
  key_BSNF, log_weight_BSN = key_features(feature_map, key_BSNMH, log_prior, scale_cancels=scale_cancels)
  if query_BTNF.shape[-1] != key_BSNF.shape[-1]:
    got = f"{query_BTNF.shape[-1]} and {key_BSNF.shape[-1]}"
    raise ValueError(f"feature_map: expected as many features of a key as of a query, got {got}")
  return query_BTNF, key_BSNF, log_weight_BSN


def key_features(
  feature_map: FeatureMap, key_BSNMH: jax.Array, log_prior: jax.Array | None, *, scale_cancels: bool = False
) -> tuple[jax.Array, jax.Array | None]:
  """Φ̃, [B, S, N, F], and w, [B|1, S|1, N] or None for zeros; float32 or float64.

  Args:
    feature_map: φ.
    key_BSNMH: the keys.
    log_prior: log π, [N, M] or [S, N, M], or None.
    scale_cancels: whether a factor of all of a head's Φ has no effect in the end. Then the derivatives by log priors
      [N, M] of a head add up to zero, and those by the first need no sum over all positions of their own.
  """
  key = at_least_float32(key_BSNMH)
  features, scale = feature_map.key(key)
  features = _checked(features, key)
  if log_prior is None and scale is None:
    return jnp.sum(features, axis=3), None
  log_share = jnp.zeros((1, 1, 1, 1), features.dtype)
  is_relative = scale_cancels and log_prior is not None and log_prior.ndim == 2
  if log_prior is not None:
    log_share = log_share + (_relative(log_prior) if is_relative else log_prior).astype(features.dtype)
  if scale is not None:
    log_share = log_share + lax.stop_gradient(scale).astype(features.dtype)
  top = lax.stop_gradient(jnp.maximum(jnp.max(log_share, axis=-1, keepdims=True), FLOOR))
  shares = [jnp.exp(log_share[..., r, None] - top) for r in range(log_share.shape[-1])]
  if is_relative:
    shares[0] = lax.stop_gradient(shares[0])
  # Term by term: XLA:CPU takes twice as long for a weighted sum over an inner axis.
  mixed = [share * features[:, :, :, r] for r, share in enumerate(shares)]
  return functools.reduce(jnp.add, mixed), top[..., 0]


def hide_keys(
  features_BSNF: jax.Array, log_weight_BSN: jax.Array | None, allowed_BNS: jax.Array | None
) -> tuple[jax.Array, jax.Array | None]:
  """Features and log weights with which the keys that are not allowed count for nothing."""
  if allowed_BNS is None:
    return features_BSNF, log_weight_BSN
  allowed_BSN = jnp.swapaxes(allowed_BNS, 1, 2)
  if log_weight_BSN is not None:
    log_weight_BSN = jnp.where(allowed_BSN, log_weight_BSN, FLOOR)
  return jnp.where(allowed_BSN[..., None], features_BSNF, 0), log_weight_BSN


def divide(numerator: jax.Array, denominator: jax.Array) -> jax.Array:
  """[..., V] / [..., 1]; zero with zero gradients where |denominator| < √tiny (1e-19 in float32).

  Smaller ones arise where all features underflow or, with relu, are zero. Their reciprocal, which the gradients
  multiply, could overflow.
  """
  alive = jnp.abs(denominator) >= float(jnp.finfo(denominator.dtype).tiny) ** 0.5
  inverse = jnp.where(alive, 1 / jnp.where(alive, denominator, 1), 0)
  # A product with ones, so that the derivative by the denominator is one too: XLA:CPU takes long to sum over V.
  ones = jnp.ones((1, numerator.shape[-1]), inverse.dtype)
  return numerator * jnp.matmul(inverse, ones, precision=lax.Precision.HIGHEST)


def _relative(log_prior_NM: jax.Array) -> jax.Array:
  """The same log priors, of which the others of a head carry the derivatives by its first one."""
  first, others = log_prior_NM[:, :1], log_prior_NM[:, 1:]
  constant = jnp.where(jnp.isfinite(first), first, 0)
  return jnp.concatenate([first, others + (lax.stop_gradient(constant) - constant)], axis=1)


def _checked(features: jax.Array, x: jax.Array) -> jax.Array:
  if features.shape[:-1] != x.shape[:-1] or not jnp.issubdtype(features.dtype, jnp.floating):
    expected = f"floating-point features [..., F] of an input {list(x.shape)}"
    raise ValueError(f"feature_map: expected {expected}, got {features.dtype} {list(features.shape)}")
  return features.astype(x.dtype)
