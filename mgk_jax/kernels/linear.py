"""Linear attention: mixtures of linear keys (MLK) and the plain form, with O(T + S) memory and time."""

from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Int, UInt

from mgk_jax.kernels import (
  checks,
  dispatch,
  feature_maps,
  linear_causal,
  linear_features,
  linear_pallas,
  linear_state,
  masking,
)
from mgk_jax.kernels.attention import Segments
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.feature_maps import FeatureMapLike
from mgk_jax.kernels.masking import Masking

Implementation = Literal["reference", "xla", "pallas"]
Lengths = Int[Array, "B"] | UInt[Array, "B"]


def mixture_linear_attention(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N M H"],
  value: Float[Array, "B S N V"],
  *,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None = None,
  feature_map: FeatureMapLike = "elu",
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  implementation: Implementation | None = None,
) -> Float[Array, "B T N V"]:
  """Linear attention whose key features are mixtures of those of M keys per position (MLK).

      Φ_j = Σ_r π_jr φ(k_jr),   h_i = φ(q_i)ᵀ Σ_j Φ_j v_jᵀ / φ(q_i)ᵀ Σ_j Φ_j        Eqn 14

  For keys that are shifts of one another (sMLK) pass `scores.shift_keys(key, shift)`. Computed in float32 (float64 for
  float64 inputs). A query without an allowed key, or whose denominator vanishes (|·| < 1e-19 in float32, as happens
  with relu features), returns zeros and has zero gradients.

  Args:
    query: [B, T, N, H].
    key: [B, S, N, M, H], the M keys of each position.
    value: [B, S, N, V]; V may differ from H.
    log_prior: log π, [N, M] or [S, N, M]; need not be normalised, −inf switches a component off. None: equal weights.
    feature_map: φ: "elu", "relu", "favor", "dpfp", a function [..., H] → [..., F], or an object as in `feature_maps`.
    mask: boolean, True = attend, of any shape that broadcasts to [B, N, T, S].
    is_causal: query i sees keys j <= i.
    query_seq_lengths: [B]; rows at or past it are zero.
    key_value_seq_lengths: [B]; keys at or past it are not attended.
    segment_ids: as in `mixture_attention`; "reference" only.
    implementation: "reference" (memory O(T·S)); "xla" (features and, if causal, O(chunk² + F·V) per head; no mask that
      varies with the query); "pallas", the same with kernels for TPUs and NVIDIA GPUs where it is causal (not for
      FAVOR+ or priors per position; interpreted on a CPU); None for the best one that can do it.

  Returns:
    [B, T, N, V] in the dtype of the inputs.

  Raises:
    ValueError, TypeError: a malformed argument; the message states what was expected and what came.
    NotImplementedError: the named implementation cannot do it, such as "xla" with a mask that varies with the query.

  Example:
    >>> query, value, key = jnp.ones((8, 128, 2, 32)), jnp.ones((8, 128, 2, 32)), jnp.ones((8, 128, 2, 2, 32))
    >>> mgk_jax.mixture_linear_attention(query, key, value, is_causal=True).shape
    (8, 128, 2, 32)
  """
  query, key, value, dims = checks.query_key_value(query, key, value, key_letters="B S N M H")
  log_prior = checks.log_prior(log_prior, dims)
  where = masking.make(mask, is_causal, query_seq_lengths, key_value_seq_lengths, dims, segment_ids)
  phi = feature_maps.resolve(feature_map, dims.H)

  query_BTNF, key_BSNF, log_weight_BSN = linear_features.query_and_key_features(
    phi, query, key, log_prior, scale_cancels=True
  )
  if log_weight_BSN is not None and log_weight_BSN.shape[1] == 1:
    log_weight_BSN = None  # the same for all positions, so that it cancels
  operands = (query_BTNF, key_BSNF, value.astype(query_BTNF.dtype), log_weight_BSN, where, dims)
  out = dispatch.run(
    implementation,
    {
      "xla": lambda: _linear_time(*operands, linear_causal.attention),
      "pallas": lambda: _linear_time(*operands, linear_pallas.attention),
      "reference": lambda: _reference(*operands),
    },
  )
  return out.astype(value.dtype)


