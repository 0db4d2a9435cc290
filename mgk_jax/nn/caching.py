"""The caches of attention as variables of its module, as in nnx.MultiHeadAttention."""

import abc
import math
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Shape

from mgk_jax.kernels.linear_state import LinearState
from mgk_jax.nn import folding
from mgk_jax.nn.decoding import Cache, KeyValueCache, RecurrentCache
from mgk_jax.nn.folding import BatchShape


class Caching(nnx.Module):
  """A module with a cache in its variables, all None before `init_cache`.

  `cached_key`, `cached_value` and `cache_index` are the parts of a `KeyValueCache` with the batch axes of the inputs;
  in linear attention key, value and `cached_peak` are those of a `LinearState`: normaliser, kv and peak.
  """

  in_features: int
  dtype: Dtype | None
  deterministic: bool | None
  decode: bool | None
  cached_key: nnx.Cache | None
  cached_value: nnx.Cache | None
  cached_peak: nnx.Cache | None
  cache_index: nnx.Cache | None

  @abc.abstractmethod
  def make_cache(self, batch_size: int, size: int, dtype: Dtype | None = None) -> Cache:
    """An empty cache."""

  def init_cache(self, input_shape: Shape, dtype: Dtype = jnp.float32) -> None:
    """Prepares decoding of inputs [batch..., max_length, features], from the first token on.

    Gaussian and softmax kernels cache keys [batch..., max_length, kv_heads, (M,) head_dim] and values, of the last
    max_length tokens. kernel="linear" keeps a state whose size does not depend on the length.
    """
    *batch, length, _ = input_shape
    cache = self.make_cache(math.prod(batch), length, dtype)
    key, value, peak = (None if x is None else nnx.Cache(folding.unfold(x, tuple(batch))) for x in _parts(cache))
    self.cached_key, self.cached_value, self.cached_peak = key, value, peak
    self.cache_index = nnx.Cache(cache.index)

  def read_cache(self, batch_shape: BatchShape) -> Cache:
    """The cache with one batch axis; ValueError when there is none, or one of another batch."""
    if self.cached_key is None or self.cached_value is None or self.cache_index is None:
      raise ValueError("decode: expected an initialised cache, got none; call init_cache(input_shape) first")
    if self.cached_key.shape[: len(batch_shape)] != batch_shape:
      cached, batch = list(self.cached_key.shape), list(batch_shape)
      raise ValueError(f"decode: expected the batch axes of the cache, whose shape is {cached}, got {batch}")
    key, value = (folding.fold(x[...], batch_shape) for x in (self.cached_key, self.cached_value))
    if self.cached_peak is None:
      return KeyValueCache(key, value, self.cache_index[...])
    state = LinearState(kv=value, normaliser=key, peak=folding.fold(self.cached_peak[...], batch_shape))
    return RecurrentCache(state, self.cache_index[...])

  def write_cache(self, cache: Cache, batch_shape: BatchShape) -> None:
    """Puts the contents of a cache into the variables."""
    assert self.cache_index is not None
    self.cache_index[...] = cache.index
    for variable, x in zip((self.cached_key, self.cached_value, self.cached_peak), _parts(cache), strict=True):
      if variable is not None:
        variable[...] = folding.unfold(x, batch_shape)

  def set_view(
    self,
    deterministic: bool | None = None,
    decode: bool | None = None,
    batch_size: int | Shape | None = None,
    max_length: int | None = None,
  ) -> None:
    """Used by `nnx.view`.

    Args:
      deterministic: False for training.
      decode: whether to decode with a cache, which is made if there is none.
      batch_size: batch shape of that cache.
      max_length: length of that cache.
    """
    if deterministic is not None:
      self.deterministic = deterministic
    if decode is not None:
      self.decode = decode
    if decode and self.cached_key is None:
      if batch_size is None or max_length is None:
        raise TypeError(f"decode: expected batch_size and max_length of a cache, got {batch_size} and {max_length}")
      batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
      self.init_cache((*batch, max_length, self.in_features), self.dtype or jnp.float32)


def _parts(cache: Cache) -> tuple[Any, Any, Any]:
  if isinstance(cache, KeyValueCache):
    return cache.key, cache.value, None
  return cache.state.normaliser, cache.state.kv, cache.state.peak
