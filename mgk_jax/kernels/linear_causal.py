"""Causal linear attention in chunks, with its own gradient.

    z_i = Σ_{j≤i} e^{w_j} φ_i·Φ_j        h_i = Σ_{j≤i} e^{w_j} (φ_i·Φ_j) v_j / z_i

A column of ones beside the values makes one product yield numerator and denominator: with v'_j = [v_j, 1] and the
state K = Σ_j e^{w_j} Φ_j v'_jᵀ of all earlier chunks, a chunk of queries adds φ_i K and the quadratic part inside the
chunk. With g'_i = [g_i, −g_i·h_i] / z_i, where g is the cotangent of h, the gradients have the same form:

    dφ_i = Σ_{j≤i} e^{w_j} (g'_i·v'_j) Φ_j         forwards over the chunks with the state Kᵀ
    dΦ_j = Σ_{i≥j} e^{w_j} (v'_j·g'_i) φ_i         backwards with the state Rᵀ,  R = Σ_i φ_i g'_iᵀ
    dv_j = Σ_{i≥j} e^{w_j} (Φ_j·φ_i) g_i / z_i     backwards with the state R

Numerator and denominator of row i are scaled by e^{−p_i} with the running maximum p_i = max_{j≤i} w_j. Every factor
that arises, inside a chunk and between chunks, is then at most 1, so weights of any range are safe, and no row depends
on a later one. Where the positions go on from earlier ones, K starts as the state of those, and dK is what R ends as.

Temporary memory per head: O(chunk² + F·V) besides inputs and outputs. Batch and heads stay leading axes of every
product: a computation sharded over them needs no communication. All products contract the last axis of their left
operand with the first of the right one, which XLA computes fastest on CPUs.
"""

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels.linear_features import FLOOR, divide

CHUNK = 64  # the fastest on CPUs: larger ones spend more on the quadratic part than they save in steps


class Start(NamedTuple):
  """The state of earlier positions: e^{−peak} Σ_j e^{w_j} Φ_j v'_jᵀ, [B, N, F, V + 1], and its peak [B, N]."""

  sums: jax.Array
  peak: jax.Array


