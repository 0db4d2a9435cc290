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
  out_BNTV = _attention(options, *vary_alike((in_bits, value, limits, factored)))
  return jnp.einsum("bntv->btnv", out_BNTV)


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
  operands = vary_alike((operands_lib.prepare(scores, limits, options), value_BNSV, limits, factored))
  out_BNVT, log_normaliser = blocks.map_heads(_forward_heads, options, operands)
  return jnp.swapaxes(out_BNVT, 2, 3), (operands, out_BNVT, log_normaliser)


@_compiled
def _compiled_backward(options: Options, traced_for: Any, residuals: Any, by_out: jax.Array):
  del traced_for
  operands, *results = residuals
  by_scores, by_value = blocks.map_heads(_backward_heads, options, (*operands, *results, by_out))
  return by_scores, by_value, None, None


def _forward_heads(heads: Heads, value_BNSV: jax.Array) -> tuple[jax.Array, jax.Array]:
  """Outputs [B, N, V, T] and log normalisers [B, N, T] (+inf for a query that attends to nothing)."""
  form, exp = heads.form, exponential.of_tiles(heads.dtype)
  value_VS = form.pad_columns(jnp.swapaxes(value_BNSV, 2, 3))
  if heads.dropped is None:  # then with ones the same product sums the weights
    value_VS = _with_ones(value_VS)

  def tile(place: Place, state: tuple[jax.Array, jax.Array], keep: Keeper) -> tuple[jax.Array, jax.Array]:
    peaks, totals = state
    scores = heads.scores(place, keep, allowed=heads.allowed(place), keep_sums=True)
    tops = [keep(tiles.peak(score)) for score in ([scores] if isinstance(scores, jax.Array) else [[x] for x in scores])]
    old_peak = heads.rows_so_far(peaks, place)
    peak = keep(jnp.maximum(old_peak, functools.reduce(jnp.maximum, tops)))
    weights = keep(tiles.weights(scores, peak, heads.options.estep, heads.tile_mixing(place), exp))
    fading, value, dropout = keep(jnp.exp2(old_peak - peak)), keep(heads.columns(value_VS, place)), heads.dropout(place)
    if dropout is None:
      update = keep(value @ weights)
    else:
      dropped, mass = keep(weights * dropout), keep(jnp.sum(weights, axis=0, keepdims=True))
      update = jnp.concatenate([keep(value @ dropped), mass])
    totals = heads.set_rows(totals, place, heads.rows_so_far(totals, place) * fading + update)
    return heads.set_rows(peaks, place, lanes.after(totals, peak) if keep.keeps else peak), totals

  lowest = float(jnp.finfo(heads.dtype).min)  # finite, as −inf less −inf would be NaN
  start = Start((1, form.padded_T), lowest), Start((value_BNSV.shape[3] + 1, form.padded_T))
  peak, total_VT = heads.visit(tile, start, by_queries=True)
  mass = heads.attending(total_VT[:, :, -1], 0)
  alive = mass > 0
  mass = jnp.where(alive, mass, 1)
  out_VT = jnp.where(alive[:, :, None], total_VT[:, :, :-1] / mass[:, :, None], 0)[..., : form.T]
  log_normaliser = jnp.where(alive, peak[:, :, 0] + jnp.log2(mass), jnp.inf)
  return out_VT, log_normaliser[:, :, : form.T]


