"""Going on from the tokens so far: a sliding cache of keys and values, or the recurrent state of linear attention."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from mgk_jax.kernels import linear_state
from mgk_jax.kernels.linear_state import LinearState
from mgk_jax.nn import folding, mixing, priors
from mgk_jax.nn.mixing import Components, Masks, Mixing


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class KeyValueCache:
  """Keys and values of the last C tokens; the token at position p lies in slot p mod C.

  Attributes:
    key: as projected, [B, C, kv_heads, (M,) head_dim].
    value: [B, C, kv_heads, head_dim].
    index: int32 [], how many tokens there were so far.
  """

  key: jax.Array
  value: jax.Array
  index: jax.Array

  @property
  def size(self) -> int:
    """C."""
    return self.key.shape[1]

  def positions(self) -> jax.Array:
    """Of the token in each slot, [C]; negative where there is none yet."""
    last = self.index - 1
    return last - (last - jnp.arange(self.size)) % self.size

  def append(self, key: jax.Array, value: jax.Array) -> "KeyValueCache":
    """The cache after T more tokens."""
    T = key.shape[1]
    kept = min(T, self.size)
    slots = (self.index + jnp.arange(T - kept, T)) % self.size

    def put(cached: jax.Array, new: jax.Array) -> jax.Array:
      if kept == 1:
        return jax.lax.dynamic_update_slice_in_dim(cached, new[:, -1:].astype(cached.dtype), slots[0], axis=1)
      return cached.at[:, slots].set(new[:, T - kept :].astype(cached.dtype), unique_indices=True)

    return KeyValueCache(put(self.key, key), put(self.value, value), self.index + T)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class RecurrentCache:
  """The state of linear attention after the tokens so far, and how many there were, int32 []."""

  state: LinearState
  index: jax.Array


Cache = KeyValueCache | RecurrentCache


def init(
  choice: Mixing, batch_size: int, size: int, num_heads: int, num_kv_heads: int, head_dim: int, dtype: Dtype
) -> Cache:
  """The cache before the first token."""
  index = jnp.zeros((), jnp.int32)
  if choice.kernel == "linear":
    dtype = jnp.promote_types(dtype, jnp.float32)
    state = LinearState.init(batch_size, num_heads, head_dim, head_dim, feature_map=choice.feature_map, dtype=dtype)
    return RecurrentCache(state, index)
  shape = (batch_size, size, num_kv_heads)
  key = jnp.zeros((*shape, *choice.component_axis, head_dim), dtype)
  return KeyValueCache(key, jnp.zeros((*shape, head_dim), dtype), index)


def extend(
  cache: Cache,
  choice: Mixing,
  query_BTNH: jax.Array,
  key: jax.Array,
  value: jax.Array,
  prior: nnx.Variable | None,
  components: Components,
  mask: jax.Array | None,
  dropout: dict[str, Any],
) -> tuple[jax.Array, Cache]:
  """The attention of the next T tokens, [B, T, N, H], and the cache with them.

  A query sees its own token and the C − 1 before it, in linear attention all before it. `key` and `value` have the
  heads of the cache. Priors per position count from the first token ever; those past the last position have its prior.
  """
  N, T = query_BTNH.shape[2], query_BTNH.shape[1]
  new_positions = cache.index + jnp.arange(T)
  if isinstance(cache, RecurrentCache):
    heads, state = linear_state.mixture_linear_attention_step(
      cache.state,
      query_BTNH,
      mixing.component_keys(choice, folding.repeat_heads(key, N), components.shift),
      folding.repeat_heads(value, N),
      log_prior=priors.log_weights_at(prior, N, new_positions),
      feature_map=choice.feature_map,
    )
    return heads, RecurrentCache(state, cache.index + T)
  after = cache.append(key, value)
  if T == 1:
    key, value, positions = after.key, after.value, after.positions()
    visible = (positions >= 0)[None, None, None]
  else:
    # What the new tokens push out of the cache is still seen by the first of them.
    positions = jnp.concatenate([cache.positions(), new_positions])
    key = jnp.concatenate([cache.key, key.astype(cache.key.dtype)], axis=1)
    value = jnp.concatenate([cache.value, value.astype(cache.value.dtype)], axis=1)
    age = new_positions[:, None] - positions
    visible = ((age >= 0) & (age < cache.size) & (positions >= 0))[None, None]
  key, value = (folding.repeat_heads(x, N).astype(query_BTNH.dtype) for x in (key, value))
  masks = Masks(visible if mask is None else visible & mask, False, None, None, None)
  components = components._replace(log_prior=priors.log_weights_at(prior, N, positions))
  return mixing.attend(choice, query_BTNH, key, value, components, masks, dropout), after


def check(cache: Cache, choice: Mixing, key: jax.Array, masks: Masks, sow_weights: bool) -> None:
  """Raises ValueError unless `key` [B, T, …] fits the cache and the call asks for nothing that it cannot do."""
  batch = jax.tree.leaves(cache)[0].shape[0]
  if batch != key.shape[0]:
    raise ValueError(f"decode: expected the batch of the cache, {batch}, got {key.shape[0]}")
  if masks.query_seq_lengths is not None or masks.key_value_seq_lengths is not None:
    raise ValueError("decode: expected no sequence lengths (the cache knows how far it is filled; use mask), got some")
  if masks.segment_ids is not None:
    raise ValueError("decode: expected no segment_ids (a cache holds one sequence; use mask), got some")
  if sow_weights:
    raise ValueError("decode: expected sow_weights=False (run the whole sequence without a cache), got True")
  if masks.mask is not None and (choice.kernel == "linear" or key.shape[1] > 1):
    what = "linear attention keeps no tokens apart" if choice.kernel == "linear" else f"{key.shape[1]} tokens at once"
    raise ValueError(f"decode: expected no mask ({what}), got one")
