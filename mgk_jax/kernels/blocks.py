"""Heads cut into blocks of queries and keys, of which only those are visited that hold anything."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels import dropout as dropout_lib, lanes, tiles
from mgk_jax.kernels.heads import over_heads, vary_alike
from mgk_jax.kernels.lanes import Keeper, Loop
from mgk_jax.kernels.limits import Limits, Options
from mgk_jax.kernels.operands import Operands


class Place(NamedTuple):
  """Where a tile is: a block of queries by a block of keys of one head, and whether causality cuts through it."""

  example: jax.Array
  head: jax.Array
  query_block: jax.Array
  key_block: jax.Array
  own: jax.Array  # number among the heads of its lane
  lane_size: int  # how many heads those are
  is_cut: bool


class Ranges(NamedTuple):
  """Which tiles are visited: for each outer block (of queries or of keys) a range of inner ones."""

  begin: jax.Array  # [heads, outer blocks]
  end: jax.Array
  inner_blocks: int
  is_full: bool  # whether these are all tiles
  is_cut: bool  # whether causality cuts through them


class Start(NamedTuple):
  """What a loop over tiles starts with, for each head."""

  shape: tuple[int, ...]
  fill: float = 0


def map_heads(kernel: Callable[..., Any], options: Options, operands: tuple[Any, ...]) -> Any:
  """`kernel` on all heads of a device, in the factored form where that is safe for all of them, else with all scores.

  Args:
    kernel: takes `Heads` and the operands that are not part of them.
    options: of all heads.
    operands: those of the tiles, anything, limits, what `can_factor` says, and anything; with axes [B or 1, N or 1].
  """

  def run(use_factors: bool, operands: tuple[Any, ...]) -> Any:
    own, first, limits, _, *rest = operands
    return kernel(Heads(own, limits, options, factored=use_factors), first, *rest)

  def local(operands: tuple[Any, ...]) -> Any:
    factored = operands[3]
    if factored is None:
      return run(False, operands)
    # Once for all heads: a choice for each of them would copy its operands and results.
    return lax.cond(jnp.all(factored), functools.partial(run, True), functools.partial(run, False), operands)

  return over_heads(local, operands)


class Heads:
  """The operands of all heads that a device holds, and their tiles.

  Arrays have leading axes [B, N], or those that they are given, of which size 1 is broadcast.

  Attributes:
    form: the sizes.
    query_HT, key: as in `Operands`.
    row: what is to add for each query: M arrays [T'], or None.
    column: what is to add for each key, −inf if it is not allowed: M arrays or one for all, [S'], or None.
    mixing: how components that share the product are mixed, or None; it takes the place of `row` and of what differs
      between the components in `column`.
  """

  def __init__(self, operands: Operands, limits: Limits, options: Options, *, factored: bool = False):
    self.options, self.limits, self.form = options, limits, operands.form
    self.B, self.N = operands.query_HT.shape[:2]
    self.query_HT, self.key, self.dtype = operands.query_HT, operands.key, operands.query_HT.dtype
    row, column, bias = (None if x is None else _apart(x) for x in (operands.row, operands.column, operands.bias))
    self.mixing: tiles.Mixing | None = None
    if factored:
      assert row is not None and column is not None
      if options.estep == "hard":
        self.mixing = tiles.Maxima(row, column)
      else:
        self.mixing = tiles.Factors([jnp.exp2(x) for x in row], [jnp.exp2(x) for x in column])
      row = column = None
    self.row = row
    self.column = bias if column is None else column if bias is None else [x + bias[0] for x in column]

    segments = limits.query_segments, limits.key_segments
    self.segments = None
    if segments[0] is not None and segments[1] is not None:
      self.segments = self.form.pad_rows(segments[0]), self.form.pad_columns(segments[1])
    mask, rows, columns = limits.pair_mask, limits.dropout_rows, limits.dropout_columns
    if mask is not None:
      mask = self.form.pad_rows(mask, -2)
      mask = mask if mask.shape[-1] == 1 else self.form.pad_columns(mask)
    self.pair_mask = mask
    self.dropped = None
    if rows is not None and columns is not None:
      self.dropped = self.form.pad_rows(rows), self.form.pad_columns(columns)

  def visit(self, step: Callable[[Place, Any, Keeper], Any], state: Any, *, by_queries: bool) -> Any:
    """The state after `step(place, state, keep)` for all tiles that hold anything, all of a block one after the other.

    Args:
      step: one tile.
      state: a tree of `Start`.
      by_queries: whether it is the tiles of a block of queries that follow each other, or those of a block of keys.

    Returns:
      For each `Start` an array [B, N, *shape].
    """
    count = self.B * self.N
    if not count:
      return _map_starts(lambda start: jnp.zeros((self.B, self.N, *start.shape), self.dtype), state)
    num_lanes = lanes.num_lanes(count, count * self.form.padded_T * self.form.padded_S)
    parts = list(itertools.pairwise(count * i // num_lanes for i in range(num_lanes + 1)))
    ranges = self._ranges(by_queries=by_queries)

    def start(first: int, last: int) -> Any:
      def full(start: Start) -> jax.Array:
        own, *rest = start.shape
        return vary_alike((jnp.full(((last - first) * own, *rest), start.fill, self.dtype), self.query_HT))[0]

      return _map_starts(full, state)

    def loop(ranges: Ranges, first: int, last: int) -> Loop:
      return self._loop(step, ranges, first, last, by_queries=by_queries)

    loops = [[loop(kind, *ends) for kind in ranges] for ends in parts]
    # Numbers of their own for both passes, which often are parts of one program.
    results = lanes.run(loops, [start(*ends) for ends in parts], first_fill=0 if by_queries else 0.5)
    return _map_starts(lambda start, *x: jnp.concatenate(x).reshape(self.B, self.N, *start.shape), state, *results)

  def _loop(
    self, step: Callable[[Place, Any, Keeper], Any], ranges: Ranges, first: int, last: int, *, by_queries: bool
  ) -> Loop:
    """The loop over the tiles of some heads. It counts outer blocks, and in the lowest bits inner ones."""
    begin, end = ranges.begin[first:last], ranges.end[first:last]
    outer = jnp.arange(begin.size) if ranges.is_full else jnp.flatnonzero(begin < end, size=begin.size)
    own, block = jnp.unravel_index(outer, begin.shape)
    # What a step would have to divide for is looked up: XLA:CPU divides in memory that lanes share.
    tables = [(first + own) // self.N, (first + own) % self.N, own, block, begin[own, block], end[own, block]]
    shift = (ranges.inner_blocks - 1).bit_length()

    def look_up(number: int, at: jax.Array) -> jax.Array:
      table = tables[number].astype(jnp.int32)
      return lax.dynamic_index_in_dim(table, at, keepdims=False, allow_negative_indices=False)

    def one(count: jax.Array, state: Any, keep: Keeper) -> Any:
      example, head, own, outer = (look_up(number, count >> shift) for number in range(4))
      inner = count & ((1 << shift) - 1)
      query_block, key_block = (outer, inner) if by_queries else (inner, outer)
      return step(Place(example, head, query_block, key_block, own, last - first, ranges.is_cut), state, keep)

    def advance(count: jax.Array) -> jax.Array:
      after = (count >> shift) + 1
      is_last = (count & ((1 << shift) - 1)) + 1 >= look_up(5, count >> shift)
      return jnp.where(is_last, (after << shift) + look_up(4, after), count + 1)

    return Loop(jnp.sum(begin < end) << shift, one, tables[4][0], advance)

  def _ranges(self, *, by_queries: bool) -> list[Ranges]:
    """The tiles that hold anything: those that causality cuts, if it does, and those that it does not."""
    blocks_T, blocks_S = self.form.padded_T // self.form.query_size, self.form.padded_S // self.form.key_size
    Q = self._filled(self.limits.query_length, self.form.query_size, blocks_T)
    K = self._filled(self.limits.key_length, self.form.key_size, blocks_S)
    ratio = self.form.key_size // self.form.query_size
    is_full = not self.options.is_causal and self.limits.query_length is None and self.limits.key_length is None
    outer, filled, inner_filled, inner_blocks = (
      (jnp.arange(blocks_T), Q, K, blocks_S) if by_queries else (jnp.arange(blocks_S), K, Q, blocks_T)
    )  # fmt: skip
    first = outer // ratio if by_queries else outer * ratio  # of those that causality cuts
    last = first + (1 if by_queries else ratio)

    def ranges(begin: jax.Array | int, end: jax.Array | int, *, is_cut: bool = False) -> Ranges:
      end = jnp.where(outer < filled, jnp.minimum(end, inner_filled), 0)
      return Ranges(jnp.broadcast_to(jnp.int32(begin), end.shape), end, inner_blocks, is_full, is_cut)

    if not self.options.is_causal:
      return [ranges(0, inner_blocks)]
    cut, whole = ranges(first, last, is_cut=True), ranges(0, first) if by_queries else ranges(last, inner_blocks)
    return [cut] if blocks_T <= ratio else [cut, whole]

  def _filled(self, length: jax.Array | None, size: int, blocks: int) -> jax.Array:
    """How many blocks of each head hold anything, [heads, 1]."""
    filled = jnp.int32(blocks) if length is None else jnp.minimum(-(-length.astype(jnp.int32) // size), blocks)
    return jnp.broadcast_to(filled, (self.B, self.N)).reshape(-1, 1)

  def _of_head(self, x: jax.Array, place: Place, blocks: Mapping[int, tuple[jax.Array, int]]) -> jax.Array:
    """`x`[b, n] of a tile's head, and of the axes (from the last) in `blocks` the block of that number and size."""
    own = [index if size > 1 else jnp.int32(0) for index, size in zip(place[:2], x.shape, strict=False)]
    starts, sizes = [*own, *[jnp.int32(0)] * (x.ndim - 2)], [1, 1, *x.shape[2:]]
    for axis, (number, size) in blocks.items():
      starts[axis], sizes[axis] = number * size, size
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)[0, 0]

  def rows(self, x: jax.Array, place: Place, axis: int = -1) -> jax.Array:
    """The queries of a tile from an array that has the padded queries along `axis`."""
    return self._of_head(x, place, {axis: (place.query_block, self.form.query_size)})

  def queries(self, place: Place) -> jax.Array:
    """The queries of a tile, [H, queries]."""
    axes = {-2: (jnp.int32(0), self.form.H), -1: (place.query_block, self.form.query_size)}
    return self._of_head(self.query_HT, place, axes)

  def columns(self, x: jax.Array, place: Place, axis: int = -1) -> jax.Array:
    """The keys of a tile from an array that has the padded keys along `axis`."""
    return self._of_head(x, place, {axis: (place.key_block, self.form.key_size)})

  def block(self, x: jax.Array, place: Place) -> jax.Array:
    """The part of a tile's key block from an array that has the parts of all key blocks along its third axis."""
    size = x.shape[2] * self.form.key_size // self.form.padded_S
    return self._of_head(x, place, {2 - x.ndim: (place.key_block, size)})

  def rows_so_far(self, x: jax.Array, place: Place) -> jax.Array:
    """The queries of a tile from a state that has them as its last axis."""
    return lax.dynamic_slice(x, *self._rows_of_state(x, place), allow_negative_indices=False)

  def set_rows(self, x: jax.Array, place: Place, update: jax.Array) -> jax.Array:
    """A state that has the queries as its last axis, with those of a tile replaced."""
    return lax.dynamic_update_slice(x, update, self._rows_of_state(x, place)[0], allow_negative_indices=False)

  def add_rows(self, x: jax.Array, place: Place, update: jax.Array) -> jax.Array:
    """A state that has the queries as its last axis, with `update` added to those of a tile."""
    return self.set_rows(x, place, self.rows_so_far(x, place) + update)

  def add_block(self, x: jax.Array, place: Place, update: jax.Array) -> jax.Array:
    """A state that has the parts of all key blocks along its first axis, with `update` added to that of a tile's."""
    first = (place.own * (self.form.padded_S // self.form.key_size) + place.key_block) * len(update)
    present = lax.dynamic_slice_in_dim(x, first, len(update), allow_negative_indices=False)
    return lax.dynamic_update_slice_in_dim(x, present + update, first, 0, allow_negative_indices=False)

  def _rows_of_state(self, x: jax.Array, place: Place) -> tuple[list[jax.Array], list[int]]:
    """Where the queries of a tile begin in a state, and their shape. The heads of a lane lie along the first axis."""
    size = len(x) // place.lane_size
    return [place.own * size, place.query_block * self.form.query_size], [size, self.form.query_size]

  def allowed(self, place: Place) -> jax.Array | None:
    """What mask and segments, and in a tile that it cuts causality, allow in a tile, [keys, queries]; None if all."""
    restrictions = []
    if self.pair_mask is not None:
      axes = {-2: (place.query_block, self.form.query_size), -1: (place.key_block, self.form.key_size)}
      if self.pair_mask.shape[-1] == 1:
        del axes[-1]
      restrictions.append(self._of_head(self.pair_mask, place, axes).T)
    if self.segments is not None:
      query_segments, key_segments = self.segments
      restrictions.append(self.columns(key_segments, place)[:, None] == self.rows(query_segments, place))
    if place.is_cut:
      query_index = place.query_block * self.form.query_size + jnp.arange(self.form.query_size)
      key_index = place.key_block * self.form.key_size + jnp.arange(self.form.key_size)
      restrictions.append(key_index[:, None] <= query_index)
    return functools.reduce(jnp.logical_and, restrictions) if restrictions else None

  def scores(self, place: Place, keep: Keeper, *, allowed: jax.Array | None, keep_sums: bool = False) -> tiles.Tiles:
    """The scores of a tile, a tile per component, or a single one if there is a mixing.

    With `keep_sums` these are kept where they are more than a product, which is worth it where XLA writes them.
    """
    product = keep(keep(self.block(self.key, place)) @ keep(self.rows(self.query_HT, place)))
    row = None if self.row is None else [self.rows(x, place) for x in self.row]
    column = None if self.column is None else [self.columns(x, place) for x in self.column]
    apart = [product] if self.form.products == 1 else product.reshape(self.form.products, -1, self.form.query_size)
    if row is None and column is None and allowed is None:
      return apart
    scores = tiles.scores(apart, row, column, allowed)
    return jax.tree.map(keep, scores) if keep_sums else scores

  def tile_mixing(self, place: Place) -> tiles.Mixing | None:
    """The part of the mixing that belongs to a tile, or None."""
    if self.mixing is None:
      return None
    rows = [self.rows(x, place) for x in self.mixing.row]
    return type(self.mixing)(rows, [self.columns(x, place) for x in self.mixing.column])

  def dropout(self, place: Place) -> jax.Array | None:
    """What dropout multiplies a tile's weights with, [keys, queries], or None."""
    if self.dropped is None:
      return None
    rows, columns = self.rows(self.dropped[0], place), self.columns(self.dropped[1], place)
    return dropout_lib.multiplier(rows[None, :], columns[:, None], self.options.dropout_rate, self.dtype)

  def attending(self, x: jax.Array, otherwise: float) -> jax.Array:
    """An array [B, N, T'] of one number per query with `otherwise` past the query lengths."""
    if self.limits.query_length is None:
      return x
    return jnp.where(jnp.arange(x.shape[-1]) < self.limits.query_length[..., None], x, otherwise)


def _apart(x: jax.Array) -> list[jax.Array]:
  """The components of [B, N, M, L]: XLA:CPU does not vectorise a loop over a tile that reads several rows of one."""
  return [x[:, :, r] for r in range(x.shape[2])]


def _map_starts(function: Callable[..., jax.Array], *trees: Any) -> Any:
  return jax.tree.map(function, *trees, is_leaf=lambda x: isinstance(x, Start))
