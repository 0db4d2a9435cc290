"""The prefix sums of `linear_pallas` for GPUs by Pallas on Triton.

The programs of a GPU run side by side, and a few heads do not fill it: so the sequence is cut into segments, whose
states before their first chunk are sums of products that XLA computes, and the values into blocks of columns. A program
goes through the chunks of one segment with its columns of the state in registers.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from mgk_jax.kernels.pallas_gpu_products import SMALLEST_SIDE, Parts, dot, like, split

CHUNK = 64
COLUMNS = 32
PROGRAMS = 432  # wanted: four for each of the 108 cores of an A100
LARGEST_WIDTH = 512  # of features: beyond it, the state overflows the registers
WARPS = 4


def prefix_sums(
  a_BNLF: jax.Array, b_BNLF: jax.Array, c_BNLV: jax.Array, *, backwards: bool, interpret: Any
) -> jax.Array:
  """Σ c_j (b_j·a_i) over j <= i, or with `backwards` over j >= i: [B, N, L, V].

  Raises:
    NotImplementedError: too many features.
  """
  B, N, L, V = c_BNLV.shape
  F = a_BNLF.shape[-1]
  if max(F, V) > LARGEST_WIDTH:
    raise NotImplementedError(f"more than {LARGEST_WIDTH} features or columns of values: {F} and {V}")
  columns, chunks = pl.cdiv(V, COLUMNS), pl.cdiv(L, CHUNK)
  per_segment = pl.cdiv(chunks, min(chunks, pl.cdiv(PROGRAMS, B * N * columns)))
  segments = pl.cdiv(chunks, per_segment)
  start = _states(b_BNLF, c_BNLV, segments, per_segment * CHUNK, backwards)

  def whole(width: int) -> pl.BlockSpec:
    """All positions of a head, [parts, L, width]."""
    shape = (3, None, segments * per_segment * CHUNK, None, width)
    return pl.BlockSpec(shape, lambda v, g, n, b: (0, b, 0, n, 0))

  out = pl.pallas_call(
    functools.partial(_kernel, L=L, F=F, V=V, per_segment=per_segment, backwards=backwards),
    grid=(columns, segments, N, B),
    in_specs=[
      whole(_padded(F)),
      whole(_padded(F)),
      whole(columns * COLUMNS),
      pl.BlockSpec((None, None, None, _padded(F), columns * COLUMNS), lambda v, g, n, b: (b, n, g, 0, 0)),
    ],
    out_specs=pl.BlockSpec(
      (None, segments * per_segment * CHUNK, None, columns * COLUMNS), lambda v, g, n, b: (b, 0, n, 0)
    ),
    out_shape=jax.ShapeDtypeStruct((B, L, N, V), jnp.float32, manual_axis_type=jax.typeof(a_BNLF).manual_axis_type),
    compiler_params=plgpu.CompilerParams(num_warps=WARPS, num_stages=1),
    interpret=interpret,
    name="mixture_linear_attention_prefix_sums",
  )(*(split(jnp.swapaxes(x, 1, 2)) for x in (a_BNLF, b_BNLF, c_BNLV)), start)
  return jnp.swapaxes(out, 1, 2)


def _states(b_BNLF: jax.Array, c_BNLV: jax.Array, segments: int, length: int, backwards: bool) -> jax.Array:
  """The state before each segment, Σ b_j c_jᵀ over all segments before it, or after it: [B, N, segments, F, V]."""

  def cut(x: jax.Array) -> jax.Array:
    B, N, L, X = x.shape
    return jnp.pad(x, [(0, 0), (0, 0), (0, segments * length - L), (0, 0)]).reshape(B, N, segments, length, X)

  own = jnp.einsum("bnglf,bnglv->bngfv", cut(b_BNLF), cut(c_BNLV), precision=lax.Precision.HIGHEST)
  return lax.cumsum(own, axis=2, reverse=backwards) - own


def _kernel(a_ref, b_ref, c_ref, start_ref, out_ref, *, L, F, V, per_segment: int, backwards: bool) -> None:
  at_column, first_chunk = pl.program_id(0) * COLUMNS, pl.program_id(1) * per_segment
  column = at_column + lax.iota(jnp.int32, COLUMNS) < V
  features = _slabs(F)

  def load(ref: Any, i: Any, start: Any, width: int, limit: int) -> Parts:
    """Chunk i of the positions, and some of the columns."""
    row = i * CHUNK + lax.iota(jnp.int32, CHUNK) < L
    mask = row[:, None] & (start + lax.iota(jnp.int32, width) < limit)[None, :]
    places = (pl.ds(i * CHUNK, CHUNK), pl.ds(start, width))
    return [plgpu.load(ref.at[(jnp.int32(p), *places)], mask=mask, other=0) for p in range(ref.shape[0])]

  def first(start: int, width: int) -> jax.Array:
    mask = (start + lax.iota(jnp.int32, width) < F)[:, None] & column[None, :]
    return plgpu.load(start_ref.at[pl.ds(start, width), pl.ds(at_column, COLUMNS)], mask=mask, other=0)

  def step(k: Any, state: list[jax.Array]) -> list[jax.Array]:
    i = first_chunk + (per_segment - 1 - k if backwards else k)
    a, b = ([load(ref, i, *slab, F) for slab in features] for ref in (a_ref, b_ref))
    c = load(c_ref, i, at_column, COLUMNS, V)
    rows, columns = (lax.broadcasted_iota(jnp.int32, (CHUNK, CHUNK), axis) for axis in (0, 1))
    weights = functools.reduce(jnp.add, [dot(x, y, turned=True) for x, y in zip(a, b, strict=True)])
    weights = jnp.where(columns >= rows if backwards else columns <= rows, weights, 0)
    out = functools.reduce(jnp.add, [dot(x, like(x, s)) for x, s in zip(a, state, strict=True)])
    out += dot(like(c, weights), c)
    mask = (i * CHUNK + lax.iota(jnp.int32, CHUNK) < L)[:, None] & column[None, :]
    plgpu.store(out_ref.at[pl.ds(i * CHUNK, CHUNK), pl.ds(at_column, COLUMNS)], out, mask=mask)
    return [s + dot([part.T for part in y], c) for s, y in zip(state, b, strict=True)]

  lax.fori_loop(0, per_segment, step, [first(*slab) for slab in features])


def _slabs(width: int) -> list[tuple[int, int]]:
  """A width as starts and sizes that tiles can have: powers of two, the last of them not filled."""
  start, slabs = 0, []
  while start < width:
    size = max(SMALLEST_SIDE, 1 << ((width - start).bit_length() - 1))
    slabs.append((start, size))
    start += size
  return slabs


def _padded(width: int) -> int:
  return sum(_slabs(width)[-1])
