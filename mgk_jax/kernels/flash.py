"""What Pallas kernels have in common: their operands, the choice of form, and the gradient as a whole.

A backend is a module with `check`, `forward` and `backward`; it sees all heads that a device holds at once.
"""

import dataclasses
import functools
from types import ModuleType
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels import limits as limits_lib
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.heads import over_heads, vary_alike
from mgk_jax.kernels.limits import Limits, Options
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.scores import Scores


@dataclasses.dataclass(frozen=True)
class Backend:
  """Where kernels run. `interpret` is that of pl.pallas_call: True to run them on any machine."""

  module: ModuleType
  interpret: Any = False


class Plan(NamedTuple):
  """The static part of a call. `mixing` says what `Operands.row` and `Operands.mixing` are."""

  T: int
  S: int
  H: int
  V: int
  K: int  # products
  M: int  # components
  estep: str
  is_causal: bool
  mixing: str | None  # "factors", "maxima", or None
  has_row: bool
  has_column: bool
  has_shared: bool


class Operands(NamedTuple):
  """The arrays of a call, with leading axes [B or 1, N or 1] and the sequence last; None for what there is not."""

  query: jax.Array  # [B, N, H, T]
  key: jax.Array  # [B, N, K, H, S]
  value: jax.Array  # [B, N, V, S]
  scale: jax.Array  # [1, 1, K]
  row: jax.Array | None  # [B, N, M, T]: u, or its factors
  column: jax.Array | None  # [B, N, M or 1, S]: what is added for a key, −inf if it is masked
  mixing: jax.Array | None  # [B, N, M, S]: w, or its factors, where the components share a product
  mask: jax.Array | None  # int8 [B or 1, N or 1, S, T]
  query_segment: jax.Array | None  # int32 [B, 1, 1, T]
  key_segment: jax.Array | None  # int32 [B, 1, 1, S]
  query_length: jax.Array  # int32 [B, 1]
  key_length: jax.Array  # int32 [B, 1]


class Gradients(NamedTuple):
  """The derivatives that a backward kernel gives, in float32; by `row` and `column` as the scores have them."""

  query: jax.Array
  key: jax.Array
  value: jax.Array
  row: jax.Array | None
  column: jax.Array | None
  shared: jax.Array | None  # [B, N, 1, S]


def attention(
  backend: Backend, scores: Scores, value_BSNV: jax.Array, masking: Masking, dims: Dims, estep: str
) -> jax.Array:
  """h_i = Σ_j A_ij v_j, [B, T, N, V].

  Raises:
    NotImplementedError: the backend cannot do it.
  """
  if jnp.promote_types(scores.query.dtype, value_BSNV.dtype) == jnp.float64:
    raise NotImplementedError("float64")
  if 0 in (dims.B, dims.N, dims.T, dims.S):
    raise NotImplementedError("empty arrays")
  options = Options(estep, masking.is_causal)
  lengths = _Lengths(
    *(
      jnp.broadcast_to(jnp.int32(full) if given is None else jnp.minimum(given, full), (dims.B,))[:, None]
      for given, full in ((masking.query_lengths, dims.T), (masking.key_lengths, dims.S))
    )
  )
  limits = limits_lib.make(dataclasses.replace(masking, query_lengths=None, key_lengths=None), dims, jnp.float32)
  factored = None if estep == "hard" else limits_lib.can_factor(scores, limits)
  value = jnp.einsum("bsnv->bnsv", value_BSNV)
  scores = dataclasses.replace(scores, scale=None if scores.scale is None else scores.scale[None, None])
  backend.module.check(_plan(scores, value, options, factored is not None))
  out_BNTV = _attention(backend, options, *vary_alike((scores, value, limits, lengths, factored)))
  return jnp.einsum("bntv->btnv", out_BNTV)


class _Lengths(NamedTuple):
  query: jax.Array
  key: jax.Array


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _attention(backend, options, scores, value_BNSV, limits, lengths, factored) -> jax.Array:
  return _forward(backend, options, scores, value_BNSV, limits, lengths, factored)[0]


def _forward(backend: Backend, options: Options, scores: Scores, value_BNSV, limits, lengths, factored):
  operands = (scores, value_BNSV, limits, lengths, factored)

  def kernel(operands):
    return _in_best_form(operands, options, functools.partial(backend.module.forward, interpret=backend.interpret))

  out, log_normaliser = over_heads(kernel, operands)
  out = jnp.swapaxes(out, 2, 3)
  return out, (operands, out, log_normaliser)


