"""The prefix sums of `linear_pallas` for TPUs: a grid that goes through the chunks in order, with the state in VMEM.

Operands have the sequence as their last axis, [F, L] and [V, L]: memory on a TPU comes in rows of 128 numbers, which a
head dimension of 32 would leave three quarters empty. Tiles are [j, i].
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

CHUNK = 256
SUBLANES = 8


def prefix_sums(
  a_BNLF: jax.Array, b_BNLF: jax.Array, c_BNLV: jax.Array, *, backwards: bool, interpret: Any
) -> jax.Array:
  """Σ c_j (b_j·a_i) over j <= i, or with `backwards` over j >= i: [B, N, L, V]."""
  B, N, L, V = c_BNLV.shape
  a, b, c = (_transposed(x) for x in (a_BNLF, b_BNLF, c_BNLV))
  features, columns, padded = a.shape[2], c.shape[2], c.shape[3]
  chunks = padded // CHUNK

  def block(rows: int) -> pl.BlockSpec:
    return pl.BlockSpec((None, None, rows, CHUNK), lambda b, n, k: (b, n, 0, chunks - 1 - k if backwards else k))

  products = 2 * CHUNK * (features + columns) + 4 * features * columns  # of one position
  out = pl.pallas_call(
    functools.partial(_kernel, backwards),
    grid=(B, N, chunks),
    in_specs=[block(features), block(features), block(columns)],
    out_specs=block(columns),
    out_shape=jax.ShapeDtypeStruct(c.shape, jnp.float32),
    scratch_shapes=[pltpu.VMEM((columns, features), jnp.float32)],
    compiler_params=pltpu.CompilerParams(dimension_semantics=("parallel", "parallel", "arbitrary")),
    cost_estimate=pl.CostEstimate(
      flops=B * N * padded * products,
      transcendentals=0,
      bytes_accessed=sum(x.size * x.dtype.itemsize for x in (a, b, c, c)),
    ),
    interpret=interpret,
    name="mixture_linear_attention_prefix_sums",
  )(a, b, c)
  return jnp.swapaxes(out[:, :, :V, :L], 2, 3)


def _kernel(backwards: bool, a_ref, b_ref, c_ref, out_ref, state_ref) -> None:
  @pl.when(pl.program_id(2) == 0)
  def start():
    state_ref[...] = jnp.zeros_like(state_ref)

  a, b, c = a_ref[...], b_ref[...], c_ref[...]
  j, i = (lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), axis) for axis in (0, 1))
  weights = jnp.where(j >= i if backwards else j <= i, _dot(b, a, (0, 0)), 0)
  out_ref[...] = _dot(c, weights, (1, 0)) + _dot(state_ref[...], a, (1, 0))
  state_ref[...] += _dot(c, b, (1, 1))


def _dot(a: jax.Array, b: jax.Array, contracted: tuple[int, int]) -> jax.Array:
  dimensions = (((contracted[0],), (contracted[1],)), ((), ()))
  return lax.dot_general(a, b, dimensions, precision=lax.Precision.HIGHEST, preferred_element_type=jnp.float32)


def _transposed(x_BNLF: jax.Array) -> jax.Array:
  """[B, N, F, L], padded with zeros to whole blocks."""
  *_, L, F = x_BNLF.shape
  return jnp.pad(jnp.swapaxes(x_BNLF, 2, 3), [(0, 0), (0, 0), (0, -F % SUBLANES), (0, -L % CHUNK)])
