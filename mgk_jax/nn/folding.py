"""Any number of leading batch axes, as in nnx.MultiHeadAttention, folded into the one that the kernels have."""

import math
from typing import Any

import jax
import jax.numpy as jnp

BatchShape = tuple[int, ...]


def fold(x: jax.Array, batch_shape: BatchShape) -> jax.Array:
  """[batch..., rest] as [B, rest]; without batch axes B = 1."""
  return x.reshape(math.prod(batch_shape), *x.shape[len(batch_shape) :])


def unfold(x: jax.Array, batch_shape: BatchShape) -> jax.Array:
  """The inverse of `fold`."""
  return x.reshape(*batch_shape, *x.shape[1:])


def fold_mask(mask: Any, batch_shape: BatchShape) -> jax.Array | None:
  """A mask broadcastable to [batch..., heads, q, k] as a boolean one broadcastable to [B, heads, q, k].

  Flax makes masks of numbers, so any dtype will do; what is not zero attends. Batch axes that are all broadcast stay
  broadcast.
  """
  if mask is None:
    return None
  mask = jnp.asarray(mask).astype(bool)
  rank = len(batch_shape) + 3
  padded = (1,) * (rank - mask.ndim) + mask.shape
  lead, rest = padded[: len(batch_shape)], padded[len(batch_shape) :]
  if mask.ndim > rank or any(m not in (1, b) for m, b in zip(lead, batch_shape, strict=True)):
    batch = ", ".join(str(b) for b in batch_shape)
    raise ValueError(f"mask: expected a shape broadcastable to [{batch}, heads, q, k], got {list(mask.shape)}")
  if all(m == 1 for m in lead):
    return mask.reshape(1, *rest)
  return fold(jnp.broadcast_to(mask.reshape(padded), (*batch_shape, *rest)), batch_shape)


def fold_lengths(name: str, lengths: Any, batch_shape: BatchShape) -> jax.Array | None:
  """Lengths of shape [batch...] as [B]."""
  if lengths is None:
    return None
  lengths = jnp.asarray(lengths)
  if lengths.shape != batch_shape:
    raise ValueError(f"{name}: expected the batch shape {list(batch_shape)}, got {list(lengths.shape)}")
  return lengths.reshape(math.prod(batch_shape))


def fold_segments(segment_ids: Any, batch_shape: BatchShape) -> tuple[jax.Array, jax.Array] | None:
  """Segments of shape [batch..., length], for all or for queries and keys, as a pair of [B, length]."""
  if segment_ids is None:
    return None
  pair = [jnp.asarray(x) for x in (segment_ids if isinstance(segment_ids, tuple) else (segment_ids, segment_ids))]
  if len(pair) != 2 or any(x.shape[:-1] != batch_shape for x in pair):
    expected = f"[*{list(batch_shape)}, length], for queries and keys or one for both"
    raise ValueError(f"segment_ids: expected {expected}, got {[list(x.shape) for x in pair]}")
  first, second = (x.reshape(math.prod(batch_shape), -1) for x in pair)
  return first, second


def inputs(
  inputs_q: jax.Array, inputs_k: jax.Array | None, inputs_v: jax.Array | None, features: int, kv_features: int
) -> tuple[jax.Array, jax.Array]:
  """The inputs of keys and values: by default those of queries and keys.

  Raises:
    ValueError: inputs_v without inputs_k, or an input whose shape is not [batch..., length, features].
  """
  if inputs_k is None and inputs_v is not None:
    raise ValueError("inputs_v is given: expected inputs_k too (pass what they share as inputs_k), got inputs_k=None")
  inputs_k = inputs_q if inputs_k is None else inputs_k
  inputs_v = inputs_k if inputs_v is None else inputs_v
  _check_input("inputs_q", inputs_q, inputs_q.shape[:-2], features)
  _check_input("inputs_k", inputs_k, inputs_q.shape[:-2], kv_features)
  _check_input("inputs_v", inputs_v, inputs_q.shape[:-2], kv_features)
  if inputs_k.shape[-2] != inputs_v.shape[-2]:
    raise ValueError(f"inputs_v: expected the length of inputs_k, {inputs_k.shape[-2]}, got {inputs_v.shape[-2]}")
  return inputs_k, inputs_v


def _check_input(name: str, x: jax.Array, batch_shape: BatchShape, features: int) -> None:
  if x.ndim < 2 or x.shape[:-2] != batch_shape or x.shape[-1] != features:
    batch = "".join(f"{b}, " for b in batch_shape)
    raise ValueError(f"{name}: expected shape [{batch}length, {features}], got {list(x.shape)}")


def repeat_heads(x: jax.Array, num_heads: int) -> jax.Array:
  """[B, S, K, …] as [B, S, num_heads, …]: query head n is served by key/value head n // (num_heads / K)."""
  return x if x.shape[2] == num_heads else jnp.repeat(x, num_heads // x.shape[2], axis=2)
