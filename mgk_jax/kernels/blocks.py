"""Heads cut into blocks of queries and keys, of which only those are visited that hold anything."""

import functools
import itertools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
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
  query_number: jax.Array  # of the block among all those of the heads of its lane
  key_number: jax.Array
  is_cut: bool


class Ranges(NamedTuple):
  """Which tiles are visited: for each outer block (of queries or of keys) a range of inner ones."""

  begin: jax.Array | np.ndarray  # [heads, outer blocks]
  end: jax.Array | np.ndarray
  inner_blocks: int
  is_cut: bool  # whether causality cuts through them


class Start(NamedTuple):
  """What a loop over tiles starts with for each block of queries of each head, or for each of keys."""

  shape: tuple[int, ...]
  fill: float = 0
  of_keys: bool = False


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
    query, key: as in `Operands`.
    row: what is to add for each query: M arrays [T'], or None.
    column: what is to add for each key, −inf if it is not allowed: M arrays or one for all, [S'], or None.
    mixing: how components that share the product are mixed, or None; it takes the place of `row` and of what differs
      between the components in `column`.
  """

  def __init__(self, operands: Operands, limits: Limits, options: Options, *, factored: bool = False):
    self.options, self.limits, self.form = options, limits, operands.form
    self.B, self.N = operands.query.shape[:2]
    self.query, self.key, self.dtype = operands.query, operands.key, operands.query.dtype
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
      For each `Start` an array [B, N, blocks, *shape].
    """
    count = self.B * self.N
    if not count:
      return _map_starts(lambda start: jnp.zeros(self._shape_of_results(start), self.dtype), state)
    pairs = count * self.form.padded_T * self.form.padded_S
    num_lanes = lanes.num_lanes(count, pairs)
    parts = list(itertools.pairwise(count * i // num_lanes for i in range(num_lanes + 1)))
    ranges = self._ranges(by_queries=by_queries)

    def start(first: int, last: int) -> Any:
      def full(start: Start) -> jax.Array:
        shape = (last - first) * self._num_blocks(of_keys=start.of_keys), *start.shape
        return vary_alike((jnp.full(shape, start.fill, self.dtype), self.query))[0]

      return _map_starts(full, state)

    def loop(ranges: Ranges, first: int, last: int) -> Loop:
      return self._loop(step, ranges, first, last, by_queries=by_queries)

    loops = [[loop(kind, *ends) for kind in ranges] for ends in parts]
    # Numbers of their own for both passes, which often are parts of one program.
    starts = [start(*ends) for ends in parts]
    results = lanes.run(loops, starts, first_fill=0 if by_queries else 0.5, is_long=pairs >= lanes.LONG)
    return _map_starts(lambda start, *x: jnp.concatenate(x).reshape(self._shape_of_results(start)), state, *results)

  def _num_blocks(self, *, of_keys: bool) -> int:
    form = self.form
    return form.padded_S // form.key_size if of_keys else form.padded_T // form.query_size

  def _shape_of_results(self, start: Start) -> tuple[int, ...]:
    return self.B, self.N, self._num_blocks(of_keys=start.of_keys), *start.shape

  def _loop(
    self, step: Callable[[Place, Any, Keeper], Any], ranges: Ranges, first: int, last: int, *, by_queries: bool
  ) -> Loop:
    """The loop over the tiles of some heads. It counts outer blocks, and in the lowest bits inner ones."""
    begin, end = ranges.begin[first:last], ranges.end[first:last]
    own, block = _places_where(begin < end)
    # What a step would have to divide or add up for is looked up: XLA:CPU does so in memory that lanes share.
    tables = {
      "example": (first + own) // self.N,
      "head": (first + own) % self.N,
      "outer": block,
      "outer number": own * begin.shape[1] + block,
      "first inner number": own * ranges.inner_blocks,
      "begin": begin[own, block],
      "end": end[own, block],
    }
    shift = (ranges.inner_blocks - 1).bit_length()

    def look_up(name: str, at: jax.Array) -> jax.Array:
      # With `jax.jit` a table that is known is no constant of the loop: partitioned programs may have none.
      table = jax.jit(lambda: jnp.asarray(tables[name], jnp.int32))()
      return lax.dynamic_index_in_dim(table, at, keepdims=False, allow_negative_indices=False)

    def one(count: jax.Array, state: Any, keep: Keeper) -> Any:
      at, inner = count >> shift, count & ((1 << shift) - 1)
      blocks = look_up("outer", at), inner
      numbers = look_up("outer number", at), look_up("first inner number", at) + inner
      if not by_queries:
        blocks, numbers = blocks[::-1], numbers[::-1]
      return step(Place(look_up("example", at), look_up("head", at), *blocks, *numbers, ranges.is_cut), state, keep)

    def advance(count: jax.Array) -> jax.Array:
      after = (count >> shift) + 1
      is_last = (count & ((1 << shift) - 1)) + 1 >= look_up("end", count >> shift)
      return jnp.where(is_last, (after << shift) + look_up("begin", after), count + 1)

    return Loop((begin < end).sum() << shift, one, tables["begin"][0], advance)

  def _ranges(self, *, by_queries: bool) -> list[Ranges]:
    """The tiles that hold anything: those that causality cuts, if it does, and those that it does not."""
    blocks_T, blocks_S = self._num_blocks(of_keys=False), self._num_blocks(of_keys=True)
    Q = self._filled(self.limits.query_length, self.form.query_size, blocks_T)
    K = self._filled(self.limits.key_length, self.form.key_size, blocks_S)
    xp: Any = np if isinstance(Q, np.ndarray) and isinstance(K, np.ndarray) else jnp
    outer, filled, inner_filled, inner_blocks = (
      (xp.arange(blocks_T), Q, K, blocks_S) if by_queries else (xp.arange(blocks_S), K, Q, blocks_T)
    )

    def ranges(begin: Any, end: Any, *, is_cut: bool = False) -> Ranges:
      end = xp.where(outer < filled, xp.minimum(end, inner_filled), 0)
      return Ranges(xp.broadcast_to(begin, end.shape), end, inner_blocks, is_cut)

    if not self.options.is_causal:
      return [ranges(0, inner_blocks)]
    ratio = self.form.key_size // self.form.query_size
    first = outer // ratio if by_queries else outer * ratio  # of those that causality cuts
    last = first + (1 if by_queries else ratio)
    cut, whole = ranges(first, last, is_cut=True), ranges(0, first) if by_queries else ranges(last, inner_blocks)
    return [cut] if blocks_T <= ratio else [cut, whole]

  def _filled(self, length: jax.Array | None, size: int, blocks: int) -> jax.Array | np.ndarray:
    """How many blocks of each head hold anything, [heads, 1]; known without lengths."""
    if length is None and self.limits.query_length is None and self.limits.key_length is None:
      return np.full((self.B * self.N, 1), blocks)
    filled = jnp.int32(blocks) if length is None else jnp.minimum(-(-length.astype(jnp.int32) // size), blocks)
    return jnp.broadcast_to(filled, (self.B, self.N)).reshape(-1, 1)

  def _of_head(self, x: jax.Array, place: Place, parts: Mapping[int, tuple[jax.Array, int]]) -> jax.Array:
    """`x`[b, n] of a tile's head, and of the axes (from the last) in `parts` so many from there on."""
    own = [index if size > 1 else jnp.int32(0) for index, size in zip(place[:2], x.shape, strict=False)]
    starts, sizes = [*own, *[jnp.int32(0)] * (x.ndim - 2)], [1, 1, *x.shape[2:]]
    for axis, (start, size) in parts.items():
      starts[axis], sizes[axis] = start, size
    return lax.dynamic_slice(x, starts, sizes, allow_negative_indices=False)[0, 0]

  def rows(self, x: jax.Array, place: Place, axis: int = -1) -> jax.Array:
    """The queries of a tile from an array that has the padded queries along `axis`."""
    return self._of_head(x, place, {axis: self._rows(place)})

  def columns(self, x: jax.Array, place: Place, axis: int = -1) -> jax.Array:
    """The keys of a tile from an array that has the padded keys along `axis`."""
    return self._of_head(x, place, {axis: self._columns(place)})

  def row_block(self, x: jax.Array, place: Place) -> jax.Array:
    """A tile's part of an array that has those of all query blocks along its third axis."""
    return self._block(x, place, place.query_block, self._num_blocks(of_keys=False))

  def block(self, x: jax.Array, place: Place) -> jax.Array:
    """A tile's part of an array that has those of all key blocks along its third axis."""
    return self._block(x, place, place.key_block, self._num_blocks(of_keys=True))

  def _block(self, x: jax.Array, place: Place, number: jax.Array, blocks: int) -> jax.Array:
    step = x.shape[2] // blocks
    return self._of_head(x, place, {2 - x.ndim: (number * step, step)}).reshape(-1, x.shape[-1])

  def queries(self, place: Place) -> jax.Array:
    """The queries of a tile, [H, queries]."""
    return self.row_block(self.query, place)[: self.form.H]

  def _rows(self, place: Place) -> tuple[jax.Array, int]:
    return place.query_block * self.form.query_size, self.form.query_size

  def _columns(self, place: Place) -> tuple[jax.Array, int]:
    return place.key_block * self.form.key_size, self.form.key_size

  def so_far(self, x: jax.Array, place: Place, *, of_keys: bool = False) -> jax.Array:
    """The part of a state that belongs to the queries of a tile, or to its keys, [1, *shape]."""
    number = place.key_number if of_keys else place.query_number
    return lax.dynamic_slice_in_dim(x, number, 1, allow_negative_indices=False)

  def put(self, x: jax.Array, place: Place, update: jax.Array, *, of_keys: bool = False) -> jax.Array:
    """A state with the part that belongs to the queries of a tile, or to its keys, [1, *shape], replaced."""
    number = place.key_number if of_keys else place.query_number
    return lax.dynamic_update_slice_in_dim(x, update, number, 0, allow_negative_indices=False)

  def add(self, x: jax.Array, place: Place, update: jax.Array, *, of_keys: bool = False) -> jax.Array:
    """A state with `update`, of its shape in a block, added to the part of a tile's queries, or of its keys."""
    # What is read keeps its shape up to where it is written: then XLA:CPU does both in one operation.
    return self.put(x, place, self.so_far(x, place, of_keys=of_keys) + update[None], of_keys=of_keys)

  def allowed(self, place: Place) -> jax.Array | None:
    """What mask and segments, and in a tile that it cuts causality, allow in a tile, [keys, queries]; None if all."""
    restrictions = []
    if self.pair_mask is not None:
      axes = {-2: self._rows(place), -1: self._columns(place)}
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
    product = keep(keep(self.block(self.key, place)) @ keep(self.row_block(self.query, place)))
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


def _places_where(holds: jax.Array | np.ndarray) -> Any:
  """The indices of what is true by axis: all of them and nothing else if it is known, but at least one."""
  if isinstance(holds, np.ndarray):
    return np.unravel_index(np.flatnonzero(holds) if holds.any() else np.zeros(1, int), holds.shape)
  return jnp.unravel_index(jnp.flatnonzero(holds, size=holds.size), holds.shape)


def _map_starts(function: Callable[..., jax.Array], *trees: Any) -> Any:
  return jax.tree.map(function, *trees, is_leaf=lambda x: isinstance(x, Start))
