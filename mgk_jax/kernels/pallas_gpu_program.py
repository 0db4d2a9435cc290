"""One program of a kernel for GPUs: the blocks of arrays that it reads and writes, its loop, and its tiles.

The first axis of a tile is what the program holds, [queries, keys] or [keys, queries]: then tiles are left factors of
the products that follow, for which they stay in registers, and sums along their second axis stay within a warp. The
mathematics of tiles is that of `tiles`, but to the base 2, for which there is an instruction: scores, maxima and log
normalisers are multiplied by log₂ e.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from mgk_jax.kernels import tiles
from mgk_jax.kernels.flash import Plan
from mgk_jax.kernels.pallas_gpu_products import Parts, dot, padded_width

LOG2_E = math.log2(math.e)

# The axes of all arrays: batch, queries, keys, heads, head dimensions; p parts, k products and m components.
AXES = {
  "query": "pbtnh",
  "key": "pbsnkh",
  "value": "pbsnv",
  "scale": "bnk",
  "row": "bnmt",
  "column": "bnms",
  "mixing": "bnms",
  "mask": "bnts",
  "query_segment": "bnt",
  "key_segment": "bns",
  "query_length": "bn",
  "key_length": "bn",
  "by_out": "pbtnv",
  "log_normaliser": "bnmt",
  "mean": "bnmt",
  "out": "btnv",
  "by_query": "btnh",
  "by_row": "bnmt",
  "by_key": "bsnkh",
  "by_value": "bsnv",
  "by_column": "bnms",
  "by_shared": "bnms",
}


class Side(NamedTuple):
  """The queries or the keys of a head, cut into blocks."""

  length: int
  block: int

  @property
  def number(self) -> int:
    """How many blocks there are."""
    return pl.cdiv(self.length, self.block)

  def before(self, position: Any) -> Any:
    """How many blocks hold the positions before this one."""
    return lax.div(jnp.minimum(position, self.length) + self.block - 1, jnp.int32(self.block))

  def positions(self, i: Any) -> jax.Array:
    """The positions of block i, [block]."""
    return i * self.block + lax.iota(jnp.int32, self.block)


class Queries(NamedTuple):
  """One block of queries, with rows [queries, 1], or [1, queries] in a program that holds keys."""

  position: tiles.Row
  query: Parts  # [queries, H]
  row: list[tiles.Row]
  by_out: Parts = ()  # [queries, V]
  log_normaliser: Any = None
  mean: Any = None


class Keys(NamedTuple):
  """One block of keys, with columns [1, keys], or [keys, 1] in a program that holds keys."""

  position: tiles.Column
  key: list[Parts]  # K of [keys, H]
  value: Parts  # [keys, V]
  column: list[tiles.Column]
  mixing: list[tiles.Column]


@dataclasses.dataclass(frozen=True)
class Program:
  """One program of a kernel: what it sees of the arrays, and what all kernels do with it."""

  plan: Plan
  queries: Side
  keys: Side
  holds_keys: bool
  refs: dict[str, Any]

  def block(self) -> Any:
    """The block that this program holds; of causal queries the last, which have most to do, come first."""
    i = pl.program_id(0)
    return self.queries.number - 1 - i if self.plan.is_causal and not self.holds_keys else i

  def _at(self, name: str, **place: Any) -> tuple[Any, jax.Array | None]:
    """Part of an array, block t of the queries and block s of the keys, and which of its numbers there are."""
    index: list[Any] = []
    valid: list[jax.Array | None] = []
    for axis in AXES[name].translate({ord("b"): None, ord("n"): None}):
      if axis in "ts":
        side = self.queries if axis == "t" else self.keys
        index.append(pl.ds(place[axis] * side.block, side.block))
        valid.append(side.positions(place[axis]) < side.length if side.length % side.block else None)
      elif axis in "hv":
        width = self.plan.H if axis == "h" else self.plan.V
        index.append(slice(None))
        valid.append(lax.iota(jnp.int32, padded_width(width)) < width if width != padded_width(width) else None)
      else:
        index.append(jnp.int32(place[axis]))
    axes = range(len(valid))
    masks = [jnp.expand_dims(x, [a for a in axes if a != axis]) for axis, x in enumerate(valid) if x is not None]
    return self.refs[name].at[tuple(index)], functools.reduce(jnp.logical_and, masks) if masks else None

  def load(self, name: str, *, other: float = 0, **place: Any) -> jax.Array:
    """Part of an array, with `other` where there is nothing."""
    ref, mask = self._at(name, **place)
    return plgpu.load(ref, mask=mask, other=None if mask is None else other)

  def store(self, name: str, x: jax.Array, **place: Any) -> None:
    """Writes part of a result."""
    ref, mask = self._at(name, **place)
    plgpu.store(ref, x.astype(ref.dtype), mask=mask)

  def _parts(self, name: str, **place: Any) -> Parts:
    return [self.load(name, p=p, **place) for p in range(self.refs[name].shape[0])]

  def load_queries(self, i: Any) -> Queries:
    """Block i of the queries."""

    def row(x: jax.Array) -> tiles.Row:
      return x[None, :] if self.holds_keys else x[:, None]

    rows = [row(self.load("row", m=r, t=i)) for r in range(self.plan.M)] if self.plan.has_row else []
    queries = Queries(row(self.queries.positions(i)), self._parts("query", t=i), rows)
    if "by_out" not in self.refs:
      return queries
    return queries._replace(
      by_out=self._parts("by_out", t=i),
      log_normaliser=row(self.load("log_normaliser", m=0, t=i, other=jnp.inf) * LOG2_E),
      mean=row(self.load("mean", m=0, t=i)),
    )

  def load_keys(self, j: Any) -> Keys:
    """Block j of the keys."""

    def column(x: jax.Array) -> tiles.Column:
      return x[:, None] if self.holds_keys else x[None, :]

    return Keys(
      position=column(self.keys.positions(j)),
      key=[self._parts("key", k=c, s=j) for c in range(self.plan.K)],
      value=self._parts("value", s=j),
      column=[column(self.load("column", m=r, s=j, other=-jnp.inf)) for r in range(self.refs["column"].shape[0])],
      mixing=[column(self.load("mixing", m=r, s=j)) for r in range(self.plan.M)] if self.plan.mixing else [],
    )

  def over_keys(self, i: Any, step: Callable[..., Any], start: Any) -> Any:
    """Loops `step(is_diagonal, j, carry)` over the blocks of keys that block i of the queries can see."""
    has_queries = i * self.queries.block < self.load("query_length")
    end = jnp.where(has_queries, self.keys.before(self.load("key_length")), 0)
    if not self.plan.is_causal:
      return lax.fori_loop(0, end, functools.partial(step, False), start)
    below = jnp.minimum(end, lax.div(i * self.queries.block + 1, jnp.int32(self.keys.block)))
    end = jnp.minimum(end, self.keys.before((i + 1) * self.queries.block))
    carry = lax.fori_loop(0, below, functools.partial(step, False), start)
    return lax.fori_loop(below, end, functools.partial(step, True), carry)

  def over_queries(self, j: Any, step: Callable[..., Any], start: Any) -> Any:
    """Loops `step(is_diagonal, i, carry)` over the blocks of queries that can see block j of the keys."""
    has_keys = j * self.keys.block < self.load("key_length")
    end = jnp.where(has_keys, self.queries.before(self.load("query_length")), 0)
    if not self.plan.is_causal:
      return lax.fori_loop(0, end, functools.partial(step, False), start)
    first = jnp.minimum(end, lax.div(j * self.keys.block, jnp.int32(self.queries.block)))
    below = jnp.minimum(end, self.queries.before((j + 1) * self.keys.block - 1))
    carry = lax.fori_loop(first, below, functools.partial(step, True), start)
    return lax.fori_loop(below, end, functools.partial(step, False), carry)

  def product(self, of_queries: Parts, of_keys: Parts) -> tiles.Tile:
    """The inner products of queries with keys, or of what belongs to them."""
    first, second = (of_keys, of_queries) if self.holds_keys else (of_queries, of_keys)
    return dot(first, second, turned=True)

  def scores(
    self, i: Any, j: Any, queries: Queries, keys: Keys, is_diagonal: bool
  ) -> tuple[tiles.Tiles, tiles.Mixing | None]:
    """The scores of a tile to the base 2, and how they are mixed."""
    scale = [self.load("scale", k=c) * LOG2_E for c in range(self.plan.K)]
    products = [self.product(queries.query, key) * scale[c] for c, key in enumerate(keys.key)]
    mixing: tiles.Mixing | None = None
    if self.plan.mixing is not None:
      kind = tiles.Factors if self.plan.mixing == "factors" else tiles.Maxima
      mixing = kind(queries.row, keys.mixing)
    row = queries.row if self.plan.has_row and mixing is None else None
    allowed = keys.position <= queries.position if is_diagonal else None
    if "query_segment" in self.refs:
      of_queries, of_keys = self.load("query_segment", t=i), self.load("key_segment", s=j)
      same = of_keys[:, None] == of_queries[None] if self.holds_keys else of_queries[:, None] == of_keys[None]
      allowed = same if allowed is None else allowed & same
    if "mask" in self.refs:
      mask = self.load("mask", t=i, s=j) != 0
      mask = mask.T if self.holds_keys else mask
      allowed = mask if allowed is None else allowed & mask
    if isinstance(mixing, tiles.Maxima):
      products = [product + mixing.top() for product in products]
    return tiles.scores(products, row, keys.column, allowed), mixing

  def gradient(
    self, i: Any, j: Any, queries: Queries, keys: Keys, is_diagonal: bool
  ) -> tuple[tiles.Gradient, list[tiles.Tile], list[tiles.Tile]]:
    """The gradient of a tile, by each of its products, and by each additive term of what the program holds."""
    scores, mixing = self.scores(i, j, queries, keys, is_diagonal)
    by_weight = self.product(queries.by_out, keys.value) - queries.mean
    tile = gradient_of(scores, queries.log_normaliser, by_weight, self.plan.estep, mixing)
    by_products = list(tile.scores) if len(tile.scores) == self.plan.K else [tile.inner]
    if isinstance(mixing, tiles.Factors):
      return tile, by_products, [tile.inner * x for x in (mixing.row if self.holds_keys else mixing.column)]
    return tile, by_products, list(tiles.by_component(tile, mixing))


def exponentials(scores: tiles.Tiles, offset: jax.Array, estep: str) -> list[tiles.Tile]:
  """2^(s − offset) of each component, or of the largest in a hard E step."""
  scores = [functools.reduce(jnp.maximum, scores)] if estep == "hard" else scores
  return [jnp.exp2(score - offset) for score in scores]


def gradient_of(
  scores: tiles.Tiles,
  log_normaliser: jax.Array,
  by_weight: tiles.Tile,
  estep: str,
  mixing: tiles.Mixing | None,
) -> tiles.Gradient:
  """`tiles.backward` of scores and log normalisers to the base 2."""
  posteriors = exponentials(scores, log_normaliser, estep)
  total = functools.reduce(jnp.add, posteriors)
  inner = total * by_weight
  if isinstance(mixing, tiles.Factors):
    product = mixing.product()
    return tiles.Gradient(total * product, [inner * product], inner)
  if estep == "hard" and len(scores) > 1:
    return tiles.Gradient(total, [inner * share for share in tiles.responsibilities(scores, estep, None)], inner)
  return tiles.Gradient(total, [posterior * by_weight for posterior in posteriors], inner)
