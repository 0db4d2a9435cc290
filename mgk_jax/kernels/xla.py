"""Attention in blocks with its own gradient: temporary memory O(T + S), and no work for padding.

Each head of each example (`blocks.map_heads`) is computed tile by tile with a running maximum and sum. The backward
pass computes every tile once more from its scores and gets all gradients from it: with transposed tiles dk and dv
accumulate over the inner loop and dqᵀ in place, and no product needs a transposed copy of a tile.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels import blocks, exponential, lanes, limits as limits_lib, operands as operands_lib, tiles
from mgk_jax.kernels.blocks import Heads, Place, Start
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.dropout import Dropout
from mgk_jax.kernels.exponential import NATS
from mgk_jax.kernels.heads import context, vary_alike
from mgk_jax.kernels.lanes import Keeper
from mgk_jax.kernels.limits import Limits, Options
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.operands import join
from mgk_jax.kernels.scores import Scores, over_components


def attention(
  scores: Scores, value_BSNV: jax.Array, masking: Masking, dims: Dims, estep: str, dropout: Dropout | None
) -> jax.Array:
  """h_i = Σ_j A_ij v_j, [B, T, N, V], in float32 or float64."""
  options = Options(estep, masking.is_causal, 0.0 if dropout is None else dropout.rate)
  in_bits = scores.in_bits()
  limits = limits_lib.make(masking, dims, in_bits.query.dtype, dropout)
  factored = limits_lib.can_factor(scores, limits)
  value = jnp.einsum("bsnv->bnsv", value_BSNV).astype(in_bits.query.dtype)
  return _attention(options, *vary_alike((in_bits, value, limits, factored)))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
  options: Options, scores: Scores, value_BNSV: jax.Array, limits: Limits, factored: jax.Array | None
) -> jax.Array:
  return _forward(options, scores, value_BNSV, limits, factored)[0]


def _forward(options: Options, *operands: Any):
  return _compiled_forward(options, context(), *operands)


def _backward(options: Options, residuals: Any, by_out: jax.Array):
  return _compiled_backward(options, context(), residuals, by_out)


_attention.defvjp(_forward, _backward)

# For calls outside of `jax.jit`, which would trace all loops every time; inside, as if it were not there.
_compiled = functools.partial(jax.jit, static_argnums=(0, 1), inline=True)


@_compiled
def _compiled_forward(
  options: Options, traced_for: Any, scores: Scores, value_BNSV: jax.Array, limits: Limits, factored: jax.Array | None
):
  del traced_for
  prepared = operands_lib.prepare(scores, limits, options)
  form, value = prepared.form, prepared.form.pad_columns(value_BNSV, -2)
  turned = form.turned(value, form.key_size)
  # With ones the product that sums values also sums weights, unless dropout makes them differ.
  rows = operands_lib.with_ones(turned) if limits.dropout_rows is None else join(turned)
  operands, value = vary_alike(((prepared, rows, limits, factored), value))
  out_BNCVQ, log_normaliser = blocks.map_heads(_forward_heads, options, operands)
  out_BTNV = join(jnp.einsum("bncvq->bcqnv", out_BNCVQ), 1)[:, : form.T]
  return out_BTNV, ((operands[0], value, *operands[2:]), out_BNCVQ, log_normaliser)


@_compiled
def _compiled_backward(options: Options, traced_for: Any, residuals: Any, by_out: jax.Array):
  del traced_for
  operands, out_BNCVQ, log_normaliser = residuals
  form, (B, N, _, V, _) = operands[0].form, out_BNCVQ.shape
  by_out = join(form.turned(form.pad_rows(jnp.einsum("btnv->bntv", by_out), -2), form.query_size))
  # As a product with ones: XLA:CPU is slow with the sum of a product.
  ones = jnp.full((B, N, V), NATS, by_out.dtype)
  mean_by_weight = join(jnp.einsum("bnv,bncvq->bncq", ones, out_BNCVQ * by_out.reshape(out_BNCVQ.shape)))
  operands = *operands, log_normaliser, by_out, mean_by_weight
  by_scores, by_value = blocks.map_heads(_backward_heads, options, operands)
  return by_scores, by_value, None, None


def _forward_heads(heads: Heads, value: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Outputs [B, N, blocks, V, queries] and log normalisers [B, N, T'] (+inf for a query that attends to nothing).

  Args:
    heads: the operands of the scores.
    value: [B, N, blocks, V + 1, keys], turned, with a row of ones in each block; with dropout [B, N, blocks·V, keys].
  """
  form, exp = heads.form, exponential.of_tiles(heads.dtype)
  V = value.shape[3] - 1 if heads.dropped is None else value.shape[2] * form.key_size // form.padded_S

  def tile(place: Place, state: tuple[jax.Array, jax.Array], keep: Keeper) -> tuple[jax.Array, jax.Array]:
    peaks, totals = state
    scores = heads.scores(place, keep, allowed=heads.allowed(place), keep_sums=True)
    tops = [keep(tiles.peak(score)) for score in ([scores] if isinstance(scores, jax.Array) else [[x] for x in scores])]
    old_peak = heads.so_far(peaks, place)
    peak = keep.once(jnp.maximum(old_peak, functools.reduce(jnp.maximum, tops)))
    weights = keep(tiles.weights(scores, peak, heads.options.estep, heads.tile_mixing(place), exp))
    fading, own_value, dropout = keep(jnp.exp2(old_peak - peak)), keep(heads.block(value, place)), heads.dropout(place)
    if dropout is None:
      update = keep(own_value @ weights)
    else:
      dropped, mass = keep(weights * dropout), keep(jnp.sum(weights, axis=0, keepdims=True))
      update = jnp.concatenate([keep(own_value @ dropped), mass])
    totals = heads.put(totals, place, heads.so_far(totals, place) * fading + update)
    return heads.put(peaks, place, lanes.after(totals, peak) if keep.keeps else peak), totals

  lowest = float(jnp.finfo(heads.dtype).min)  # finite, as −inf less −inf would be NaN
  start = Start((form.query_size,), lowest), Start((V + 1, form.query_size))
  peak, total = heads.visit(tile, start, by_queries=True)
  mass = heads.attending(join(total[:, :, :, -1]), 0)
  alive = mass > 0
  mass = jnp.where(alive, mass, 1)
  log_normaliser = jnp.where(alive, join(peak) + jnp.log2(mass), jnp.inf)
  alive, mass = (x.reshape(*total.shape[:3], 1, form.query_size) for x in (alive, mass))
  return jnp.where(alive, total[:, :, :, :-1] / mass, 0), log_normaliser


