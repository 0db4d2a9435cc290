"""Which positions of a batch of token sequences are there, from lengths, a mask, or padding ids."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

PADDING_ID = 0


class Padding(NamedTuple):
  """valid: bool [B, L]. lengths: int32 [B], past the last valid position. has_gaps: some before it may be invalid."""

  valid: jax.Array
  lengths: jax.Array
  has_gaps: bool

  def attention_mask(self, *, for_queries: bool) -> jax.Array | None:
    """The mask that is needed besides the lengths, or None: over keys, [B, 1, 1, L], or over pairs, [B, 1, L, L].

    Rows of invalid queries reach no valid position, so that keys are enough unless something counts the queries.
    """
    if not self.has_gaps:
      return None
    keys = self.valid[:, None, None, :]
    return keys & self.valid[:, None, :, None] if for_queries else keys


def check_length(tokens: jax.Array, max_len: int) -> None:
  """Raises ValueError unless `tokens` [B, L] have L <= max_len."""
  if tokens.shape[1] > max_len:
    raise ValueError(f"tokens: expected at most max_len={max_len} positions, got {tokens.shape[1]}")


def find(tokens: jax.Array, lengths: Any, mask: Any) -> Padding:
  """The padding of `tokens` [B, L]: by lengths [B], by a mask [B, L] (not zero = valid), or where the id is 0.

  Raises:
    ValueError: shapes that do not fit, or both lengths and a mask.
  """
  if tokens.ndim != 2:
    raise ValueError(f"tokens: expected shape [B, L], got {list(tokens.shape)}")
  if not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise TypeError(f"tokens: expected integer ids, got {tokens.dtype}")
  B, L = tokens.shape
  if lengths is not None and mask is not None:
    raise ValueError("expected lengths or mask, got both")
  if lengths is not None:
    lengths = jnp.asarray(lengths, jnp.int32)
    if lengths.shape != (B,):
      raise ValueError(f"lengths: expected shape [B] = [{B}], got {list(lengths.shape)}")
    return Padding(jnp.arange(L) < lengths[:, None], lengths, has_gaps=False)
  valid = tokens != PADDING_ID if mask is None else jnp.asarray(mask).astype(bool)
  if valid.shape != (B, L):
    raise ValueError(f"mask: expected shape [B, L] = [{B}, {L}], got {list(valid.shape)}")
  lengths = jnp.max(jnp.where(valid, jnp.arange(1, L + 1), 0), axis=1)
  return Padding(valid, lengths.astype(jnp.int32), has_gaps=True)


def join(
  tokens1: jax.Array, tokens2: jax.Array, lengths1: Any, lengths2: Any, mask1: Any, mask2: Any
) -> tuple[jax.Array, jax.Array | None, jax.Array | None]:
  """Two batches [B, L1] and [B, L2] as one of 2·B with the longer length: tokens, and lengths or else a mask.

  Raises:
    ValueError: batches of different sizes, or what `find` raises.
  """
  if tokens1.shape[0] != tokens2.shape[0]:
    raise ValueError(f"tokens2: expected as many sequences as tokens1, {tokens1.shape[0]}, got {tokens2.shape[0]}")
  first, second = find(tokens1, lengths1, mask1), find(tokens2, lengths2, mask2)
  length = max(tokens1.shape[1], tokens2.shape[1])

  def concatenate(*arrays: jax.Array) -> jax.Array:
    return jnp.concatenate([jnp.pad(x, ((0, 0), (0, length - x.shape[1]))) for x in arrays])

  tokens = concatenate(tokens1, tokens2)
  if first.has_gaps or second.has_gaps:
    return tokens, None, concatenate(first.valid, second.valid)
  return tokens, jnp.concatenate([first.lengths, second.lengths]), None