def attention(
  query_BTNF: jax.Array,
  key_BSNF: jax.Array,
  value_BSNV: jax.Array,
  log_weight_BSN: jax.Array | None,
  chunk: int = CHUNK,
  start: Start | None = None,
) -> jax.Array:
  """h, [B, T, N, V]: query i attends to keys j <= i; zeros where z_i vanishes.

  Args:
    query_BTNF: φ, the features of the queries.
    key_BSNF: Φ, the mixed features of the keys; zero for a key that nobody may attend to.
    value_BSNV: values.
    log_weight_BSN: w, finite, [B|1, S, N], or None for zeros; no gradient flows into it.
    chunk: number of positions that are processed at once.
    start: the state of positions before the first, with which `log_weight_BSN` must be given.
  """
  T = query_BTNF.shape[1]
  chunk = min(chunk, T)
  length = -(-T // chunk) * chunk

  def fit(x_BLN: jax.Array, fill: float = 0.0) -> jax.Array:
    # Keys past the last query are seen by nobody; queries and keys with zero features are inert.
    x_BLN = x_BLN[:, :T]
    padding = [(0, 0), (0, length - x_BLN.shape[1])] + [(0, 0)] * (x_BLN.ndim - 2)
    return jnp.pad(x_BLN, padding, constant_values=fill)

  weights = None
  if log_weight_BSN is not None:
    log_weight = fit(lax.stop_gradient(log_weight_BSN), FLOOR)
    peak = lax.cummax(log_weight, axis=1)
    # The state before the first chunk is zero without a start, so that the peak before it has no effect.
    before = peak[:, :1] if start is None else lax.stop_gradient(start.peak)[:, None]
    weights = Weights(log_weight, peak if start is None else jnp.maximum(peak, before), before)
  state = None if start is None else start.sums
  return _attention(chunk, fit(query_BTNF), fit(key_BSNF), fit(value_BSNV), weights, state)[:, :T]


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Weights:
  """w_j and its running maximum p_i, both [B|1, L, N], and the maximum before the first position, [B|1, 1, N]."""

  log_weight: jax.Array
  peak: jax.Array
  start: jax.Array


@dataclasses.dataclass(frozen=True)
class Decay:
  """The factors of one chunk, each at most 1; `before` and `end` are the peaks before and at the end of the chunk."""

  within: jax.Array  # e^{w_j − p_i}, [B, N, i, j]
  row: jax.Array  # e^{before − p_i}, [B, N, i, 1]
  column: jax.Array  # e^{w_j − end}, [B, N, j, 1]
  state: jax.Array  # e^{before − end}, [B, N, 1, 1]


def _decay(weights: Weights | None, i: jax.Array, chunk: int, dtype: jnp.dtype) -> Decay:
  if weights is None:
    one = jnp.ones((1, 1, 1, 1), dtype)
    return Decay(one, one, one, one)
  w, p = (_rows(x[..., None], i, chunk) for x in (weights.log_weight, weights.peak))
  before = _rows(weights.peak[..., None], jnp.maximum(i * chunk - 1, 0), 1)
  before = jnp.where(i == 0, _rows(weights.start[..., None], 0, 1), before)
  end = p[:, :, -1:]
  within = jnp.exp(jnp.minimum(jnp.swapaxes(w, 2, 3) - p, 0))
  return Decay(within, jnp.exp(before - p), jnp.exp(w - end), jnp.exp(before - end))


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(
  chunk: int, query_BLNF, key_BLNF, value_BLNV, weights: Weights | None, start_FV: jax.Array | None
) -> jax.Array:
  return _forward(chunk, query_BLNF, key_BLNF, value_BLNV, weights, start_FV)[0]


def _forward(chunk: int, query_BLNF, key_BLNF, value_BLNV, weights: Weights | None, start_FV: jax.Array | None):
  causal = jnp.tril(jnp.ones((chunk, chunk), bool))

  def step(i, carry):
    state_FV, out, total = carry
    query, key, value = (_rows(x, i, chunk) for x in (query_BLNF, key_BLNF, value_BLNV))
    key_T, value, decay = _transpose(key), _with_ones(value), _decay(weights, i, chunk, value.dtype)
    scores = jnp.where(causal, _dot(query, key_T) * decay.within, 0)
    sums = _dot(scores, value) + _dot(query, state_FV) * decay.row
    state_FV = state_FV * decay.state + _dot(key_T, value * decay.column)
    out = _set_rows(out, i, divide(sums[..., :-1], sums[..., -1:]))
    return state_FV, out, _set_rows(total, i, sums[..., -1:])

  state = _empty_state(key_BLNF, _with_ones(value_BLNV)) if start_FV is None else start_FV
  empty = state, jnp.zeros_like(value_BLNV), jnp.zeros_like(value_BLNV[..., :1])
  _, out, total = lax.fori_loop(0, value_BLNV.shape[1] // chunk, step, empty)
  return out, (query_BLNF, key_BLNF, value_BLNV, weights, start_FV, out, total)


def _backward(chunk: int, residuals, by_out_BLNV: jax.Array):
  query_BLNF, key_BLNF, value_BLNV, weights, start_FV, out, total = residuals
  chunks = value_BLNV.shape[1] // chunk
  causal = jnp.tril(jnp.ones((chunk, chunk), bool))

  def by_sums(i):
    by_out, h, z = (_rows(x, i, chunk) for x in (by_out_BLNV, out, total))
    by_numerator = divide(by_out, z)
    return jnp.concatenate([by_numerator, -jnp.sum(by_numerator * h, axis=-1, keepdims=True)], axis=-1)

  def query_step(i, carry):
    state_VF, by_query = carry
    key, value, by_sum = _rows(key_BLNF, i, chunk), _rows(value_BLNV, i, chunk), by_sums(i)
    value_T, decay = _transpose(_with_ones(value)), _decay(weights, i, chunk, value.dtype)
    by_scores = jnp.where(causal, _dot(by_sum, value_T) * decay.within, 0)
    by_query = _set_rows(by_query, i, _dot(by_scores, key) + _dot(by_sum, state_VF) * decay.row)
    return state_VF * decay.state + _dot(value_T, key * decay.column), by_query

  state_VF = _empty_state(_with_ones(value_BLNV), key_BLNF) if start_FV is None else _transpose(start_FV)
  _, by_query = lax.fori_loop(0, chunks, query_step, (state_VF, jnp.zeros_like(query_BLNF)))

  def key_step(steps_done, carry):
    i = chunks - 1 - steps_done
    state_FV, by_key, by_value = carry
    query, key, value = (_rows(x, i, chunk) for x in (query_BLNF, key_BLNF, value_BLNV))
    by_sum, value, decay = by_sums(i), _with_ones(value), _decay(weights, i, chunk, value.dtype)
    query_T, by_sum_T, within_T = _transpose(query), _transpose(by_sum), _transpose(decay.within)
    scores = jnp.where(causal.T, _dot(key, query_T) * within_T, 0)
    by_scores = jnp.where(causal.T, _dot(value, by_sum_T) * within_T, 0)
    later_by_key = _dot(value, _transpose(state_FV)) * decay.column
    later_by_value = _dot(key, state_FV[..., :-1]) * decay.column
    by_key = _set_rows(by_key, i, _dot(by_scores, query) + later_by_key)
    by_value = _set_rows(by_value, i, _dot(scores, by_sum[..., :-1]) + later_by_value)
    return state_FV * decay.state + _dot(query_T, by_sum * decay.row), by_key, by_value

  empty = jnp.zeros_like(_transpose(state_VF)), jnp.zeros_like(key_BLNF), jnp.zeros_like(value_BLNV)
  by_start, by_key, by_value = lax.fori_loop(0, chunks, key_step, empty)
  return by_query, by_key, by_value, None, None if start_FV is None else by_start


_attention.defvjp(_forward, _backward)


def _rows(x_BLNF: jax.Array, i: jax.Array | int, chunk: int) -> jax.Array:
  """Chunk i of the positions, [B, N, chunk, F]."""
  return jnp.swapaxes(lax.dynamic_slice_in_dim(x_BLNF, i * chunk, chunk, axis=1), 1, 2)


def _set_rows(x_BLNF: jax.Array, i: jax.Array, rows_BNCF: jax.Array) -> jax.Array:
  """`x_BLNF` with chunk i of the positions replaced."""
  return lax.dynamic_update_slice_in_dim(x_BLNF, jnp.swapaxes(rows_BNCF, 1, 2), i * rows_BNCF.shape[2], axis=1)


def _with_ones(value: jax.Array) -> jax.Array:
  return jnp.concatenate([value, jnp.ones_like(value[..., :1])], axis=-1)


def _transpose(x: jax.Array) -> jax.Array:
  return jnp.swapaxes(x, -1, -2)


def _dot(left: jax.Array, right: jax.Array) -> jax.Array:
  return jnp.einsum("bnij,bnjk->bnik", left, right)


def _empty_state(left_BLNX: jax.Array, right_BLNY: jax.Array) -> jax.Array:
  """Zeros [B, N, X, Y], sharded as the product of one position is, which itself is never computed."""
  return jnp.zeros_like(_dot(_transpose(_rows(left_BLNX, 0, 1)), _rows(right_BLNY, 0, 1)))