def _backward_heads(
  heads: Heads, value_BNSV: jax.Array, log_normaliser: jax.Array, by_out: jax.Array, mean_by_weight: jax.Array
) -> tuple[Scores, jax.Array]:
  """The gradients by the scores' operands and by the values; those by weights are in nats to begin with.

  Args:
    heads: the operands of the scores.
    value_BNSV: padded.
    log_normaliser: of the forward pass.
    by_out: the derivatives by the outputs, [B, N, blocks·V, queries].
    mean_by_weight: those by a query's weights, weighted by these, [B, N, T'].
  """
  form, exp = heads.form, exponential.of_tiles(heads.dtype)
  C, M, H, V = form.products, form.components, form.H, value_BNSV.shape[3]
  together = C * form.key_size
  keys = heads.key[..., :H]
  if form.has_row and M == C:  # with ones beside the keys of each product, the one for dq also sums those by row terms
    ones = jnp.tile(jnp.repeat(jnp.eye(C, dtype=heads.dtype), form.key_size, axis=0), (keys.shape[2] // together, 1))
    keys = jnp.concatenate([keys, jnp.broadcast_to(ones, (*keys.shape[:3], C))], axis=3)
  key_T = join(form.turned(keys, together))

  def tile(place: Place, state: dict[str, jax.Array], keep: Keeper) -> dict[str, jax.Array]:
    mixing, dropout, normaliser = heads.tile_mixing(place), heads.dropout(place), heads.rows(log_normaliser, place)
    scores = heads.scores(place, keep, allowed=heads.allowed(place))
    weights = keep(tiles.weights(scores, normaliser, heads.options.estep, mixing, exp))
    used = weights if dropout is None else keep(weights * dropout)
    own_by_out = keep(heads.row_block(by_out, place))
    by_value = keep(_times_transposed(used, own_by_out))
    by_used = keep(keep(heads.columns(value_BNSV, place, -2) * NATS) @ own_by_out)
    by_weight = (by_used if dropout is None else by_used * dropout) - heads.rows(mean_by_weight, place)
    gradient = tiles.backward(scores, normaliser, by_weight, heads.options.estep, mixing, exp)
    by_product = keep(tiles.by_product(gradient, C))
    by_query = keep(keep(heads.block(key_T, place)) @ by_product)
    by_key = keep(_times_transposed(by_product, keep(heads.queries(place))))
    state = state | {
      "query": heads.add(state["query"], place, by_query[:H]),
      "key": heads.add(state["key"], place, by_key.ravel(), of_keys=True),
      "value": heads.add(state["value"], place, by_value.ravel(), of_keys=True),
    }
    row_part = by_query[H:]
    column_part = keep(jnp.sum(by_product, axis=1)) if form.has_column else None
    if M > C:
      assert column_part is not None
      parts = [keep(part) for part in tiles.by_component(gradient, mixing)[:-1]]
      rows, columns = ([keep(jnp.sum(part, axis=axis)) for part in parts] for axis in (0, 1))
      row_part = jnp.stack([*rows, -sum(rows)])  # over all keys, those of all components add up to zero
      column_part = jnp.concatenate([*columns, column_part - sum(columns)])
    if form.has_row:
      state = state | {"row": heads.add(state["row"], place, row_part)}
    if column_part is not None:
      state = state | {"column": heads.add(state["column"], place, column_part, of_keys=True)}
    return state

  start = {  # for keys as rows of numbers, which XLA:CPU adds up faster than narrow matrices
    "query": Start((H, form.query_size)),
    "key": Start((together * H,), of_keys=True),
    "value": Start((form.key_size * V,), of_keys=True),
  }
  if form.has_row:
    start["row"] = Start((M, form.query_size))
  if form.has_column:
    start["column"] = Start((M * form.key_size,), of_keys=True)
  by = heads.visit(tile, start, by_queries=False)
  by_row = join(by["row"].swapaxes(2, 3), 3)[..., : form.T] if form.has_row else None
  by_column = form.join(join(by["column"]), M) if form.has_column else None
  own = heads.B, heads.N
  return Scores(
    query=join(by["query"].swapaxes(3, 4))[:, :, : form.T],
    key=form.join(by["key"].reshape(*own, C * form.padded_S, H), C),
    row=by_row,
    column=by_column,
    shared=None if by_column is None or not form.has_shared else over_components(jnp.add, by_column)[:, :, 0],
  ), by["value"].reshape(*own, form.padded_S, V)[:, :, : form.S]


def _times_transposed(x: jax.Array, y: jax.Array) -> jax.Array:
  """x yᵀ. XLA:CPU needs no transposed copy of y for it."""
  return lax.dot_general(x, y, (((1,), (1,)), ((), ())))