def _backward(backend: Backend, options: Options, residuals, by_out_BNTV: jax.Array):
  operands, out_BNTV, log_normaliser = residuals
  mean = jnp.einsum("bntv,bntv->bnt", out_BNTV.astype(jnp.float32), by_out_BNTV.astype(jnp.float32))[:, :, None]

  def kernel(operands):
    *operands, by_out, log_normaliser, mean = operands
    run = functools.partial(backend.module.backward, interpret=backend.interpret)
    return _in_best_form(
      operands, options, lambda plan, arrays: run(plan, arrays, jnp.swapaxes(by_out, 2, 3), log_normaliser, mean)
    )

  by = over_heads(kernel, (*operands, by_out_BNTV.astype(operands[1].dtype), log_normaliser, mean))
  scores, value, *_ = operands
  by_key = jnp.swapaxes(by.key, 3, 4)
  by_scale = None
  if scores.scale is not None:  # key · dL/dkey = scale · Σ_i (dL/ds_ij) q_i·k_j
    by_scale = (jnp.einsum("bnksh,bnksh->k", scores.key.astype(jnp.float32), by_key) / scores.scale[0, 0])[None, None]
  by_scores = Scores(
    query=jnp.swapaxes(by.query, 2, 3).astype(scores.query.dtype),
    key=by_key.astype(scores.key.dtype),
    row=by.row,
    column=by.column,
    shared=None if by.shared is None else by.shared[:, :, 0],
    scale=by_scale,
  )
  return by_scores, jnp.swapaxes(by.value, 2, 3).astype(value.dtype), None, None, None


_attention.defvjp(_forward, _backward)


def _in_best_form(operands, options: Options, run) -> Any:
  """Runs on all heads of a device in the factored form, where that is safe for every one, else with all scores."""
  scores, value, limits, lengths, factored = operands

  def form(use_factors: bool):
    plan = _plan(scores, value, options, use_factors)
    return lambda: run(plan, _arrange(plan, scores, value, limits, lengths))

  return form(False)() if factored is None else lax.cond(jnp.all(factored), form(True), form(False))


def _plan(scores: Scores, value_BNSV: jax.Array, options: Options, factored: bool) -> Plan:
  *_, T, H = scores.query.shape
  *_, K, S, _ = scores.key.shape
  shares = K == 1 and scores.row is not None and scores.column is not None
  mixing = "factors" if factored else "maxima" if shares and options.estep == "hard" else None
  present = (x is not None for x in (scores.row, scores.column, scores.shared))
  return Plan(T, S, H, value_BNSV.shape[-1], K, scores.num_components, *options[:2], mixing, *present)


def _arrange(plan: Plan, scores: Scores, value_BNSV: jax.Array, limits: Limits, lengths: _Lengths) -> Operands:
  dtype = jnp.promote_types(scores.query.dtype, scores.key.dtype)
  row, column, mixing = scores.row, scores.column, None
  if plan.mixing == "factors":
    assert row is not None and column is not None
    top_row, top_column = jnp.max(row, axis=2, keepdims=True), jnp.max(column, axis=2, keepdims=True)
    row, mixing = jnp.exp(row - top_row), jnp.exp(column - jnp.where(jnp.isneginf(top_column), 0, top_column))
    column = top_column
  elif plan.mixing == "maxima":
    mixing, column = column, None
  for bias in (scores.shared, limits.key_bias):
    if bias is not None:
      column = bias[:, :, None] if column is None else column + bias[:, :, None]
  if column is not None:
    column = jnp.broadcast_to(column, (*scores.query.shape[:2], *column.shape[2:]))
  mask = limits.pair_mask
  if mask is not None:
    mask = jnp.swapaxes(jnp.broadcast_to(mask, (*mask.shape[:3], plan.S)), 2, 3).astype(jnp.int8)
  scale = jnp.ones((1, 1, plan.K), jnp.float32) if scores.scale is None else scores.scale
  return Operands(
    query=jnp.swapaxes(scores.query.astype(dtype), 2, 3),
    key=jnp.swapaxes(scores.key.astype(dtype), 3, 4),
    value=jnp.swapaxes(value_BNSV, 2, 3),
    scale=scale,
    row=row,
    column=column,
    mixing=mixing,
    mask=mask,
    query_segment=None if limits.query_segments is None else limits.query_segments[:, :, None],
    key_segment=None if limits.key_segments is None else limits.key_segments[:, :, None],
    query_length=lengths.query,
    key_length=lengths.key,
  )