def _backward_heads(
  heads: Heads, value_BNSV: jax.Array, out_BNVT: jax.Array, log_normaliser: jax.Array, by_out_BNTV: jax.Array
) -> tuple[Scores, jax.Array]:
  """The gradients by the scores' operands and by the values."""
  form, exp = heads.form, exponential.of_tiles(heads.dtype)
  C, M, H, V = form.products, form.components, form.H, value_BNSV.shape[3]
  value, by_out_VT = form.pad_columns(value_BNSV, -2), form.pad_rows(jnp.swapaxes(by_out_BNTV, 2, 3))
  # As a product with ones: XLA:CPU is slow with the sum of a product.
  ones = jnp.ones((heads.B, heads.N, V), heads.dtype)
  mean_by_weight = jnp.einsum("bnv,bnvt->bnt", ones, form.pad_rows(out_BNVT) * by_out_VT)
  log_normaliser = form.pad_rows(log_normaliser, fill=jnp.inf)
  together = C * form.key_size
  own = heads.key.shape[:2]
  key_T = heads.key[..., :H].reshape(*own, form.padded_S // form.key_size, together, H).swapaxes(3, 4)
  if form.has_row and M == C:  # with ones under the keys of each product, the one for dq also sums those by row terms
    ones = jnp.repeat(jnp.eye(C, dtype=heads.dtype), form.key_size, axis=1)
    key_T = jnp.concatenate([key_T, jnp.broadcast_to(ones, (*key_T.shape[:3], *ones.shape))], axis=3)
  key_T = key_T.reshape(*own, key_T.shape[2] * key_T.shape[3], together)

  def tile(place: Place, state: dict[str, jax.Array], keep: Keeper) -> dict[str, jax.Array]:
    mixing, dropout, normaliser = heads.tile_mixing(place), heads.dropout(place), heads.rows(log_normaliser, place)
    scores = heads.scores(place, keep, allowed=heads.allowed(place))
    weights = keep(tiles.weights(scores, normaliser, heads.options.estep, mixing, exp))
    used = weights if dropout is None else keep(weights * dropout)
    own_by_out_VT = keep(heads.rows(by_out_VT, place))
    by_value = keep(_times_transposed(used, own_by_out_VT))
    by_used = keep(keep(heads.columns(value, place, -2)) @ own_by_out_VT)
    by_weight = (by_used if dropout is None else by_used * dropout) - heads.rows(mean_by_weight, place)
    gradient = tiles.backward(scores, normaliser, by_weight, heads.options.estep, mixing, exp)
    by_product = keep(tiles.by_product(gradient, C))
    by_query = keep(keep(heads.block(key_T, place)) @ by_product)
    by_key = keep(_times_transposed(by_product, keep(heads.queries(place))))
    state = state | {
      "query": heads.add_rows(state["query"], place, by_query[:H]),
      "key": heads.add_block(state["key"], place, by_key),
      "value": heads.add_block(state["value"], place, by_value),
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
      state = state | {"row": heads.add_rows(state["row"], place, row_part)}
    if column_part is not None:
      state = state | {"column": heads.add_block(state["column"], place, column_part)}
    return state

  T, S = form.padded_T, form.padded_S
  start = {"query": Start((H, T)), "key": Start((C * S, H)), "value": Start((S, V))}
  if form.has_row:
    start["row"] = Start((M, T))
  if form.has_column:
    start["column"] = Start((M * S,))
  by = heads.visit(tile, start, by_queries=False)
  # Tiles have the derivatives by scores in nats.
  by_column = form.join(by["column"], M) * NATS if form.has_column else None
  return Scores(
    query=jnp.swapaxes(by["query"], 2, 3)[:, :, : form.T] * NATS,
    key=form.join(by["key"], C) * NATS,
    row=by["row"][..., : form.T] * NATS if form.has_row else None,
    column=by_column,
    shared=None if by_column is None or not form.has_shared else over_components(jnp.add, by_column)[:, :, 0],
  ), by["value"][:, :, : form.S]


def _times_transposed(x: jax.Array, y: jax.Array) -> jax.Array:
  """x yᵀ. XLA:CPU needs no transposed copy of y for it."""
  return lax.dot_general(x, y, (((1,), (1,)), ((), ())))


def _with_ones(x_BNVS: jax.Array) -> jax.Array:
  """`x_BNVS` with one more row, all ones."""
  return jnp.concatenate([x_BNVS, jnp.ones_like(x_BNVS[:, :, :1])], axis=2)
