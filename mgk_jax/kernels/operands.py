"""Scores in the form in which tiles are computed from them: padded to whole blocks, restrictions included."""

import dataclasses
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mgk_jax.kernels import dispatch
from mgk_jax.kernels.limits import Limits, Options
from mgk_jax.kernels.padding import fill_up
from mgk_jax.kernels.scores import Scores, over_components

QUERY_BLOCK = 256
KEY_BLOCK = 512


class Form(NamedTuple):
  """The sizes of a call, and which terms its scores have.

  Attributes:
    T, S, H: queries, keys and the head dimension, not padded.
    products: C, how many products a pair of a query and a key takes: M, or 1 where the components share it.
    components: M.
    query_size, key_size: of a tile.
    has_row, has_column, has_shared: whether the scores have these terms, and so their gradients.
  """

  T: int
  S: int
  H: int
  products: int
  components: int
  query_size: int
  key_size: int
  has_row: bool
  has_column: bool
  has_shared: bool

  @property
  def padded_T(self) -> int:
    """T filled up to whole blocks."""
    return -(-self.T // self.query_size) * self.query_size

  @property
  def padded_S(self) -> int:
    """S filled up to whole blocks."""
    return -(-self.S // self.key_size) * self.key_size

  def pad_rows(self, x: jax.Array, axis: int = -1, fill: float = 0) -> jax.Array:
    """Fills the queries along `axis` up to whole blocks."""
    return fill_up(x, self.query_size, axis=axis, fill=fill)

  def pad_columns(self, x: jax.Array, axis: int = -1, fill: float = 0) -> jax.Array:
    """Fills the keys along `axis` up to whole blocks."""
    return fill_up(x, self.key_size, axis=axis, fill=fill)

  def cut(self, x: jax.Array) -> jax.Array:
    """[B, N, C, S', …] → [B, N, blocks·C·keys, …]."""
    *leading, C, _ = x.shape[:4]
    apart = x.reshape(*leading, C, self.padded_S // self.key_size, self.key_size, *x.shape[4:])
    return jnp.swapaxes(apart, 2, 3).reshape(*leading, C * self.padded_S, *x.shape[4:])

  def turned(self, x: jax.Array, size: int) -> jax.Array:
    """[B, N, blocks·size, H] → [B, N, blocks, H, size]."""
    *leading, length, H = x.shape
    return x.reshape(*leading, length // size, size, H).swapaxes(3, 4)

  def join(self, x: jax.Array, C: int) -> jax.Array:
    """[B, N, blocks·C·keys, …] → [B, N, C, S, …], the inverse of `cut` but for the padding."""
    apart = x.reshape(*x.shape[:2], self.padded_S // self.key_size, C, self.key_size, *x.shape[3:])
    return jnp.swapaxes(apart, 2, 3).reshape(*x.shape[:2], C, self.padded_S, *x.shape[3:])[:, :, :, : self.S]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Operands:
  """What tiles are computed from. Arrays have leading axes [B, N], of which size 1 is broadcast.

  Attributes:
    query: [blocks·H, queries], turned; if the keys hold the terms that are added for each of them, [blocks, H + 1,
      queries] with a row of ones in each block.
    key: [blocks·C·keys, H or H + 1]: all components of a block together, so that one product yields all tiles; on CPUs
      with what is added for each key beside them, where that is one number for each product.
    row: [M, T'], or None. Where the components share the product, less the largest of them: that cancels.
    column: [M, S'] where the components share the product, less the largest of them, zeros where that is −inf; or None.
    bias: [M or 1, S'], all else that is added for each key, −inf if it is not allowed; None if the keys hold it.
    form: its sizes.
  """

  query: jax.Array
  key: jax.Array
  row: jax.Array | None
  column: jax.Array | None
  bias: jax.Array | None
  form: Form = dataclasses.field(metadata={"static": True})


def prepare(scores: Scores, limits: Limits, options: Options) -> Operands:
  """The operands of a call."""
  form = _form(scores, options)
  row, column, shared = scores.row, scores.column, scores.shared
  if row is not None and form.products < form.components:
    row = row - over_components(jnp.maximum, row)
  row = None if row is None else form.pad_rows(row)
  bias = limits.key_bias
  if shared is not None:
    bias = shared if bias is None else shared + bias
  if form.padded_S > form.S:
    bias = jnp.zeros((1, 1, form.S), scores.query.dtype) if bias is None else bias
    bias = form.pad_columns(bias, fill=-jnp.inf)
  bias = None if bias is None else bias[:, :, None]
  column = None if column is None else form.pad_columns(column)
  if column is not None and form.products < form.components:
    top = over_components(jnp.maximum, column)
    bias = top if bias is None else top + bias
    column = jnp.where(jnp.isneginf(bias), 0, column - top)
  elif column is not None:
    bias, column = column if bias is None else column + bias, None

  query = form.turned(form.pad_rows(scores.query, -2), form.query_size)
  key = form.cut(form.pad_columns(scores.key, -2))
  if bias is not None and bias.shape[2] == form.products and dispatch.platform() == "cpu":
    # One more dimension of the product, which saves passes over the tile; other platforms may round its operands.
    # XLA:CPU concatenates it slowly, and cuts slowly once it is there.
    leading = jnp.broadcast_shapes(key.shape[:2], bias.shape[:2])
    key = jnp.broadcast_to(key, (*leading, *key.shape[2:]))
    key = jnp.pad(key, ((0, 0), (0, 0), (0, 0), (0, 1))).at[..., -1].set(form.cut(bias))
    return Operands(with_ones(query), key, row, column, None, form)
  return Operands(join(query), key, row, column, bias, form)


def with_ones(x: jax.Array) -> jax.Array:
  """[B, N, blocks, rows, columns] with another row in each block, of ones.

  It is not to be joined: XLA:CPU would make it a second time for what reads a single number of it, in the shape before.
  What is only turned is to be joined: otherwise a first copy would lie in memory as it did, and a second be turned.
  """
  return jnp.pad(x, ((0, 0), (0, 0), (0, 0), (0, 1), (0, 0)), constant_values=1)


def _form(scores: Scores, options: Options) -> Form:
  *_, T, H = scores.query.shape
  C, S = scores.key.shape[2:4]
  query_size = _block_size(T, QUERY_BLOCK)
  if options.is_causal:  # whole blocks of queries in each of keys: causality cuts through one for each of the former
    # Those with several products cost more where it cuts, so that smaller tiles are worth it.
    key_size = query_size * min(max(KEY_BLOCK // QUERY_BLOCK // C, 1), -(-T // query_size))
  else:
    key_size = _block_size(S, KEY_BLOCK)
  has = [x is not None for x in (scores.row, scores.column, scores.shared)]
  return Form(T, S, H, C, C if scores.column is None else scores.column.shape[2], query_size, key_size, *has)


def _block_size(length: int, target: int) -> int:
  """The size near `target` that pads least; the whole length if it is short."""
  count = -(-length // target)
  return length if count == 1 else -(-length // (count * 16)) * 16


def join(x: jax.Array, axis: int = 2) -> jax.Array:
  """`x` with an axis, that of blocks, and the next one as a single one."""
  return x.reshape(*x.shape[:axis], x.shape[axis] * x.shape[axis + 1], *x.shape[axis + 2 :])
