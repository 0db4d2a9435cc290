"""Attention in blocks with its own gradient: temporary memory O(T + S), and no work for padding.

Each head of each example (`blocks.map_heads`) is computed tile by tile with a running maximum and sum. The backward
pass computes every tile once more from its scores and gets all gradients from it: with transposed tiles dk and dv
accumulate over the inner loop and dqᵀ in place, and all five products are plain row-major ones.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels import blocks, dispatch, exponential, tiles
from mgk_jax.kernels.blocks import Head, Limits, Options
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.dropout import Dropout
from mgk_jax.kernels.exponential import NATS
from mgk_jax.kernels.heads import vary_alike
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.scores import Scores


def attention(
  scores: Scores, value_BSNV: jax.Array, masking: Masking, dims: Dims, estep: str, dropout: Dropout | None
) -> jax.Array:
  """h_i = Σ_j A_ij v_j, [B, T, N, V], in float32 or float64."""
  options = Options(estep, masking.is_causal, 0.0 if dropout is None else dropout.rate)
  in_bits = scores.in_bits()
  limits = blocks.limits(masking, dims, in_bits.query.dtype, dropout)
  factored = blocks.can_factor(scores, limits)
  value = jnp.einsum("bsnv->bnsv", value_BSNV).astype(in_bits.query.dtype)
  out_BNTV = _attention(options, *vary_alike((in_bits, value, limits, factored)))
  return jnp.einsum("bntv->btnv", out_BNTV)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
  options: Options, scores: Scores, value_BNSV: jax.Array, limits: Limits, factored: jax.Array | None
) -> jax.Array:
  return _forward(options, scores, value_BNSV, limits, factored)[0]


def _forward(options: Options, scores: Scores, value_BNSV: jax.Array, limits: Limits, factored: jax.Array | None):
  operands = (scores, value_BNSV, limits, factored)
  out, log_normaliser = blocks.map_heads(_forward_head, options, operands)
  return out, (operands, out, log_normaliser)


def _backward(options: Options, residuals, by_out: jax.Array):
  operands, out, log_normaliser = residuals
  mean_by_weight = jnp.einsum("bntv,bntv->bnt", out, by_out)
  by_scores, by_value = blocks.map_heads(_backward_head, options, (*operands, by_out, log_normaliser, mean_by_weight))
  return by_scores, by_value, None, None


_attention.defvjp(_forward, _backward)


def _forward_head(head: Head, value_SV: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The output [T, V] and the log normaliser [T] (+inf for a query that attends to nothing) of one head."""
  V, exp = value_SV.shape[1], exponential.of_tiles(head.query.dtype)
  value_VS = head.pad_columns(_with_ones(value_SV.T, 0))  # with ones the same product sums the weights

  def query_block(_, i, outputs):
    parts = head.parts(i)

    def tile(place, old_peak, total_VQ):
      scores = head.scores(place, allowed=head.allowed(place))
      peak = jnp.maximum(old_peak, tiles.peak(scores))
      weights = tiles.weights(scores, peak, head.options.estep, head.tile_mixing(place), exp)
      total_VQ = total_VQ * jnp.exp2(old_peak - peak)
      value = head.columns(value_VS, place)
      dropout = head.dropout(place)
      if dropout is None:
        update = value @ weights
      else:
        update = jnp.concatenate([value[:-1] @ (weights * dropout), jnp.sum(weights, axis=0, keepdims=True)])
      return peak, total_VQ + update, [scores[0], weights]

    def key_block(is_cut, j, carry):
      # XLA takes what does not depend on j out of the loop: with a single block the scores, one part after the other.
      here = [jnp.minimum(part, part + j) for part in parts]
      sums = [tile(place, *sums) for place, sums in zip(head.places(here, j, is_cut), carry, strict=True)]
      peaks, totals, used = zip(*sums, strict=True)
      return [(_after(used, peak), total_VQ) for peak, total_VQ in zip(peaks, totals, strict=True)]

    lowest = float(jnp.finfo(head.query.dtype).min)  # finite, as −inf less −inf would be NaN
    start = head.full((head.query_size,), lowest), head.full((V + 1, head.query_size))
    carry = head.loop(head.key_ranges(i), key_block, [start] * head.num_parts)
    for part, (peak, total_VQ) in zip(parts, carry, strict=True):
      mass = total_VQ[-1]
      alive = mass > 0
      out = jnp.where(alive, total_VQ[:-1] / jnp.where(alive, mass, 1), 0)
      log_normaliser = jnp.where(alive, peak + jnp.log2(jnp.where(alive, mass, 1)), jnp.inf)
      outputs = head.set_rows(outputs[0], part, out), head.set_rows(outputs[1], part, log_normaliser)
    return outputs

  padded_T = head.query.shape[0]
  empty = head.full((V, padded_T)), head.full((padded_T,), jnp.inf)
  out_VT, log_normaliser = head.loop([(0, head.query_blocks, False)], query_block, empty)
  out_VT = jnp.where(jnp.isposinf(head.attending(log_normaliser, jnp.inf)), 0, out_VT)
  return out_VT[:, : head.T].T, head.attending(log_normaliser, jnp.inf)[: head.T]


