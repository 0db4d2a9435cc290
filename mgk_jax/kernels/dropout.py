"""Attention dropout as a function of the pair (query i, key j), so that no mask is ever stored.

The keep decision for (i, j) hashes one random word of row i with one of column j. Whoever computes a tile of
the attention matrix, in whatever block shape, order or orientation, on whatever device, gets the same decisions:
forward and backward agree, and so do all implementations. The memory is that of the words: O(T + S) per head.
"""

import dataclasses

import jax
import jax.numpy as jnp

from mgk_jax.kernels.checks import Dims


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Dropout:
  """Random words of rows, uint32 [B, N, T], and columns, uint32 [B, N, S], with the static rate in (0, 1)."""

  rows: jax.Array
  columns: jax.Array
  rate: float = dataclasses.field(metadata={"static": True})


def make(rate: float, rng: jax.Array | None, dims: Dims, *, broadcast: bool = False) -> Dropout | None:
  """The dropout of one call, or None at rate 0; `broadcast` shares it between examples and heads."""
  if rate == 0.0 or rng is None:
    return None
  row_rng, column_rng = jax.random.split(rng)
  B, N = (1, 1) if broadcast else (dims.B, dims.N)
  rows = jax.random.bits(row_rng, (B, N, dims.T), jnp.uint32)
  columns = jax.random.bits(column_rng, (B, N, dims.S), jnp.uint32)
  return Dropout(
    jnp.broadcast_to(rows, (dims.B, dims.N, dims.T)), jnp.broadcast_to(columns, (dims.B, dims.N, dims.S)), rate
  )


def multiplier(rows: jax.Array, columns: jax.Array, rate: float, dtype: jnp.dtype) -> jax.Array:
  """0 where a pair is dropped and 1/(1 - rate) where it is kept; `rows` and `columns` broadcast against each other."""
  threshold = jnp.uint32(min(round(rate * 2**32), 2**32 - 1))
  return jnp.where(_mix(rows + columns) >= threshold, jnp.asarray(1.0 / (1.0 - rate), dtype), jnp.zeros((), dtype))


def _mix(word: jax.Array) -> jax.Array:
  """A bijection of 32-bit words in which every input bit changes every output bit with probability near 1/2."""
  word = (word ^ (word >> 16)) * jnp.uint32(0x7FEB352D)
  word = (word ^ (word >> 15)) * jnp.uint32(0x846CA68B)
  return word ^ (word >> 16)
