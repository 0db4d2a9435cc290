"""Attention for TPUs by Pallas: one pass over the keys with a running maximum and sum, and a backward pass likewise.

As in `xla`, tiles are transposed, [keys, queries], and their mathematics is that of `tiles`. Operands have the sequence
as their last axis, [H, T] and [H, S]: memory on a TPU comes in rows of 128 numbers, which a head dimension of 32 would
leave three quarters empty.

The grid is (batch, heads, blocks of queries, blocks of keys) forwards and (batch, heads, keys, queries) backwards.
There dk and dv accumulate over the inner axis and dq, [H, T] of one head, stays in VMEM until the head is done: five
products a tile in place of the seven of two passes. Blocks past the lengths, or above the diagonal, are neither fetched
nor computed. Products take bfloat16 inputs as they are and accumulate in float32; those of float32 inputs are exact to
float32.
"""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import tpu as pltpu

from mgk_jax.kernels import tiles
from mgk_jax.kernels.flash import Gradients, Operands, Plan
from mgk_jax.kernels.padding import fill_up
from mgk_jax.kernels.pallas_tpu_grid import LANES, Grid, dot, sizes

VMEM_BYTES = 100 * 2**20  # of the 128 MiB of a v5e or v6e core; a v5p has 64, which its compiler knows
LARGEST_GRADIENT = 24 * 2**20  # bytes of dq of one head, of which there are two in VMEM: with tiles, less than 64 MiB


def check(plan: Plan) -> None:
  """Raises NotImplementedError for what the kernels cannot do."""
  if 4 * sizes(plan).padded_T * (plan.H + plan.M) > LARGEST_GRADIENT:
    raise NotImplementedError(f"{plan.T} queries of {plan.H} dimensions: their gradient does not fit into VMEM")


def forward(plan: Plan, operands: Operands, *, interpret: Any = False) -> tuple[jax.Array, jax.Array]:
  """The outputs [B, N, V, T] and the log normalisers [B, N, 1, T] (+inf for a query that attends to nothing)."""
  size = sizes(plan)
  B, N = operands.query.shape[:2]
  grid = Grid(plan, size, _present(operands), query_axis=2, key_axis=3)
  call = pl.pallas_call(
    functools.partial(_forward_kernel, grid),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2,
      grid=(B, N, size.padded_T // size.query, size.padded_S // size.key),
      in_specs=grid.specs(operands),
      out_specs=[grid.rows(plan.V, whole=False), grid.rows(1, whole=False)],
      scratch_shapes=[pltpu.VMEM((rows, size.query), jnp.float32) for rows in (1, 1, plan.V)],
    ),
    out_shape=[
      jax.ShapeDtypeStruct((B, N, plan.V, size.padded_T), operands.value.dtype),
      jax.ShapeDtypeStruct((B, N, 1, size.padded_T), jnp.float32),
    ],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "parallel", "parallel", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
    ),
    cost_estimate=_cost(plan, operands, products=plan.K * plan.H + plan.V),
    interpret=interpret,
    name="mixture_attention_forward",
  )
  out, log_normaliser = call(*_lengths(operands), *grid.arrays(operands))
  return out[..., : plan.T], log_normaliser[..., : plan.T]


