"""Decoding one token at a time: a cache of keys and values, or the recurrent state of linear attention."""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype

from mgk_jax.kernels import linear_state
from mgk_jax.kernels.linear_state import LinearState
from mgk_jax.nn import folding, mixing
from mgk_jax.nn.folding import BatchShape
from mgk_jax.nn.mixing import Components, Masks, Mixing


class Caches(NamedTuple):
  """The variables of one module.

  key and value are those of all tokens so far, [batch..., max_length, kv_heads, (M,) head_dim]; in linear attention
  the sums over tokens of key features, [batch..., heads, F], and of their products with values, [batch..., heads, F,
  head_dim]. peak [batch..., heads] is the common log scale of those sums; None elsewhere.
  """

  key: nnx.Cache
  value: nnx.Cache
  peak: nnx.Cache | None
  index: nnx.Cache


def init(
  choice: Mixing,
  batch_shape: BatchShape,
  max_length: int,
  num_heads: int,
  num_kv_heads: int,
  head_dim: int,
  dtype: Dtype,
) -> Caches:
  """The caches before the first token."""
  index = nnx.Cache(jnp.zeros((), jnp.int32))
  if choice.kernel == "linear":
    state = LinearState.init(
      math.prod(batch_shape), num_heads, head_dim, head_dim,
      feature_map=choice.feature_map, dtype=jnp.promote_types(dtype, jnp.float32),
    )  # fmt: skip
    key, value, peak = (nnx.Cache(folding.unfold(x, batch_shape)) for x in (state.normaliser, state.kv, state.peak))
    return Caches(key, value, peak, index)
  shape = (*batch_shape, max_length, num_kv_heads)
  key = nnx.Cache(jnp.zeros((*shape, *choice.component_axis, head_dim), dtype))
  return Caches(key, nnx.Cache(jnp.zeros((*shape, head_dim), dtype)), None, index)


def gather(key: nnx.Cache | None, value: nnx.Cache | None, peak: nnx.Cache | None, index: nnx.Cache | None) -> Caches:
  """A module's caches; ValueError when there are none."""
  if key is None or value is None or index is None:
    raise ValueError("decode: expected an initialised cache, got none; call init_cache(input_shape) first")
  return Caches(key, value, peak, index)


def check_step(
  caches: Caches, choice: Mixing, key: jax.Array, batch_shape: BatchShape, masks: Masks, sow_weights: bool
) -> None:
  """Raises ValueError unless `key` is one token for the cache and the call asks for nothing that it cannot do."""
  if key.shape[len(batch_shape)] != 1:
    raise ValueError(f"decode: expected one token at a time, got {key.shape[len(batch_shape)]}")
  if caches.key.shape[: len(batch_shape)] != batch_shape:
    cached, batch = list(caches.key.shape), list(batch_shape)
    raise ValueError(f"decode: expected the batch axes of the cache, whose shape is {cached}, got {batch}")
  if masks.query_seq_lengths is not None or masks.key_value_seq_lengths is not None:
    raise ValueError("decode: expected no sequence lengths (the cache knows how far it is filled; use mask), got some")
  if masks.segment_ids is not None:
    raise ValueError("decode: expected no segment_ids (a cache holds one sequence; use mask), got some")
  if choice.kernel == "linear" and (masks.mask is not None or sow_weights):
    got = "sow_weights=True" if masks.mask is None else "a mask"
    raise ValueError(f"decode: expected neither mask nor sow_weights, as a state keeps no tokens apart, got {got}")


def extend(caches: Caches, key: jax.Array, value: jax.Array, axis: int) -> tuple[jax.Array, jax.Array, jax.Array]:
  """Writes one key and value at the index; returns all keys and values, and how many of them are valid.

  When the cache is full the last entry is overwritten: under jit there is no way to raise.
  """
  index = caches.index[...]
  for cache, new in ((caches.key, key), (caches.value, value)):
    cache[...] = jax.lax.dynamic_update_slice_in_dim(cache[...], new.astype(cache.dtype), index, axis)
  caches.index[...] = index + 1
  return caches.key[...], caches.value[...], index + 1


def recurrent_step(
  caches: Caches,
  choice: Mixing,
  query_B1NH: jax.Array,
  key: jax.Array,
  value_B1NH: jax.Array,
  components: Components,
  batch_shape: BatchShape,
) -> jax.Array:
  """One token of linear attention, [B, 1, N, H]; `components.log_prior` is [N, M], that of this token."""
  assert caches.peak is not None
  variables = (caches.value, caches.key, caches.peak)
  state = LinearState(*(folding.fold(variable[...], batch_shape) for variable in variables))
  heads, state = linear_state.mixture_linear_attention_step(
    state,
    query_B1NH,
    mixing.component_keys(choice, key, components.shift),
    value_B1NH,
    log_prior=components.log_prior,
    feature_map=choice.feature_map,
  )
  for variable, new in zip(variables, (state.kv, state.normaliser, state.peak), strict=True):
    variable[...] = folding.unfold(new, batch_shape)
  caches.index[...] += 1
  return heads