def linear_attention(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N H"],
  value: Float[Array, "B S N V"],
  *,
  feature_map: FeatureMapLike = "elu",
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  implementation: Implementation | None = None,
) -> Float[Array, "B T N V"]:
  """The baseline, one key per position: h_i = φ(q_i)ᵀ Σ_j φ(k_j) v_jᵀ / φ(q_i)ᵀ Σ_j φ(k_j).

  Args:
    query: [B, T, N, H].
    key: [B, S, N, H].
    value: [B, S, N, V].
    feature_map, mask, is_causal, …: as in `mixture_linear_attention`.

  Returns:
    [B, T, N, V] in the dtype of the inputs.

  Example:
    >>> query = key = value = jnp.ones((8, 128, 2, 32))
    >>> mgk_jax.linear_attention(query, key, value, feature_map="relu").shape
    (8, 128, 2, 32)
  """
  query, key, value, _ = checks.query_key_value(query, key, value, key_letters="B S N H")
  return mixture_linear_attention(
    query, key[:, :, :, None], value,
    feature_map=feature_map, mask=mask, is_causal=is_causal, query_seq_lengths=query_seq_lengths,
    key_value_seq_lengths=key_value_seq_lengths, segment_ids=segment_ids, implementation=implementation,
  )  # fmt: skip


def _reference(
  query_BTNF: jax.Array,
  key_BSNF: jax.Array,
  value_BSNV: jax.Array,
  log_weight_BSN: jax.Array | None,
  where: Masking,
  dims: Dims,
) -> jax.Array:
  """The weights e^{w_j} φ(q_i)·Φ̃_j, materialised: memory O(T·S). Differentiable any number of times, in both modes."""
  allowed = where.dense(dims)
  weights_BNTS = jnp.einsum("btnf,bsnf->bnts", query_BTNF, key_BSNF)
  if log_weight_BSN is not None:
    log_weight = jnp.einsum("bsn->bns", log_weight_BSN)[:, :, None]
    visible = log_weight if allowed is None else jnp.where(allowed, log_weight, linear_features.FLOOR)
    weights_BNTS *= jnp.exp(visible - jnp.max(visible, axis=-1, keepdims=True))
  if allowed is not None:
    weights_BNTS = jnp.where(allowed, weights_BNTS, 0)
  numerator = jnp.einsum("bnts,bsnv->btnv", weights_BNTS, value_BSNV)
  denominator = jnp.einsum("bnts->btn", weights_BNTS)[..., None]
  return linear_features.divide(numerator, denominator)


def _linear_time(
  query_BTNF: jax.Array,
  key_BSNF: jax.Array,
  value_BSNV: jax.Array,
  log_weight_BSN: jax.Array | None,
  where: Masking,
  dims: Dims,
  causal: Callable[..., jax.Array],
) -> jax.Array:
  """Two contractions with the state Σ_j Φ_j v_jᵀ between them; if it is causal, in chunks by the function `causal`."""
  if where.query_segments is not None:
    raise NotImplementedError("segments: linear attention in linear time sums over all keys")
  pair_part = where.pair_part()
  if pair_part is not None:
    raise NotImplementedError(
      "linear attention in linear time sums over keys before it sees the queries: expected a mask that is the "
      f"same for all queries, of shape [B|1, N|1, 1, S|1], got {list(pair_part.shape)}; "
      'is_causal=True or implementation="reference" may do what you want'
    )
  key_BSNF, log_weight_BSN = linear_features.hide_keys(key_BSNF, log_weight_BSN, where.key_part(dims))
  if where.query_lengths is not None:
    valid_BT = jnp.arange(dims.T) < where.query_lengths[:, None]
    query_BTNF = jnp.where(valid_BT[:, :, None, None], query_BTNF, 0)
  if where.is_causal:
    return causal(query_BTNF, key_BSNF, value_BSNV, log_weight_BSN)
  return linear_state.attend(linear_state.summarise(key_BSNF, value_BSNV, log_weight_BSN), query_BTNF)
