"""One head of one example, cut into blocks of queries and keys, of which only those are visited that hold anything."""

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels import dispatch, dropout as dropout_lib, tiles
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.dropout import Dropout
from mgk_jax.kernels.heads import one_by_one, over_heads, vary_alike
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.padding import fill_up
from mgk_jax.kernels.scores import SAFE_RANGE, Scores

QUERY_BLOCK = 512
PART = 256  # queries of a tile: the parts of a block are chains of operations that need nothing of each other
SHORT = 128  # fewer queries are one part
KEY_BLOCK = 1024
SMALL_KEY_BLOCK = 512  # smaller steps where blocks past a length cost nothing


# First block, one past the last, and whether causality cuts through their tiles.
Ranges = list[tuple[jax.Array | int, jax.Array | int, bool]]


class Place(NamedTuple):
  """Where a tile is: the keys of a block, or the first ones of them, by a part of a block of queries."""

  first: jax.Array | int  # query of the part
  block: jax.Array | int
  keys: int
  is_cut: bool  # causality cuts through it


class Limits(NamedTuple):
  """What restricts the pairs of a head, all of it without a gradient. Parts that don't restrict are None.

  With leading axes [B or 1, N or 1] for all heads; without them in a `Head`.
  """

  key_bias: jax.Array | None  # [S], 0 or −inf
  pair_mask: jax.Array | None  # [T, S or 1]
  query_length: jax.Array | None  # []
  key_length: jax.Array | None  # []
  query_segments: jax.Array | None  # [T]
  key_segments: jax.Array | None  # [S]
  dropout_rows: jax.Array | None  # [T]
  dropout_columns: jax.Array | None  # [S]


class Options(NamedTuple):
  """The static part of a call."""

  estep: str
  is_causal: bool
  dropout_rate: float = 0.0


def limits(masking: Masking, dims: Dims, dtype: jnp.dtype, dropout: Dropout | None = None) -> Limits:
  """The limits of all heads."""
  key_part = masking.key_part(dims)
  return Limits(
    key_bias=None if key_part is None else jnp.where(key_part, 0, -jnp.inf).astype(dtype),
    pair_mask=masking.pair_part(),
    query_length=None if masking.query_lengths is None else masking.query_lengths[:, None],
    key_length=None if masking.key_lengths is None else masking.key_lengths[:, None],
    query_segments=None if masking.query_segments is None else masking.query_segments[:, None],
    key_segments=None if masking.key_segments is None else masking.key_segments[:, None],
    dropout_rows=None if dropout is None else dropout.rows,
    dropout_columns=None if dropout is None else dropout.columns,
  )


def can_factor(scores: Scores, limits: Limits) -> jax.Array | None:
  """Whether the factored form is safe for each head, [B, N]: min(R_u, R_w) ≤ SAFE_RANGE, derived in `scores`.

  None where there is nothing to factor.
  """
  shares_product = scores.key.shape[2] == 1 < scores.num_components
  if not shares_product or scores.row is None or scores.column is None:
    return None

  def spread(x_BNML: jax.Array) -> jax.Array:
    top = jnp.max(x_BNML, axis=2)
    return jnp.where(jnp.isneginf(top), 0, top - jnp.min(x_BNML, axis=2))

  row_range, column_range = spread(scores.row), spread(scores.column)
  if limits.key_bias is not None:
    column_range = jnp.where(limits.key_bias == 0, column_range, 0)
  return lax.stop_gradient(jnp.minimum(jnp.max(row_range, axis=-1), jnp.max(column_range, axis=-1)) <= SAFE_RANGE)


def map_heads(kernel: Callable[..., Any], options: Options, operands: tuple[Any, ...]) -> Any:
  """`kernel` on every head, in the factored form where that is safe for all heads of a device, else with all scores.

  Args:
    kernel: takes a `Head` and the operands that are not part of it.
    options: of all heads.
    operands: scores, anything, limits, what `can_factor` says, and anything.
  """

  def run(use_factors: bool, operands: tuple[Any, ...]) -> Any:
    def one(operands: tuple[Any, ...]) -> Any:
      scores, first, limits, _, *rest = operands
      return kernel(Head(scores, limits, options, factored=use_factors), first, *rest)

    return one_by_one(one, operands)

  def local(operands: tuple[Any, ...]) -> Any:
    factored = operands[3]
    if factored is None:
      return run(False, operands)
    # Once for all heads: a choice for each of them would copy its operands and results.
    return lax.cond(jnp.all(factored), functools.partial(run, True), functools.partial(run, False), operands)

  return over_heads(local, operands)


