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
  is_relative = scale_cancels and log_prior is not None and log_prior.ndim == 2
  log_shares = [jnp.zeros((1, 1, 1), features.dtype)] * features.shape[3]
  if log_prior is not None:
    log_shares = [share + log_prior[..., r].astype(features.dtype) for r, share in enumerate(log_shares)]
  if is_relative:
    first = jnp.where(jnp.isfinite(log_shares[0]), log_shares[0], 0)
    nothing = lax.stop_gradient(first) - first  # with which the others carry the derivatives by the first
    log_shares = [lax.stop_gradient(log_shares[0]), *(share + nothing for share in log_shares[1:])]
  if scale is not None:
    scale = lax.stop_gradient(scale).astype(features.dtype)
    log_shares = [share + scale[..., r] for r, share in enumerate(log_shares)]
  top = lax.stop_gradient(functools.reduce(jnp.maximum, log_shares, jnp.full((), FLOOR, features.dtype)))
  shares = [jnp.exp(share - top)[..., None] for share in log_shares]
  if is_relative:
    shares[1:] = [spread(jnp.broadcast_to(share, (*features.shape[:3], 1)), features.shape[-1]) for share in shares[1:]]
  # Term by term: XLA:CPU takes twice as long for a weighted sum over an inner axis.
  mixed = [share * features[:, :, :, r] for r, share in enumerate(shares)]
  return functools.reduce(jnp.add, mixed), top


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
  return numerator * spread(inverse, numerator.shape[-1])


def spread(x: jax.Array, count: int) -> jax.Array:
  """[..., 1] → [..., count], by a product with ones, so that its derivative is one too: XLA:CPU takes long to sum."""
  return jnp.matmul(x, jnp.ones((1, count), x.dtype), precision=lax.Precision.HIGHEST)


def _checked(features: jax.Array, x: jax.Array) -> jax.Array:
  if features.shape[:-1] != x.shape[:-1] or not jnp.issubdtype(features.dtype, jnp.floating):
    expected = f"floating-point features [..., F] of an input {list(x.shape)}"
    raise ValueError(f"feature_map: expected {expected}, got {features.dtype} {list(features.shape)}")
  return features.astype(x.dtype)
