"""Which query may attend to which key: a boolean mask, causality, sequence lengths and segments in one value."""

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from mgk_jax.kernels.checks import Dims


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Masking:
  """All that restricts attention. A pair (i, j) is allowed where every part that is given allows it.

  Attributes:
    mask: boolean, [B|1, N|1, T|1, S|1], True = attend.
    query_lengths: int32 [B]; queries at or past it attend to nothing, so that their output is zero.
    key_lengths: int32 [B]; keys at or past it are attended by nobody.
    query_segments: int32 [B, T]; a query sees the keys of its own segment only.
    key_segments: int32 [B, S]; given if and only if the former are.
    is_causal: query i sees keys j <= i.
  """

  mask: jax.Array | None
  query_lengths: jax.Array | None
  key_lengths: jax.Array | None
  query_segments: jax.Array | None
  key_segments: jax.Array | None
  is_causal: bool = dataclasses.field(metadata={"static": True})

  def key_part(self, dims: Dims) -> jax.Array | None:
    """What does not depend on the query: boolean [B|1, N|1, S], or None when every key is allowed."""
    parts = []
    if self.mask is not None and self.mask.shape[2] == 1:
      parts.append(self.mask[:, :, 0, :])
    if self.key_lengths is not None:
      parts.append((jnp.arange(dims.S) < self.key_lengths[:, None])[:, None, :])
    return _conjunction(parts)

  def pair_part(self) -> jax.Array | None:
    """The boolean mask if it depends on the query: [B|1, N|1, T, S|1]; else None."""
    return self.mask if self.mask is not None and self.mask.shape[2] > 1 else None

  def dense(self, dims: Dims) -> jax.Array | None:
    """The whole as one boolean array broadcastable to [B, N, T, S]; None when everything is allowed. O(T·S) memory."""
    parts = []
    key_part, pair_part = self.key_part(dims), self.pair_part()
    if key_part is not None:
      parts.append(key_part[:, :, None, :])
    if pair_part is not None:
      parts.append(pair_part)
    if self.query_lengths is not None:
      parts.append((jnp.arange(dims.T) < self.query_lengths[:, None])[:, None, :, None])
    if self.query_segments is not None and self.key_segments is not None:
      parts.append((self.query_segments[:, :, None] == self.key_segments[:, None, :])[:, None])
    if self.is_causal:
      parts.append(jnp.tril(jnp.ones((dims.T, dims.S), bool))[None, None])
    return _conjunction(parts)


def _conjunction(parts: list[jax.Array]) -> jax.Array | None:
  if not parts:
    return None
  result = parts[0]
  for part in parts[1:]:
    result = result & part
  return result


def make(
  mask: Any, is_causal: bool, query_lengths: Any, key_lengths: Any, dims: Dims, segment_ids: Any = None
) -> Masking:
  """Checks the caller's arguments and gathers them in a `Masking`."""
  if not isinstance(is_causal, bool | np.bool_):
    raise TypeError(f"is_causal: expected a Python bool (it is static), got {type(is_causal).__name__}")
  if segment_ids is None:
    query_segments = key_segments = None
  else:
    ids = segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids)
    if len(ids) != 2:
      raise ValueError(f"segment_ids: expected an array, or a pair for queries and keys, got {len(ids)} arrays")
    query_segments = _check_integers("segment_ids", ids[0], {"B": dims.B, "T": dims.T})
    key_segments = _check_integers("segment_ids", ids[1], {"B": dims.B, "S": dims.S})
  return Masking(
    mask=_check_mask(mask, dims),
    query_lengths=_check_integers("query_seq_lengths", query_lengths, {"B": dims.B}),
    key_lengths=_check_integers("key_value_seq_lengths", key_lengths, {"B": dims.B}),
    query_segments=query_segments,
    key_segments=key_segments,
    is_causal=bool(is_causal),
  )


def _check_mask(mask: Any, dims: Dims) -> jax.Array | None:
  if mask is None:
    return None
  if not isinstance(mask, jax.Array | np.ndarray):
    raise TypeError(f"mask: expected a boolean array, got {type(mask).__name__}")
  if mask.dtype != np.bool_:
    raise TypeError(f"mask: expected dtype bool (True = attend), got {mask.dtype}")
  full = (dims.B, dims.N, dims.T, dims.S)
  padded = (1,) * (4 - mask.ndim) + mask.shape
  if mask.ndim > 4 or any(m not in (1, f) for m, f in zip(padded, full, strict=True)):
    raise ValueError(f"mask: expected a shape broadcastable to [B, N, T, S] = {list(full)}, got {list(mask.shape)}")
  return jnp.asarray(mask).reshape(padded)


def _check_integers(name: str, given: Any, sizes: Mapping[str, int]) -> jax.Array | None:
  if given is None:
    return None
  try:
    array = jnp.asarray(given)
  except (TypeError, ValueError) as error:
    raise TypeError(f"{name}: expected an array of integers, got {type(given).__name__}") from error
  if not jnp.issubdtype(array.dtype, jnp.integer):
    raise TypeError(f"{name}: expected integers, got {array.dtype}")
  if array.shape != tuple(sizes.values()):
    raise ValueError(f"{name}: expected shape [{', '.join(sizes)}] = {list(sizes.values())}, got {list(array.shape)}")
  return array.astype(jnp.int32)
