"""Causal linear attention for TPUs by Pallas: the chunks of `linear_causal` with the state in VMEM.

Operands have the sequence as their last axis, [F, T], [F, S] and [V', S], where V' is V and one row of ones, padded:
one product then yields numerator and denominator. Tiles are [keys, queries] of one chunk, in which a query sees the
keys up to its own place. With S = Σ_j v'_j Φ_jᵀ over all earlier chunks, a grid that goes through them in order has

    sums_i = Σ_{j≤i} v'_j (Φ_j·φ_i) + S φ_i                and        dφ_i = Σ_{j≤i} Φ_j (v'_j·g'_i) + Sᵀ g'_i,

and one that goes through them backwards, with R = Σ_i g'_i φ_iᵀ over all later chunks,

    dΦ_j = Σ_{i≥j} φ_i (v'_j·g'_i) + Rᵀ v'_j               and        dv'_j = Σ_{i≥j} g'_i (Φ_j·φ_i) + R Φ_j.
"""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mgk_jax.kernels import dispatch
from mgk_jax.kernels.heads import over_heads, vary_alike
from mgk_jax.kernels.linear_features import divide

CHUNK = 256
SUBLANES = 8


def attention(
  query_BTNF: jax.Array, key_BSNF: jax.Array, value_BSNV: jax.Array, log_weight_BSN: jax.Array | None
) -> jax.Array:
  """h, [B, T, N, V], as `linear_causal.attention` gives it; on a CPU interpreted.

  Raises:
    NotImplementedError: keys with weights of their own, float64, empty arrays, or a GPU.
  """
  platform = dispatch.platform()
  if platform == "gpu":
    raise NotImplementedError("causal linear attention on a GPU")
  if log_weight_BSN is not None:
    raise NotImplementedError("keys with weights of their own: a prior per position, or FAVOR+")
  if value_BSNV.dtype == jnp.float64 or 0 in (*query_BTNF.shape, *value_BSNV.shape):
    raise NotImplementedError("float64 or empty arrays")
  T = query_BTNF.shape[1]
  arrays = (jnp.einsum("blnf->bnfl", x[:, :T]) for x in (query_BTNF, key_BSNF, value_BSNV))
  query, key, value = vary_alike(tuple(_pad(x, T, -(-T // CHUNK) * CHUNK) for x in arrays))
  out = _attention(platform != "tpu", query, key, value)
  return jnp.einsum("bnvt->btnv", out[..., :T])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _attention(interpret: bool, query_BNFL, key_BNFL, value_BNVL) -> jax.Array:
  return _forward(interpret, query_BNFL, key_BNFL, value_BNVL)[0]


def _forward(interpret: bool, query_BNFL, key_BNFL, value_BNVL):
  V = value_BNVL.shape[2]
  sums = _scan(interpret, _sums_kernel, (query_BNFL, key_BNFL, _with_ones(value_BNVL)), results=(2,), state=(2, 1))[0]
  out, total = divide(sums[:, :, :V], sums[:, :, V : V + 1]), sums[:, :, V : V + 1]
  return out, (query_BNFL, key_BNFL, value_BNVL, out, total)


def _backward(interpret: bool, residuals, by_out_BNVL: jax.Array):
  query, key, value, out, total = residuals
  by_numerator = divide(by_out_BNVL, total)
  by_total = -jnp.sum(by_numerator * out, axis=2, keepdims=True)
  by_sums = _pad_rows(jnp.concatenate([by_numerator, by_total], axis=2))
  operands = (query, key, _with_ones(value), by_sums)
  (by_query,) = _scan(interpret, _by_query_kernel, operands, results=(0,), state=(2, 1))
  by_key, by_value = _scan(interpret, _by_key_kernel, operands, results=(1, 2), state=(2, 1), backwards=True)
  return by_query, by_key, by_value[:, :, : value.shape[2]]


_attention.defvjp(_forward, _backward)


def _scan(
  interpret: bool,
  kernel: Callable[..., None],
  operands: tuple[jax.Array, ...],
  *,
  results: tuple[int, ...],
  state: tuple[int, int],
  backwards: bool = False,
) -> tuple[jax.Array, ...]:
  """Runs a kernel over the chunks of each head, in order or backwards.

  Args:
    interpret: that of pl.pallas_call.
    kernel: gets references to a chunk of each operand and result, and to the state.
    operands: [B, N, rows, L].
    results: which operands the results have the shape of.
    state: which operands' rows the state has as its axes.
    backwards: the order.
  """

  def local(operands: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
    B, N, _, L = operands[0].shape
    chunks = L // CHUNK

    def index(b: Any, n: Any, c: Any) -> tuple[Any, ...]:
      return b, n, 0, chunks - 1 - c if backwards else c

    blocks = [pl.BlockSpec((None, None, x.shape[2], CHUNK), index) for x in operands]
    rows = [x.shape[2] for x in operands]
    pairs = B * N * L * CHUNK
    return tuple(
      pl.pallas_call(
        kernel,
        grid=(B, N, chunks),
        in_specs=blocks,
        out_specs=[blocks[i] for i in results],
        out_shape=[jax.ShapeDtypeStruct(operands[i].shape, jnp.float32) for i in results],
        scratch_shapes=[pltpu.VMEM((rows[state[0]], rows[state[1]]), jnp.float32)],
        compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
        cost_estimate=pl.CostEstimate(
          flops=2 * pairs * sum(rows) + 4 * B * N * L * rows[state[0]] * rows[state[1]],
          transcendentals=0,
          bytes_accessed=sum(x.size * x.dtype.itemsize for x in operands),
        ),
        interpret=interpret,
        name=kernel.__name__.strip("_"),
      )(*operands)
    )

  return over_heads(local, operands)


def _sums_kernel(query, key, value, sums, state) -> None:
  _start(state)
  phi, mixed, values = query[...], key[...], value[...]
  weights = _causal(_dot(mixed, phi, (0, 0)))
  sums[...] = _dot(values, weights, (1, 0)) + _dot(state[...], phi, (1, 0))
  state[...] += _dot(values, mixed, (1, 1))


def _by_query_kernel(query, key, value, by_sums, by_query, state) -> None:
  del query
  _start(state)
  mixed, values, cotangent = key[...], value[...], by_sums[...]
  by_weights = _causal(_dot(values, cotangent, (0, 0)))
  by_query[...] = _dot(mixed, by_weights, (1, 0)) + _dot(state[...], cotangent, (0, 0))
  state[...] += _dot(values, mixed, (1, 1))


def _by_key_kernel(query, key, value, by_sums, by_key, by_value, state) -> None:
  _start(state)
  phi, mixed, values, cotangent = query[...], key[...], value[...], by_sums[...]
  weights, by_weights = _causal(_dot(mixed, phi, (0, 0))), _causal(_dot(values, cotangent, (0, 0)))
  by_key[...] = _dot(phi, by_weights, (1, 1)) + _dot(state[...], values, (0, 0))
  by_value[...] = _dot(cotangent, weights, (1, 1)) + _dot(state[...], mixed, (1, 0))
  state[...] += _dot(cotangent, phi, (1, 1))


def _start(state: Any) -> None:
  @pl.when(pl.program_id(2) == 0)
  def zero():
    state[...] = jnp.zeros_like(state)


def _causal(tile: jax.Array) -> jax.Array:
  """A tile [keys, queries] without the keys that come after the query."""
  keys, queries = (lax.broadcasted_iota(jnp.int32, tile.shape, axis) for axis in (0, 1))
  return jnp.where(keys <= queries, tile, 0)


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int]) -> jax.Array:
  dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
  return lax.dot_general(a, b, dimensions, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _with_ones(value_BNVL: jax.Array) -> jax.Array:
  return _pad_rows(jnp.concatenate([value_BNVL, jnp.ones_like(value_BNVL[:, :, :1])], axis=2))


def _pad_rows(x_BNVL: jax.Array) -> jax.Array:
  return jnp.pad(x_BNVL, [(0, 0), (0, 0), (0, -x_BNVL.shape[2] % SUBLANES), (0, 0)])


def _pad(x: jax.Array, length: int, padded: int) -> jax.Array:
  """Keys past the last query are seen by nobody, and those that are missing have no features."""
  return jnp.pad(x[..., :length], [(0, 0)] * 3 + [(0, padded - min(x.shape[-1], length))])
