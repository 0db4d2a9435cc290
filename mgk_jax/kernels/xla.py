"""Attention in blocks with its own gradient: temporary memory O(T + S), and no work for padding.

Each head of each example (`heads.map_heads`) is computed tile by tile with a running maximum and sum. The backward
pass computes every tile once more from its scores and gets all gradients from it: with transposed tiles dk and dv
accumulate over the inner loop and dqᵀ in place, and all five products are plain row-major ones.
"""

import functools

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels import blocks, tiles
from mgk_jax.kernels.blocks import Head, Limits, Options
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.dropout import Dropout
from mgk_jax.kernels.heads import map_heads, vary_alike
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.scores import Scores


def attention(
  scores: Scores, value_BSNV: jax.Array, masking: Masking, dims: Dims, estep: str, dropout: Dropout | None
) -> jax.Array:
  """h_i = Σ_j A_ij v_j, [B, T, N, V], in float32 or float64."""
  scores = scores.folded()
  options = Options(estep, masking.is_causal, 0.0 if dropout is None else dropout.rate)
  limits = blocks.limits(masking, dims, scores.query.dtype, dropout)
  factored = blocks.can_factor(scores, limits, options)
  value = jnp.einsum("bsnv->bnsv", value_BSNV).astype(scores.query.dtype)
  out_BNTV = _attention(options, *vary_alike((scores, value, limits, factored)))
  return jnp.einsum("bntv->btnv", out_BNTV)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
  options: Options, scores: Scores, value_BNSV: jax.Array, limits: Limits, factored: jax.Array | None
) -> jax.Array:
  return _forward(options, scores, value_BNSV, limits, factored)[0]


def _forward(options: Options, scores: Scores, value_BNSV: jax.Array, limits: Limits, factored: jax.Array | None):
  operands = (scores, value_BNSV, limits, factored)
  out, log_normaliser = map_heads(functools.partial(blocks.in_best_form, _forward_head, options), operands)
  return out, (operands, out, log_normaliser)


def _backward(options: Options, residuals, by_out: jax.Array):
  operands, out, log_normaliser = residuals
  mean_by_weight = jnp.einsum("bntv,bntv->bnt", out, by_out)
  by_scores, by_value = map_heads(
    functools.partial(blocks.in_best_form, _backward_head, options), (*operands, by_out, log_normaliser, mean_by_weight)
  )
  return by_scores, by_value, None, None


_attention.defvjp(_forward, _backward)