def backward(
  plan: Plan,
  operands: Operands,
  by_out: jax.Array,
  log_normaliser: jax.Array,
  mean: jax.Array,
  *,
  interpret: Any = False,
) -> Gradients:
  """All derivatives, from those by the outputs [B, N, V, T], the log normalisers and Σ_j A_ij dL/dA_ij [B, N, 1, T]."""
  size = sizes(plan)
  B, N = operands.query.shape[:2]
  grid = Grid(plan, size, _present(operands), query_axis=3, key_axis=2)
  by_queries = [plan.H] + [plan.M] * plan.has_row
  by_keys = [(plan.K, plan.H), (plan.V,)] + [(plan.M,)] * plan.has_column + [(1,)] * plan.has_shared
  call = pl.pallas_call(
    functools.partial(_backward_kernel, grid),
    grid_spec=pltpu.PrefetchScalarGridSpec(
      num_scalar_prefetch=2,
      grid=(B, N, size.padded_S // size.key, size.padded_T // size.query),
      in_specs=[*grid.specs(operands), grid.rows(plan.V), grid.rows(1), grid.rows(1)],
      out_specs=[grid.rows(height, whole=True) for height in by_queries]
      + [grid.columns(*shape, fetch=False) for shape in by_keys],
    ),
    out_shape=[jax.ShapeDtypeStruct((B, N, height, size.padded_T), jnp.float32) for height in by_queries]
    + [jax.ShapeDtypeStruct((B, N, *shape, size.padded_S), jnp.float32) for shape in by_keys],
    compiler_params=pltpu.CompilerParams(
      dimension_semantics=("parallel", "parallel", "arbitrary", "arbitrary"), vmem_limit_bytes=VMEM_BYTES
    ),
    cost_estimate=_cost(plan, operands, products=3 * plan.K * plan.H + 2 * plan.V),
    interpret=interpret,
    name="mixture_attention_backward",
  )
  extra = (fill_up(by_out, size.query), fill_up(log_normaliser, size.query, fill=jnp.inf), fill_up(mean, size.query))
  results = iter(call(*_lengths(operands), *grid.arrays(operands), *extra))
  query = next(results)[..., : plan.T]
  row = next(results)[..., : plan.T] if plan.has_row else None
  key, value = (next(results)[..., : plan.S] for _ in range(2))
  column = next(results)[..., : plan.S] if plan.has_column else None
  shared = next(results)[..., : plan.S] if plan.has_shared else None
  return Gradients(query, key, value, row, column, shared)


def _forward_kernel(grid: Grid, query_lengths, key_lengths, *refs) -> None:
  operands = _by_name(grid, refs)
  out, log_normaliser, peak, mass, total = refs[len(grid.names) :]
  b, i, j = grid.place()

  @pl.when(j == 0)
  def start():
    peak[...] = jnp.full_like(peak, -jnp.inf)
    mass[...] = jnp.zeros_like(mass)
    total[...] = jnp.zeros_like(total)

  @pl.when(grid.has_work(i, j, query_lengths[b], key_lengths[b]))
  def add():
    scores, mixing = grid.tile(operands, i, j, key_lengths[b])
    old_peak = peak[...]
    new_peak = jnp.maximum(old_peak, tiles.peak(scores, keepdims=True))
    offset = jnp.where(new_peak == -jnp.inf, 0, new_peak)
    weights = tiles.weights(scores, offset, grid.plan.estep, mixing if isinstance(mixing, tiles.Factors) else None)
    rescale = jnp.exp(old_peak - offset)
    value = operands.value[...]
    peak[...] = new_peak
    mass[...] = mass[...] * rescale + jnp.sum(weights, axis=0, keepdims=True)
    total[...] = total[...] * rescale + dot(value, weights.astype(value.dtype), (1, 0))

  @pl.when(j == grid.size.padded_S // grid.size.key - 1)
  def finish():
    query_index = i * grid.size.query + lax.broadcasted_iota(jnp.int32, (1, grid.size.query), 1)
    alive = (mass[...] > 0) & (query_index < query_lengths[b])
    safe = jnp.where(alive, mass[...], 1)
    out[...] = jnp.where(alive, total[...] / safe, 0).astype(out.dtype)
    log_normaliser[...] = jnp.where(alive, peak[...] + jnp.log(safe), jnp.inf)


def _backward_kernel(grid: Grid, query_lengths, key_lengths, *refs) -> None:
  plan, size = grid.plan, grid.size
  operands = _by_name(grid, refs)
  by_out_ref, log_normaliser, mean, *outputs = refs[len(grid.names) :]
  results = iter(outputs)
  by_query = next(results)
  by_row = next(results) if plan.has_row else None
  by_key, by_value = next(results), next(results)
  by_column = next(results) if plan.has_column else None
  by_shared = next(results) if plan.has_shared else None
  b, i, j = grid.place()

  @pl.when((i == 0) & (j == 0))
  def start_head():
    for ref in (by_query, by_row):
      if ref is not None:
        ref[...] = jnp.zeros_like(ref)

  @pl.when(i == 0)
  def start_keys():
    for ref in (by_key, by_value, by_column, by_shared):
      if ref is not None:
        ref[...] = jnp.zeros_like(ref)

  @pl.when(grid.has_work(i, j, query_lengths[b], key_lengths[b]))
  def add():
    scores, mixing = grid.tile(operands, i, j, key_lengths[b])
    query, value, by_out = operands.query[...], operands.value[...], by_out_ref[...]
    by_weight = dot(value, by_out, (0, 0)) - mean[...]
    factors = mixing if isinstance(mixing, tiles.Factors) else None  # maxima are part of the scores
    tile = tiles.backward(scores, log_normaliser[...], by_weight, plan.estep, factors)
    by_value[...] += dot(by_out, tile.weights.astype(by_out.dtype), (1, 1))
    by_products = tile.scores if len(tile.scores) == plan.K else [tile.inner]
    queries = pl.ds(pl.multiple_of(i * size.query, LANES), size.query)
    for c, by_product in enumerate(by_products):
      scaled = (by_product * operands.scale[0, 0, c]).astype(query.dtype)
      by_key[c] += dot(query, scaled, (1, 1))
      by_query[:, queries] += dot(operands.key[c], scaled, (1, 0))
    if isinstance(mixing, tiles.Factors):
      assert operands.row is not None and operands.mixing is not None and by_row is not None and by_column is not None
      row, column = operands.row[...], operands.mixing[...]
      by_row[:, queries] += row * dot(column, tile.inner, (1, 0))
      by_column[...] += column * dot(row, tile.inner, (1, 1))
    else:
      for r, part in enumerate(tiles.by_component(tile, mixing)):
        if by_row is not None:
          by_row[r : r + 1, queries] += jnp.sum(part, axis=0, keepdims=True)
        if by_column is not None:
          by_column[r : r + 1, :] += _over_queries(part)
    if by_shared is not None:
      by_shared[...] += _over_queries(by_products[0])


def _over_queries(tile: tiles.Tile) -> jax.Array:
  """The sum over the queries as a row [1, keys]: a product, which also turns it."""
  return dot(jnp.ones((8, tile.shape[1]), tile.dtype), tile, (1, 1))[:1]


def _present(operands: Operands) -> tuple[str, ...]:
  lengths = ("query_length", "key_length")
  return tuple(name for name, x in operands._asdict().items() if x is not None and name not in lengths)


def _by_name(grid: Grid, refs: Sequence[Any]) -> Operands:
  empty: dict[str, Any] = dict.fromkeys(Operands._fields)
  return Operands(**empty | dict(zip(grid.names, refs, strict=False)))


def _lengths(operands: Operands) -> tuple[jax.Array, jax.Array]:
  batch = operands.query.shape[:1]
  return jnp.broadcast_to(operands.query_length[:, 0], batch), jnp.broadcast_to(operands.key_length[:, 0], batch)


def _cost(plan: Plan, operands: Operands, *, products: int) -> pl.CostEstimate:
  """What a call costs if nothing is skipped, for XLA's scheduler and for cost analyses."""
  B, N = operands.query.shape[:2]
  pairs = B * N * plan.T * plan.S // (2 if plan.is_causal else 1)
  exponentials = 1 if plan.mixing else plan.M
  num_bytes = sum(x.size * x.dtype.itemsize for x in operands if x is not None)
  return pl.CostEstimate(flops=2 * pairs * products, transcendentals=pairs * exponentials, bytes_accessed=num_bytes)