class Head:
  """The operands of one head, padded to whole blocks, and its tiles.

  Attributes:
    query: [T', H]; T' is T padded.
    query_HT: its transpose, with a row of ones if the keys hold the column terms.
    key: [blocks, C·keys, H or H + 1] with C = M or 1: all components of a block together, so that one product yields
      all tiles; on CPUs with the column terms beside them, where there are as many as products.
    products: C.
    row: M arrays [T'], or None.
    column: what is left to add for each key, −inf if it is not allowed: M arrays or one for all, [S'], or None.
    mixing: how components that share the product are mixed, or None; it takes the place of `row` and of what differs
      between the components in `column`.
    query_size, key_size: of a tile; a block of queries has `num_parts` tiles, one below the other.
    query_blocks, key_blocks: how many blocks hold anything.
    has_row, has_column, has_shared: whether the scores have these terms, and so their gradients.
    needs_loops: whether XLA must not dissolve a loop over one block. It would fuse what comes before with what happens
      to the tiles, and XLA:CPU does not vectorise that where several tiles or rows are read at once.
  """

  def __init__(self, scores: Scores, limits: Limits, options: Options, *, factored: bool = False):
    self.options, self.limits = options, limits
    self.T, self.S = scores.query.shape[0], scores.key.shape[1]
    target = KEY_BLOCK if options.is_causal and self.T > KEY_BLOCK else QUERY_BLOCK
    self.num_parts = target // PART if self.T >= SHORT else 1
    self.query_size = _block_size(self.T, target, self.num_parts)
    together = self.num_parts * self.query_size
    if options.is_causal:
      self.key_size = together  # so that causality cuts through one block of keys for each block of queries
    else:
      self.key_size = _block_size(self.S, KEY_BLOCK if limits.key_length is None else SMALL_KEY_BLOCK)
    self.query_blocks = _block_count(self.T, together, limits.query_length)
    self.key_blocks = _block_count(self.S, self.key_size, limits.key_length)

    self.query = self.pad_rows(scores.query, 0)
    self.query_HT = self.query.T
    self.products = scores.key.shape[0]
    key = self.pad_columns(scores.key, 1)
    row, column = scores.row, scores.column
    self.mixing: tiles.Mixing | None = None
    if factored:
      assert row is not None and column is not None
      column, self.mixing = self._factorise(row, column)
      row = None
    # Arrays of their own: XLA:CPU does not vectorise a loop over a tile that reads several rows of one array.
    self.row = None if row is None else list(self.pad_rows(row))
    column = self._restrict(column, scores.shared)
    if column is not None and len(column) == self.products and dispatch.platform() == "cpu":
      # One more dimension of the product, which saves passes over the tile; other platforms may round its operands.
      # XLA:CPU concatenates it slowly, and cuts slowly once it is there.
      self.key = jnp.pad(self.cut(key), ((0, 0), (0, 0), (0, 1))).at[..., -1].set(self.cut(column))
      self.query_HT = jnp.concatenate([self.query_HT, jnp.ones((1, len(self.query)), self.query.dtype)])
      column = None
    else:
      self.key = self.cut(key)
    self.column = None if column is None else list(column)
    self.num_components = self.products if scores.column is None else scores.column.shape[0]
    self.has_row, self.has_column = scores.row is not None, scores.column is not None
    self.has_shared = scores.shared is not None
    several = self.products > 1 if options.estep == "soft" else self.mixing is not None
    self.needs_loops = several and dispatch.platform() == "cpu"

    if limits.query_segments is not None and limits.key_segments is not None:
      self.query_segments, self.key_segments = (
        self.pad_rows(limits.query_segments),
        self.pad_columns(limits.key_segments),
      )
    mask, rows, columns = limits.pair_mask, limits.dropout_rows, limits.dropout_columns
    if mask is not None:
      mask = self.pad_rows(mask, 0)
      mask = mask if mask.shape[1] == 1 else self.pad_columns(mask)
    self.pair_mask = mask
    self.dropout_rows = None if rows is None else self.pad_rows(rows)
    self.dropout_columns = None if columns is None else self.pad_columns(columns)

  def _factorise(self, row_MT: jax.Array, column_MS: jax.Array) -> tuple[jax.Array, tiles.Mixing]:
    """ŵ, [1, S], and what is left of u and w; zeros for keys that nobody sees, where it is not bounded."""
    top = jnp.max(column_MS, axis=0, keepdims=True)
    unseen = jnp.isneginf(top) if self.limits.key_bias is None else jnp.isneginf(top + self.limits.key_bias)
    row = self.pad_rows(row_MT - jnp.max(row_MT, axis=0))
    column = self.pad_columns(jnp.where(unseen, 0, column_MS - top))
    if self.options.estep == "hard":
      return top, tiles.Maxima(list(row), list(column))
    return top, tiles.Factors(list(jnp.exp2(row)), list(jnp.exp2(column)))

  def _restrict(self, column: jax.Array | None, shared: jax.Array | None) -> jax.Array | None:
    """All that the scores add for each key, −inf at masked keys and at padding."""
    bias = self.limits.key_bias
    if shared is not None:
      bias = shared if bias is None else shared + bias
    padded = -(-self.S // self.key_size) * self.key_size
    if padded > self.S:
      bias = self.pad_columns(jnp.zeros(self.S, self.query.dtype) if bias is None else bias, fill=-jnp.inf)
    if bias is None:
      return column
    return bias[None] if column is None else self.pad_columns(column) + bias

  def loop(
    self, ranges: Ranges, step: Callable[..., Any], carry: Any, ahead: Callable[[jax.Array | int], Any] | None = None
  ) -> Any:
    """`carry` after `step(is_cut, block, carry)` for every block of the ranges.

    With `ahead` it is `step(is_cut, block, carry, ahead(block))`, the last of which is computed in the step before.
    """
    for first, last, is_cut in ranges:
      if self.needs_loops:
        last = lax.optimization_barrier(jnp.int32(last))
      if ahead is None:
        carry = lax.fori_loop(first, last, functools.partial(step, is_cut), carry)
      else:
        carry, _ = lax.fori_loop(
          first, last, lambda i, x, is_cut=is_cut: (step(is_cut, i, *x), ahead(i + 1)), (carry, ahead(first))
        )
    return carry

  def full(self, shape: tuple[int, ...], fill: float = 0) -> jax.Array:
    """A constant to start a loop's carry with."""
    return vary_alike((jnp.full(shape, fill, self.query.dtype), self.query))[0]

  def pad_rows(self, x: jax.Array, axis: int = -1, fill: float = 0) -> jax.Array:
    """Fills the queries along `axis` up to whole blocks."""
    return fill_up(x, self.num_parts * self.query_size, axis=axis, fill=fill)

  def pad_columns(self, x: jax.Array, axis: int = -1, fill: float = 0) -> jax.Array:
    """Fills the keys along `axis` up to whole blocks."""
    return fill_up(x, self.key_size, axis=axis, fill=fill)

  def parts(self, i: jax.Array | int) -> list[jax.Array | int]:
    """The parts of query block i, each by its first query."""
    return [(i * self.num_parts + part) * self.query_size for part in range(self.num_parts)]

  def places(self, parts: Sequence[jax.Array | int], j: jax.Array | int, is_cut: bool) -> list[Place]:
    """The tiles of a query block's `parts` and key block j. Where causality cuts, a part sees no key past itself."""
    keys = [(part + 1) * self.query_size if is_cut else self.key_size for part in range(self.num_parts)]
    return [Place(first, j, seen, is_cut) for first, seen in zip(parts, keys, strict=True)]

  def rows(self, x: jax.Array, first: jax.Array | int, axis: int = -1) -> jax.Array:
    """The part that begins with query `first` of an array that has the padded queries along `axis`."""
    return lax.dynamic_slice_in_dim(x, first, self.query_size, axis, allow_negative_indices=False)

  def columns(self, x: jax.Array, place: Place) -> jax.Array:
    """The keys of a tile from an array that has the padded keys as its last axis."""
    return lax.dynamic_slice_in_dim(x, place.block * self.key_size, place.keys, -1)

  def set_rows(self, x: jax.Array, first: jax.Array | int, block: jax.Array, axis: int = -1) -> jax.Array:
    """`x` with the part replaced that begins with query `first`."""
    return lax.dynamic_update_slice_in_dim(x, block, first, axis, allow_negative_indices=False)

  def cut(self, x: jax.Array) -> jax.Array:
    """[C, S', …] → [blocks, C·keys, …]."""
    C, padded, *rest = x.shape
    blocks = padded // self.key_size
    return jnp.swapaxes(x.reshape(C, blocks, self.key_size, *rest), 0, 1).reshape(blocks, C * self.key_size, *rest)

  def join(self, x: jax.Array) -> jax.Array:
    """[blocks, C·keys, …] → [C, S, …], the inverse of `cut` but for the padding."""
    blocks, together, *rest = x.shape
    C = together // self.key_size
    joined = jnp.swapaxes(x.reshape(blocks, C, self.key_size, *rest), 0, 1)
    return joined.reshape(C, blocks * self.key_size, *rest)[:, : self.S]

  def shorten(self, x: jax.Array, place: Place, axis: int = 0) -> jax.Array:
    """From a block's C·keys along `axis` those of a tile."""
    if place.keys == self.key_size:
      return x
    before, together, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    apart = x.reshape(*before, together // self.key_size, self.key_size, *after)
    return lax.slice_in_dim(apart, 0, place.keys, axis=axis + 1).reshape(*before, -1, *after)

  def lengthen(self, x: jax.Array, place: Place) -> jax.Array:
    """The C·keys of a tile along the first axis, with zeros for the others of the block."""
    if place.keys == self.key_size:
      return x
    apart = fill_up(x.reshape(-1, place.keys, *x.shape[1:]), self.key_size, axis=1)
    return apart.reshape(-1, *x.shape[1:])

  def key_ranges(self, i: jax.Array) -> Ranges:
    """The key blocks that query block i can see: those that it sees as a whole, then the one that causality cuts."""
    if not self.options.is_causal:
      return [(0, self.key_blocks, False)]
    whole, cut = jnp.minimum(i, self.key_blocks), (i, jnp.minimum(i + 1, self.key_blocks), True)
    # A single block of queries sees no other as a whole that would be worth a program.
    return [cut] if self.T <= self.key_size else [(0, whole, False), cut]

  def query_ranges(self, j: jax.Array) -> Ranges:
    """The query blocks that can see key block j: the one that causality cuts, then those that see it as a whole."""
    if not self.options.is_causal:
      return [(0, self.query_blocks, False)]
    cut = (j, jnp.minimum(j + 1, self.query_blocks), True)
    return [cut] if self.T <= self.key_size else [cut, (j + 1, self.query_blocks, False)]

  def allowed(self, place: Place) -> jax.Array | None:
    """What mask and segments, and in a tile that it cuts causality, allow in a tile, [keys, queries]; None if all."""
    first, block, keys, is_cut = place
    restrictions = []
    if self.pair_mask is not None:
      mask = self.rows(self.pair_mask, first, 0)
      restrictions.append((mask if mask.shape[1] == 1 else self.columns(mask, place)).T)
    if self.limits.query_segments is not None:
      restrictions.append(self.columns(self.key_segments, place)[:, None] == self.rows(self.query_segments, first))
    if is_cut:
      query_index = first + jnp.arange(self.query_size)
      key_index = block * self.key_size + jnp.arange(keys)
      restrictions.append(key_index[:, None] <= query_index)
    return functools.reduce(jnp.logical_and, restrictions) if restrictions else None

  def scores(self, place: Place, *, allowed: jax.Array | None) -> tiles.Tiles:
    """The scores of a tile, a tile per component, or a single one if there is a mixing."""
    key = self.shorten(lax.dynamic_index_in_dim(self.key, place.block, keepdims=False), place)
    product = key @ self.rows(self.query_HT, place.first)
    return tiles.scores(
      [product] if self.products == 1 else product.reshape(self.products, place.keys, self.query_size),
      None if self.row is None else [self.rows(x, place.first) for x in self.row],
      None if self.column is None else [self.columns(x, place) for x in self.column],
      allowed,
    )

  def tile_mixing(self, place: Place) -> tiles.Mixing | None:
    """The part of the mixing that belongs to a tile, or None."""
    if self.mixing is None:
      return None
    rows = [self.rows(x, place.first) for x in self.mixing.row]
    return type(self.mixing)(rows, [self.columns(x, place) for x in self.mixing.column])

  def dropout(self, place: Place) -> jax.Array | None:
    """What dropout multiplies a tile's weights with, [keys, queries], or None."""
    if self.dropout_rows is None or self.dropout_columns is None:
      return None
    rows, columns = self.rows(self.dropout_rows, place.first), self.columns(self.dropout_columns, place)
    return dropout_lib.multiplier(rows[None, :], columns[:, None], self.options.dropout_rate, self.query.dtype)

  def attending(self, row_T: jax.Array, otherwise: float) -> jax.Array:
    """A padded array of one number per query with `otherwise` past the query length."""
    if self.limits.query_length is None:
      return row_T
    return jnp.where(jnp.arange(row_T.shape[0]) < self.limits.query_length, row_T, otherwise)


def _block_size(length: int, target: int, parts: int = 1) -> int:
  """The size of each of the parts of a block near `target` that pads least; the whole length if it is short."""
  count = -(-length // target) * parts
  return length if count == 1 else -(-length // (count * 16)) * 16


def _block_count(length: int, size: int, valid: jax.Array | None) -> jax.Array | int:
  count = -(-length // size)
  return count if valid is None else jnp.clip(-(-valid // size), 0, count)