def _backward_head(
  head: Head, value_SV: jax.Array, by_out_TV: jax.Array, log_normaliser_T: jax.Array, mean_by_weight_T: jax.Array
) -> tuple[Scores, jax.Array]:
  """The gradients by the scores' operands and by the values of one head."""
  C, M, V, H = head.products, head.num_components, value_SV.shape[1], head.query.shape[1]
  key_blocks, padded_T = len(head.key), len(head.query)
  value, by_out = head.cut(head.pad_columns(value_SV, 0)[None]), head.pad_rows(by_out_TV, 0)
  by_out_VT, key_BHK = by_out.T * NATS, jnp.swapaxes(head.key[..., :H], 1, 2)
  mean_by_weight = head.pad_rows(mean_by_weight_T) * NATS
  log_normaliser = head.pad_rows(log_normaliser_T, fill=jnp.inf)
  exp = exponential.of_tiles(head.query.dtype)
  # With ones under the keys of each product, the product for dq also sums the derivatives by the row terms. Those by
  # the column terms have one of their own: a 33rd number of dk would need a third register for each key.
  over_queries = jnp.ones(head.query_size, head.query.dtype)
  if head.has_row:
    ones = jnp.repeat(jnp.eye(C, dtype=head.query.dtype), head.key_size, axis=1)
    key_BHK = jnp.concatenate([key_BHK, jnp.broadcast_to(ones, (key_blocks, *ones.shape))], axis=1)

  def parts_of(i):
    # Computed a step before: what a loop carries is there when a step begins, so that its chains begin side by side,
    # and is an array of its own. XLA:CPU does not vectorise a loop over several tiles that slices a row for each.
    return [(part, head.rows(log_normaliser, part)) for part in head.parts(i)]

  def key_block(_, j, carry):
    value_block, key_HK = (lax.dynamic_index_in_dim(x, j, keepdims=False) for x in (value, key_BHK))

    def tile(place, normaliser):
      first, mixing, dropout = place.first, head.tile_mixing(place), head.dropout(place)
      scores = head.scores(place, allowed=head.allowed(place))
      weights = tiles.weights(scores, normaliser, head.options.estep, mixing, exp)
      by_value = (weights if dropout is None else weights * dropout) @ head.rows(by_out, first, 0)
      by_out_VQ = head.rows(by_out_VT, first)
      # With several components the weights are a tile of their own: used first, they leave its memory to the next one.
      by_used = head.shorten(value_block, place) @ (by_out_VQ if C == 1 else _after([by_value], by_out_VQ))
      by_weight = (by_used if dropout is None else by_used * dropout) - head.rows(mean_by_weight, first)
      gradient = tiles.backward(scores, normaliser, by_weight, head.options.estep, mixing, exp)
      by_product = tiles.by_product(gradient, C)
      by_query = head.shorten(key_HK, place, 1) @ by_product
      by_keys = {"key": by_product @ head.rows(head.query, first, 0), "value": by_value}
      by_queries = {"query": by_query[:H]}
      row_part, column_part = by_query[H:], by_product @ over_queries
      if M > C:
        row_part, column_part = tiles.by_additive_terms(gradient, mixing, row_part[0], column_part)
      if head.has_row:
        by_queries["row"] = row_part
      if head.has_column:
        by_keys["column"] = column_part.reshape(-1)
      used: list[jax.Array] = []
      if M == 1:
        used = [by_used, weights, by_product, by_query, by_keys["key"], by_value]
      elif C > 1:
        used = [by_product]
      return by_queries, {name: head.lengthen(x, place) for name, x in by_keys.items()}, used

    def query_block(is_cut, _, carry, parts):
      by_queries, by_block = carry
      firsts, normalisers = zip(*parts, strict=True)
      *gradients, used = zip(*map(tile, head.places(firsts, j, is_cut), normalisers), strict=True)
      for first, query_part, key_part in zip(firsts, *gradients, strict=True):
        for name, x in by_queries.items():
          by_query = _after(used, query_part[name])
          by_queries |= {name: head.set_rows(x, first, head.rows(x, first) + by_query)}
        by_block = jax.tree.map(jnp.add, by_block, key_part)
      return by_queries, by_block

    by_queries, by_keys = carry
    by_block = {name: head.full(x.shape[1:]) for name, x in by_keys.items()}
    by_queries, by_block = head.loop(head.query_ranges(j), query_block, (by_queries, by_block), parts_of)
    return by_queries, jax.tree.map(lambda x, block: lax.dynamic_update_index_in_dim(x, block, j, 0), by_keys, by_block)

  by_queries = {"query": head.full((H, padded_T))}
  by_keys = {"key": head.full((key_blocks, C * head.key_size, H)), "value": head.full((key_blocks, head.key_size, V))}
  if head.has_row:
    by_queries["row"] = head.full((M, padded_T))
  if head.has_column:
    by_keys["column"] = head.full((key_blocks, M * head.key_size))
  by_queries, by_keys = head.loop([(0, head.key_blocks, False)], key_block, (by_queries, by_keys))
  by_keys = {name: head.join(x) for name, x in by_keys.items()}
  return Scores(
    query=by_queries["query"][:, : head.T].T,
    key=by_keys["key"],
    row=by_queries["row"][:, : head.T] if head.has_row else None,
    column=by_keys.get("column"),
    shared=jnp.sum(by_keys["column"], axis=0) if head.has_shared else None,
  ), by_keys["value"][0]


def _after(tiles: Any, x: jax.Array) -> jax.Array:
  """`x`, in a form that XLA:CPU computes after `tiles`: no number is greater than infinity.

  What comes after all tiles of a step keeps each of them from lying where another one was, for which one part of the
  step would wait for another. In the backward pass, where tiles of several components take more memory, that is worth
  it for the derivatives alone, and where components share a product for none.
  """
  leaves = jax.tree.leaves(tiles)
  if dispatch.platform() != "cpu" or not leaves:
    return x
  return x + (jnp.max(jnp.stack([tile[0, 0] for tile in leaves])) > jnp.inf).astype(x.dtype)


def _with_ones(x: jax.Array, axis: int) -> jax.Array:
  """`x` with one more entry along `axis`, all ones."""
  return jnp.concatenate([x, jnp.ones_like(lax.slice_in_dim(x, 0, 1, axis=axis))], axis)