def _forward_head(head: Head, value_SV: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The output [T, V] and the log normaliser [T] (+inf for a query that attends to nothing) of one head."""
  V = value_SV.shape[1]
  value_VS = head.pad_columns(_with_ones(value_SV.T, 0))  # with ones the same product sums the weights

  def query_block(i, outputs):
    def key_block(j, carry):
      old_peak, total_VQ = carry
      scores = head.scores(i, j, allowed=head.allowed(i, j))
      peak = jnp.maximum(old_peak, tiles.peak(scores))
      offset = jnp.where(jnp.isneginf(peak), 0, peak)
      weights = tiles.weights(scores, offset, head.options.estep, head.tile_mixing(i, j))
      total_VQ = total_VQ * jnp.exp(old_peak - offset)
      value = head.columns(value_VS, j)
      dropout = head.dropout(i, j)
      if dropout is None:
        return peak, total_VQ + value @ weights
      update = jnp.concatenate([value[:-1] @ (weights * dropout), jnp.sum(weights, axis=0, keepdims=True)])
      return peak, total_VQ + update

    start = head.full((head.query_size,), -jnp.inf), head.full((V + 1, head.query_size))
    peak, total_VQ = lax.fori_loop(0, head.last_key_block(i), key_block, start)
    mass = total_VQ[-1]
    alive = mass > 0
    out = jnp.where(alive, total_VQ[:-1] / jnp.where(alive, mass, 1), 0)
    log_normaliser = jnp.where(alive, peak + jnp.log(jnp.where(alive, mass, 1)), jnp.inf)
    return head.set_rows(outputs[0], i, out), head.set_rows(outputs[1], i, log_normaliser)

  padded_T = head.query.shape[0]
  empty = head.full((V, padded_T)), head.full((padded_T,), jnp.inf)
  out_VT, log_normaliser = lax.fori_loop(0, head.query_blocks, query_block, empty)
  out_VT = jnp.where(jnp.isposinf(head.attending(log_normaliser, jnp.inf)), 0, out_VT)
  return out_VT[:, : head.T].T, head.attending(log_normaliser, jnp.inf)[: head.T]


KEY_AXIS = {"key": 1, "value": 0, "column": 1, "shared": 0}


def _backward_head(
  head: Head, value_SV: jax.Array, by_out_TV: jax.Array, log_normaliser_T: jax.Array, mean_by_weight_T: jax.Array
) -> tuple[Scores, jax.Array]:
  """The gradients by the scores' operands and by the values of one head."""
  V = value_SV.shape[1]
  (C, padded_S, H), padded_T = head.key.shape, head.query.shape[0]
  value, by_out = head.pad_columns(value_SV, 0), head.pad_rows(by_out_TV, 0)
  by_out_VT = by_out.T
  # With ones beside the queries and under the keys the same products sum the derivatives by the column and row terms.
  query = _with_ones(head.query, 1) if head.has_column else head.query
  key_CHS = jnp.moveaxis(head.key, 2, 1)
  key_CHS = _with_ones(key_CHS, 1) if head.has_row else key_CHS
  log_normaliser = head.pad_rows(log_normaliser_T, fill=jnp.inf)
  mean_by_weight = head.pad_rows(mean_by_weight_T)

  def key_block(j, carry):
    value_block, key_CHK = head.columns(value, j, 0), head.columns(key_CHS, j)

    def query_block(i, carry):
      by_queries, by_keys = carry
      mixing, dropout = head.tile_mixing(i, j), head.dropout(i, j)
      by_weight = value_block @ head.rows(by_out_VT, i)
      by_weight = by_weight if dropout is None else by_weight * dropout
      by_weight = by_weight - head.rows(mean_by_weight, i)
      scores = head.scores(i, j, allowed=head.allowed(i, j))
      tile = tiles.backward(scores, head.rows(log_normaliser, i), by_weight, head.options.estep, mixing)
      weights = tile.weights if dropout is None else tile.weights * dropout
      by_products = tile.scores if len(tile.scores) == C else [tile.inner]
      by_key = jnp.stack([x @ head.rows(query, i, 0) for x in by_products])
      by_query = [key @ x for key, x in zip(key_CHK, by_products, strict=True)]
      key_part = {"key": by_key[..., :H], "value": weights @ head.rows(by_out, i, 0)}
      query_part = {"query": functools.reduce(jnp.add, by_query)[:H]}
      row_part, column_part = jnp.stack(by_query)[:, -1], by_key[..., -1]
      if head.num_components > C:
        row_part, column_part = tiles.by_additive_terms(tile, mixing)
      if head.has_row:
        query_part["row"] = row_part
      if head.has_column:
        key_part["column"] = column_part
      if head.has_shared:
        key_part["shared"] = by_key[0, :, -1]
      by_queries = {name: head.set_rows(x, i, head.rows(x, i) + query_part[name]) for name, x in by_queries.items()}
      return by_queries, jax.tree.map(jnp.add, by_keys, key_part)

    by_queries, by_keys = carry
    by_block = {name: jnp.zeros_like(head.columns(x, j, KEY_AXIS[name])) for name, x in by_keys.items()}
    by_queries, by_block = lax.fori_loop(
      head.first_query_block(j), head.query_blocks, query_block, (by_queries, by_block)
    )
    return by_queries, {name: head.set_columns(x, j, by_block[name], KEY_AXIS[name]) for name, x in by_keys.items()}

  by_queries = {"query": head.full((H, padded_T))}
  by_keys = {"key": head.full((C, padded_S, H)), "value": head.full((padded_S, V))}
  if head.has_row:
    by_queries["row"] = head.full((head.num_components, padded_T))
  if head.has_column:
    by_keys["column"] = head.full((head.num_components, padded_S))
  if head.has_shared:
    by_keys["shared"] = head.full((padded_S,))
  by_queries, by_keys = lax.fori_loop(0, head.key_blocks, key_block, (by_queries, by_keys))
  return Scores(
    query=by_queries["query"][:, : head.T].T,
    key=by_keys["key"][:, : head.S],
    row=by_queries["row"][:, : head.T] if head.has_row else None,
    column=by_keys["column"][:, : head.S] if head.has_column else None,
    shared=by_keys["shared"][: head.S] if head.has_shared else None,
  ), by_keys["value"][: head.S]


def _with_ones(x: jax.Array, axis: int) -> jax.Array:
  """`x` with one more entry along `axis`, all ones."""
  return jnp.concatenate([x, jnp.ones_like(lax.slice_in_dim(x, 0, 1, axis=axis))], axis)
