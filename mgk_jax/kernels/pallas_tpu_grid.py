"""The grid of a kernel for TPUs: which blocks of the operands a point of it sees, and the tile that it makes of them.

What belongs to a query is a row; what belongs to a key is a row in memory and turned into a column inside.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mgk_jax.kernels import tiles
from mgk_jax.kernels.flash import Operands, Plan
from mgk_jax.kernels.padding import fill_up

LANES = 128
OF_QUERIES = ("query", "row", "mask", "query_segment")  # operands whose last axis they are
BLOCK = 512


class Sizes(NamedTuple):
  """Sizes of the blocks and of the padded sequences."""

  query: int
  key: int
  padded_T: int
  padded_S: int


def sizes(plan: Plan) -> Sizes:
  """The blocks: of at most `BLOCK`, and whole rows of lanes."""
  query, key = (min(BLOCK, -(-length // LANES) * LANES) for length in (plan.T, plan.S))
  return Sizes(query, key, -(-plan.T // query) * query, -(-plan.S // key) * key)


@dataclasses.dataclass(frozen=True)
class Grid:
  """Which block of each operand a point (batch, head, …) of the grid sees, and whether it has anything to do.

  An index map gets the point and the two arrays of lengths.
  """

  plan: Plan
  size: Sizes
  names: tuple[str, ...]  # of the operands that there are
  query_axis: int
  key_axis: int

  def arrays(self, operands: Operands) -> list[jax.Array]:
    """The operands, padded to whole blocks."""
    padded = {
      name: fill_up(getattr(operands, name), self.size.query if name in OF_QUERIES else self.size.key)
      for name in self.names
      if name != "scale"
    }
    if "mask" in padded:
      padded["mask"] = fill_up(padded["mask"], self.size.key, axis=-2)
    return [padded.get(name, operands.scale) for name in self.names]

  def specs(self, operands: Operands) -> list[pl.BlockSpec]:
    """The blocks of `arrays`."""
    plan = self.plan
    columns = 1 if operands.column is None else operands.column.shape[2]
    specs = {
      "query": self.rows(plan.H),
      "key": self.columns(plan.K, plan.H),
      "value": self.columns(plan.V),
      "scale": pl.BlockSpec(memory_space=pltpu.SMEM),
      "row": self.rows(plan.M),
      "column": self.columns(columns),
      "mixing": self.columns(plan.M),
      "mask": self._mask(() if operands.mask is None else operands.mask.shape),
      "query_segment": self.rows(1, heads=False),
      "key_segment": self.columns(1, heads=False),
    }
    return [specs[name] for name in self.names]

  def rows(self, height: int, *, whole: bool | None = None, heads: bool = True) -> pl.BlockSpec:
    """Blocks [height, queries], or with `whole` all queries of a head; as an input those that are needed.

    Without `heads` all heads share them.
    """

    def index(*point: Any) -> tuple[Any, ...]:
      place = 0 if whole else point[self.query_axis] if whole is False else self._fetched_query(point)
      return point[0], point[1] if heads else 0, 0, place

    return pl.BlockSpec((None, None, height, self.size.padded_T if whole else self.size.query), index)

  def columns(self, *shape: int, fetch: bool = True, heads: bool = True) -> pl.BlockSpec:
    """Blocks [*shape, keys]; as an input (`fetch`) those that are needed."""

    def index(*point: Any) -> tuple[Any, ...]:
      place = self._fetched_key(point) if fetch else point[self.key_axis]
      return point[0], point[1] if heads else 0, *(0 for _ in shape), place

    return pl.BlockSpec((None, None, *shape, self.size.key), index)

  def _mask(self, shape: tuple[int, ...]) -> pl.BlockSpec:
    def index(*point: Any) -> tuple[Any, ...]:
      b, n = (place if size > 1 else 0 for place, size in zip(point, shape[:2], strict=False))
      return b, n, self._fetched_key(point), self._fetched_query(point)

    return pl.BlockSpec((None, None, self.size.key, self.size.query), index)

  def _fetched_query(self, point: Sequence[Any]) -> Any:
    """The block of queries to fetch: one that is there already, where this point has nothing to do."""
    if self.query_axis < self.key_axis:
      return point[self.query_axis]
    first = _divide(point[self.key_axis] * self.size.key, self.size.query) if self.plan.is_causal else 0
    last = _last_block(point[4][point[0]], self.size.query)
    return jnp.minimum(jnp.maximum(point[self.query_axis], first), jnp.maximum(last, first))

  def _fetched_key(self, point: Sequence[Any]) -> Any:
    last = _last_block(point[5][point[0]], self.size.key)
    if self.plan.is_causal and self.query_axis < self.key_axis:
      last = jnp.minimum(last, _divide((point[self.query_axis] + 1) * self.size.query - 1, self.size.key))
    return jnp.minimum(point[self.key_axis], last)

  def place(self) -> tuple[Any, Any, Any]:
    """The example, the block of queries and the block of keys of this point."""
    return pl.program_id(0), pl.program_id(self.query_axis), pl.program_id(self.key_axis)

  def has_work(self, i: Any, j: Any, query_length: Any, key_length: Any) -> Any:
    """Whether any pair of tile (i, j) may be allowed by the lengths and causality."""
    live = (i * self.size.query < query_length) & (j * self.size.key < key_length)
    return live & (j * self.size.key < (i + 1) * self.size.query) if self.plan.is_causal else live

  def tile(self, operands: Operands, i: Any, j: Any, key_length: Any) -> tuple[tiles.Tiles, tiles.Mixing | None]:
    """The scores of tile (i, j) and how they are mixed."""
    plan = self.plan
    query = operands.query[...]
    products = [dot(operands.key[c], query, (0, 0)) * operands.scale[0, 0, c] for c in range(plan.K)]
    key_index = j * self.size.key + lax.broadcasted_iota(jnp.int32, (self.size.key, 1), 0)
    column = [jnp.where(key_index < key_length, 0.0, -jnp.inf)]
    if operands.column is not None:
      column = [x + column[0] for x in _as_columns(operands.column)]
    row = None if operands.row is None else [operands.row[r : r + 1, :] for r in range(plan.M)]
    mixing: tiles.Mixing | None = None
    if plan.mixing is not None:
      assert row is not None
      kind = tiles.Factors if plan.mixing == "factors" else tiles.Maxima
      mixing, row = kind(row, _as_columns(operands.mixing)), None
    allowed = None if operands.mask is None else operands.mask[...] != 0
    if operands.query_segment is not None:
      same = _as_columns(operands.key_segment)[0] == operands.query_segment[...]
      allowed = same if allowed is None else allowed & same
    if plan.is_causal:
      query_index = i * self.size.query + lax.broadcasted_iota(jnp.int32, (1, self.size.query), 1)
      below = key_index <= query_index
      allowed = below if allowed is None else allowed & below
    if isinstance(mixing, tiles.Maxima):
      products = [product + mixing.top() for product in products]
    return tiles.scores(products, row, column, allowed), mixing


def dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int]) -> jax.Array:
  """The product over one axis of each, in float32; that of float32 inputs exact to it."""
  precision = lax.Precision.HIGHEST if a.dtype == jnp.float32 else None
  dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
  return lax.dot_general(a, b, dimensions, precision=precision, preferred_element_type=jnp.float32)


def _as_columns(ref: Any) -> list[jax.Array]:
  """Rows [count, keys] as columns [keys, 1]."""
  columns = ref[...].T
  return [columns[:, r : r + 1] for r in range(ref.shape[0])]


def _last_block(length: Any, size: int) -> Any:
  """The block with the last of so many positions; the first, if there are none."""
  return jnp.maximum(_divide(length + size - 1, size) - 1, 0)


def _divide(x: Any, by: int) -> Any:
  """x // by for x >= 0: Python's division asks for the sign, which Mosaic has no rule for without a TPU."""
  return lax.div(x, jnp.int32(by))
