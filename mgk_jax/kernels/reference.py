"""The definition, materialised: what every other implementation is tested against.

Memory O(B·N·T·S·M), forward and backward. Differentiable any number of times, in both modes.
"""

import jax
import jax.numpy as jnp

from mgk_jax.kernels import dropout as dropout_lib
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.dropout import Dropout
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.precision import at_least_float32


def gaussian_scores(
  query_BTNH: jax.Array, key_BSNMH: jax.Array, log_prior: jax.Array | None, variance: jax.Array
) -> jax.Array:
  """The joint log score s_ijr = log π_jr − ‖q_i − k_jr‖² / 2σ_r², [B, N, T, S, M]."""
  query, key = at_least_float32(query_BTNH), at_least_float32(key_BSNMH)
  product = jnp.einsum("btnh,bsnmh->bntsm", query, key)
  query_norm = jnp.einsum("btnh,btnh->bnt", query, query)[..., None, None]
  key_norm = jnp.einsum("bsnmh,bsnmh->bnsm", key, key)[:, :, None]
  scores = -(query_norm - 2 * product + key_norm) / (2 * variance.astype(query.dtype))
  if log_prior is not None:
    by_position = log_prior[None] if log_prior.ndim == 2 else log_prior
    scores = scores + jnp.einsum("snm->nsm", by_position.astype(query.dtype))[:, None]
  return scores


def dot_product_scores(query_BTNH: jax.Array, key_BSNH: jax.Array) -> jax.Array:
  """Softmax attention's scores q_i·k_j / √H as a mixture of one component, [B, N, T, S, 1]."""
  query, key = at_least_float32(query_BTNH), at_least_float32(key_BSNH)
  return jnp.einsum("btnh,bsnh->bnts", query, key)[..., None] / jnp.sqrt(query.shape[-1]).astype(query.dtype)


def weights(scores_BNTSM: jax.Array, masking: Masking, dims: Dims, estep: str) -> jax.Array:
  """The posterior A_ij of Eqn 9 (soft) or Eqn 12 (hard), [B, N, T, S]; rows without an allowed key are zero."""
  scores = _logsumexp(scores_BNTSM) if estep == "soft" else jnp.max(scores_BNTSM, axis=-1)
  allowed = masking.dense(dims)
  if allowed is not None:
    scores = jnp.where(allowed, scores, -jnp.inf)
  top = jnp.max(scores, axis=-1, keepdims=True)
  alive = jnp.isfinite(scores)  # a key is dead if masked or if its prior is zero in every component
  exponentials = jnp.where(alive, jnp.exp(jnp.where(alive, scores - jax.lax.stop_gradient(top), 0)), 0)
  total = jnp.sum(exponentials, axis=-1, keepdims=True)
  return exponentials / jnp.where(total > 0, total, 1)


def responsibilities(scores_BNTSM: jax.Array, masking: Masking, dims: Dims, estep: str) -> jax.Array:
  """γ_ijr of Eqn 11 (soft), or the share of component r in the maximum (hard), [B, N, T, S, M]; zero where masked."""
  top = jnp.max(scores_BNTSM, axis=-1, keepdims=True)
  if estep == "hard":
    share = (scores_BNTSM == top).astype(scores_BNTSM.dtype)
  else:
    share = jnp.exp(scores_BNTSM - jnp.where(jnp.isfinite(top), top, 0))
  total = jnp.sum(share, axis=-1, keepdims=True)
  share = share / jnp.where(total > 0, total, 1)
  allowed = masking.dense(dims)
  return share if allowed is None else jnp.where(allowed[..., None], share, 0)


def attention(
  scores_BNTSM: jax.Array, value_BSNV: jax.Array, masking: Masking, dims: Dims, estep: str, dropout: Dropout | None
) -> jax.Array:
  """h_i = Σ_j A_ij v_j (Eqn 10), [B, T, N, V], in the dtype of the scores."""
  weights_BNTS = weights(scores_BNTSM, masking, dims, estep)
  if dropout is not None:
    weights_BNTS *= dropout_lib.multiplier(
      dropout.rows[..., None], dropout.columns[..., None, :], dropout.rate, weights_BNTS.dtype
    )
  return jnp.einsum("bnts,bsnv->btnv", weights_BNTS, value_BSNV.astype(weights_BNTS.dtype))


def _logsumexp(scores: jax.Array) -> jax.Array:
  """log Σ_r exp(s_r) whose gradient is zero, not NaN, where every s_r is −inf."""
  if scores.shape[-1] == 1:
    return scores[..., 0]
  dead = jnp.all(jnp.isneginf(scores), axis=-1, keepdims=True)
  result = jax.nn.logsumexp(jnp.where(dead, 0, scores), axis=-1)
  return jnp.where(dead[..., 0], -jnp.inf, result)
