"""The O(1) state of linear attention: what a prefix of keys and values amounts to, and how to go on from it."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Int, UInt

from mgk_jax.kernels import checks, dispatch, feature_maps, linear_causal, linear_features, masking
from mgk_jax.kernels.feature_maps import FeatureMapLike
from mgk_jax.kernels.heads import vary_alike


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class LinearState:
  """Σ_j Φ_j v_jᵀ and Σ_j Φ_j over the keys seen so far, both times e^{−peak}.

  The peak is the largest log weight so far (`linear_features`). It keeps the sums in range, however the priors grow
  or shrink from position to position, and cancels in the attention.

  Attributes:
    kv: [B, N, F, V].
    normaliser: [B, N, F].
    peak: [B, N].
  """

  kv: Float[Array, "B N F V"]
  normaliser: Float[Array, "B N F"]
  peak: Float[Array, "B N"]

  @classmethod
  def init(
    cls, batch_size: int, num_heads: int, head_dim: int, value_dim: int, *,
    feature_map: FeatureMapLike = "elu", dtype: Any = jnp.float32,
  ) -> "LinearState":  # fmt: skip
    """The state before the first token."""
    F = feature_maps.num_features(feature_map, head_dim)
    return cls(
      jnp.zeros((batch_size, num_heads, F, value_dim), dtype),
      jnp.zeros((batch_size, num_heads, F), dtype),
      jnp.full((batch_size, num_heads), linear_features.FLOOR, dtype),
    )


def mixture_linear_attention_state(
  key: Float[Array, "B S N M H"],
  value: Float[Array, "B S N V"],
  *,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None = None,
  feature_map: FeatureMapLike = "elu",
  mask: Bool[Array, "..."] | None = None,
  key_value_seq_lengths: Int[Array, "B"] | UInt[Array, "B"] | None = None,
) -> LinearState:
  """The state after S tokens, in one pass: a prompt's, from which `mixture_linear_attention_step` goes on.

  Arguments as in `mixture_linear_attention`; `mask` must be the same for all queries: [B|1, N|1, 1, S|1].
  """
  key = checks.float_array("key", key)
  checks.rank("key", key, "B S N M H")
  B, _, N, _, H = key.shape
  query = jnp.zeros((B, 1, N, H), key.dtype)  # stands for all of them in the checks of shapes and of the mask
  _, key, value, dims = checks.query_key_value(query, key, value, key_letters="B S N M H")
  log_prior = checks.log_prior(log_prior, dims)
  where = masking.make(mask, False, None, key_value_seq_lengths, dims)
  phi = feature_maps.resolve(feature_map, dims.H)
  key_BSNF, log_weight_BSN = linear_features.key_features(phi, key, log_prior)
  key_BSNF, log_weight_BSN = linear_features.hide_keys(key_BSNF, log_weight_BSN, where.key_part(dims))
  return summarise(key_BSNF, value.astype(key_BSNF.dtype), log_weight_BSN)


def mixture_linear_attention_step(
  state: LinearState,
  query: Float[Array, "B T N H"],
  key: Float[Array, "B T N M H"],
  value: Float[Array, "B T N V"],
  *,
  log_prior: Float[Array, "N M"] | Float[Array, "T N M"] | None = None,
  feature_map: FeatureMapLike = "elu",
) -> tuple[Float[Array, "B T N V"], LinearState]:
  """The next T tokens of causal `mixture_linear_attention`: their outputs and the state with them.

  One token takes O(F·V) per head, however many came before. Segments of any lengths, one after another, give the rows
  of the parallel form, with the same priors (up to one constant per head and sequence), whether these come as [N, M]
  or, for the tokens' positions, as [T, N, M]. Gradients reach the state of the tokens before.

  Args:
    state: of the tokens before, from `LinearState.init`, `mixture_linear_attention_state` or the previous step.
    query: [B, T, N, H].
    key: [B, T, N, M, H].
    value: [B, T, N, V].
    log_prior: log π of these tokens' keys.
    feature_map: as in `mixture_linear_attention`, the same one for all tokens.

  Returns:
    The output [B, T, N, V] in the dtype of the inputs, and the new state in the dtype of the old one.

  Raises:
    ValueError, TypeError: a malformed argument or a state of another shape.

  Example:
    >>> prompt = mgk_jax.mixture_linear_attention_state(jnp.ones((1, 9, 2, 2, 32)), jnp.ones((1, 9, 2, 32)))
    >>> query, key, value = jnp.ones((1, 1, 2, 32)), jnp.ones((1, 1, 2, 2, 32)), jnp.ones((1, 1, 2, 32))
    >>> outputs, state = mgk_jax.mixture_linear_attention_step(prompt, query, key, value)
    >>> outputs.shape, state.kv.shape
    ((1, 1, 2, 32), (1, 2, 32, 32))
  """
  query, key, value, dims = checks.query_key_value(query, key, value, key_letters="B S N M H")
  if dims.T != dims.S:
    raise ValueError(f"expected as many keys as queries, got query length T = {dims.T} and key length S = {dims.S}")
  log_prior = checks.log_prior(log_prior, dims)
  phi = feature_maps.resolve(feature_map, dims.H)
  query_BTNF, key_BSNF, log_weight_BSN = linear_features.query_and_key_features(phi, query, key, log_prior)
  if not isinstance(state, LinearState):
    raise TypeError(f"state: expected a LinearState, got {type(state).__name__}")
  expected = [dims.B, dims.N, key_BSNF.shape[-1], dims.V]
  if list(state.kv.shape) != expected:
    raise ValueError(f"state: expected kv of shape [B, N, F, V] = {expected}, got {list(state.kv.shape)}")
  value_BSNV = value.astype(key_BSNF.dtype)
  after = merge(state, summarise(key_BSNF, value_BSNV, log_weight_BSN))
  if dims.T == 1:
    out_BTNV = dispatch.run(None, {"xla": lambda: attend(after, query_BTNF)})
    return out_BTNV.astype(value.dtype), after
  log_weight_BSN = jnp.zeros((), key_BSNF.dtype) if log_weight_BSN is None else log_weight_BSN
  log_weight_BSN = jnp.broadcast_to(log_weight_BSN, (*key_BSNF.shape[:3],))
  sums = jnp.concatenate([state.kv, state.normaliser[..., None]], axis=-1)
  start = linear_causal.Start(sums.astype(key_BSNF.dtype), state.peak.astype(key_BSNF.dtype))
  out_BTNV = dispatch.run(
    None, {"xla": lambda: linear_causal.attention(query_BTNF, key_BSNF, value_BSNV, log_weight_BSN, start=start)}
  )
  return out_BTNV.astype(value.dtype), after


def summarise(key_BSNF: jax.Array, value_BSNV: jax.Array, log_weight_BSN: jax.Array | None) -> LinearState:
  """The state of all keys: Φ̃ and w as `linear_features.key_features` gives them."""
  B, _, N, _ = key_BSNF.shape
  peak_BN = jnp.zeros((B, N), key_BSNF.dtype)
  if log_weight_BSN is not None:
    peak_BN = jnp.broadcast_to(jnp.max(log_weight_BSN, axis=1), (B, N))
    key_BSNF = key_BSNF * jnp.exp(log_weight_BSN - peak_BN[:, None])[..., None]
  # A column of ones beside the values yields the normaliser. Heads come first here and in `attend`: each is copied
  # whole, which on CPUs takes less time than what else XLA does to multiply them.
  value_BSNV = jnp.concatenate([value_BSNV, jnp.ones_like(value_BSNV[..., :1])], axis=-1)
  key_BNSF, value_BNSV = jnp.einsum("bsnf->bnsf", key_BSNF), jnp.einsum("bsnv->bnsv", value_BSNV)
  sums_BNFV = _sum_over_keys(*vary_alike((key_BNSF, value_BNSV)))
  return LinearState(sums_BNFV[..., :-1], sums_BNFV[..., -1], peak_BN)


@jax.custom_vjp
def _sum_over_keys(key_BNSF: jax.Array, value_BNSV: jax.Array) -> jax.Array:
  """Σ_j Φ_j v_jᵀ, [B, N, F, V]."""
  return jnp.einsum("bnsf,bnsv->bnfv", key_BNSF, value_BNSV)


def _by_keys_and_values(operands: tuple[jax.Array, jax.Array], by_sums_BNFV: jax.Array) -> tuple[jax.Array, jax.Array]:
  # As products with the positions first. JAX's own have them last, and XLA:CPU then takes long to read them.
  key_BNSF, value_BNSV = operands
  by_key_BNSF = jnp.einsum("bnsv,bnfv->bnsf", value_BNSV, by_sums_BNFV)
  return by_key_BNSF, jnp.einsum("bnsf,bnfv->bnsv", key_BNSF, by_sums_BNFV)


_sum_over_keys.defvjp(lambda key, value: (_sum_over_keys(key, value), (key, value)), _by_keys_and_values)


def merge(state: LinearState, other: LinearState) -> LinearState:
  """The state of the keys of both, in the dtype of the first."""
  peak = jnp.maximum(state.peak, other.peak)
  factor, other_factor = jnp.exp(state.peak - peak), jnp.exp(other.peak - peak)
  merged = LinearState(
    state.kv * factor[..., None, None] + other.kv * other_factor[..., None, None],
    state.normaliser * factor[..., None] + other.normaliser * other_factor[..., None],
    lax.stop_gradient(peak),
  )
  return jax.tree.map(lambda new, old: new.astype(old.dtype), merged, state)


def attend(state: LinearState, query_BTNF: jax.Array) -> jax.Array:
  """φ(q)ᵀ kv / φ(q)ᵀ normaliser, [B, T, N, V]; zeros where the denominator vanishes."""
  sums_BNFV = jnp.concatenate([state.kv, state.normaliser[..., None]], axis=-1)
  out_BNTV = jnp.einsum("bntf,bnfv->bntv", jnp.einsum("btnf->bntf", query_BTNF), sums_BNFV)
  return jnp.einsum("bntv->btnv", linear_features.divide(out_BNTV[..., :-1], out_BNTV[..., -1:]))
