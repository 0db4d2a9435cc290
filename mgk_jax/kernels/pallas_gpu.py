"""Attention for GPUs by Pallas on Triton: one pass over the keys with a running maximum and sum, and two passes back.

A program of the forward kernel, and of the one for dq, holds a block of queries and loops over the keys; one of the
kernel for dk and dv holds a block of keys and loops over the queries. Loops end at the lengths and at the diagonal.
Queries, keys and values are read as [B, T, N, H], as callers hold them. The end of a sequence within a block, and sizes
that are no power of two, are masked where they are loaded and stored, so that nothing is padded in memory.

`pallas_gpu_program` has what a program does with its blocks, `pallas_gpu_products` in what precision it multiplies.
"""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental import pallas as pl
from jax.experimental.pallas import triton as plgpu

from mgk_jax.kernels import tiles
from mgk_jax.kernels.flash import Gradients, Operands, Plan
from mgk_jax.kernels.pallas_gpu_products import dot, like, padded_width, split
from mgk_jax.kernels.pallas_gpu_program import AXES, LOG2_E, Program, Side, exponentials

LARGEST_WIDTH = 256
LARGEST_MASK = 2**31  # pairs: Triton counts the elements of an array of up to 4 GB with 32 bits
SHARED_MEMORY = 160 * 2**10  # bytes that a program may use; an A100 has 163 KiB, an H100 227


class Blocks(NamedTuple):
  """How a kernel divides the work: 16 or 32 of the rows that a program holds for each warp, so that none are shared."""

  held: int
  looped: int
  warps: int
  stages: int


# By how many bytes one key with its components and its value has at most: the blocks for which, compiled for an A100,
# (almost) everything stays in registers and that have the fewest instructions and bytes of shared memory per pair.
BLOCKS = {
  "forward": {
    256: Blocks(128, 64, 4, 2),
    640: Blocks(128, 32, 4, 2),
    896: Blocks(64, 64, 4, 2),
    1600: Blocks(32, 32, 2, 2),
    2560: Blocks(32, 16, 2, 1),
  },
  "by_query": {
    640: Blocks(128, 32, 4, 2),
    896: Blocks(64, 32, 4, 2),
    1600: Blocks(32, 32, 2, 2),
    2560: Blocks(32, 16, 2, 1),
  },
  "by_key": {
    192: Blocks(128, 32, 4, 2),
    256: Blocks(64, 64, 4, 2),
    640: Blocks(64, 32, 4, 2),
    1600: Blocks(32, 16, 2, 2),
    2560: Blocks(32, 16, 2, 1),
  },
}
LEAST = Blocks(16, 16, 1, 1)


def blocks(kernel: str, plan: Plan, parts: int) -> Blocks:
  """The blocks of a kernel for numbers of so many parts, of two bytes each.

  Raises:
    NotImplementedError: not even the smallest ones fit into shared memory.
  """
  H, V = padded_width(plan.H), padded_width(plan.V)
  products = plan.M if plan.mixing is None else 1  # tiles of scores at the same time
  per_key, per_query = 2 * parts * (products * H + V), 2 * parts * (H + V)
  if LEAST.held * (per_key + per_query) > SHARED_MEMORY:
    raise NotImplementedError(f"{plan.M} keys of {plan.H} dimensions at each position: they overflow shared memory")
  size = next((size for most, size in BLOCKS[kernel].items() if per_key <= most), LEAST)
  lengths = (plan.S, plan.T) if kernel == "by_key" else (plan.T, plan.S)
  held, looped = (min(block, padded_width(length)) for block, length in zip(size[:2], lengths, strict=True))
  return Blocks(held, looped, min(size.warps, held // 16), size.stages)


def check(plan: Plan) -> None:
  """Raises NotImplementedError for what the kernels cannot do."""
  if max(plan.H, plan.V) > LARGEST_WIDTH:
    raise NotImplementedError(f"head dimensions above {LARGEST_WIDTH}: {plan.H} of keys, {plan.V} of values")


def forward(plan: Plan, operands: Operands, *, interpret: Any = False) -> tuple[jax.Array, jax.Array]:
  """The outputs [B, N, V, T] and the log normalisers [B, N, 1, T] (+inf for a query that attends to nothing)."""
  B, N = operands.query.shape[:2]
  results = {
    "out": ((B, plan.T, N, plan.V), operands.value.dtype),
    "log_normaliser": ((B, N, 1, plan.T), jnp.float32),
  }
  found = _call(_forward_kernel, "forward", plan, _arrays(plan, operands), results, interpret)
  return jnp.einsum("btnv->bnvt", found["out"]), found["log_normaliser"]


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
  B, N = operands.query.shape[:2]
  by_out = split(jnp.einsum("bnvt->btnv", by_out))
  arrays = _arrays(plan, operands) | {"by_out": by_out, "log_normaliser": log_normaliser, "mean": mean}
  by_query = {"by_query": (B, plan.T, N, plan.H)}
  by_key = {"by_key": (B, plan.S, N, plan.K, plan.H), "by_value": (B, plan.S, N, plan.V)}
  if plan.has_row:
    by_query["by_row"] = (B, N, plan.M, plan.T)
  if plan.has_column:
    by_key["by_column"] = (B, N, plan.M, plan.S)
  if plan.has_shared:
    by_key["by_shared"] = (B, N, 1, plan.S)
  found: dict[str, jax.Array] = {}
  for kernel, name, shapes in ((_query_kernel, "by_query", by_query), (_key_kernel, "by_key", by_key)):
    results = {name: (shape, jnp.float32) for name, shape in shapes.items()}
    found |= _call(kernel, name, plan, arrays, results, interpret)
  return Gradients(
    query=jnp.einsum("btnh->bnht", found["by_query"]),
    key=jnp.einsum("bsnkh->bnkhs", found["by_key"]),
    value=jnp.einsum("bsnv->bnvs", found["by_value"]),
    row=found.get("by_row"),
    column=found.get("by_column"),
    shared=found.get("by_shared"),
  )


def _arrays(plan: Plan, operands: Operands) -> dict[str, jax.Array]:
  """The operands as the kernels read them. Every key has a column term, which is −inf from the key length on."""
  if operands.mask is not None and operands.mask.size > LARGEST_MASK:
    raise NotImplementedError(f"a mask of more than {LARGEST_MASK} pairs: {list(operands.mask.shape)}")
  column = jnp.float32(0) if operands.column is None else operands.column * LOG2_E
  base = 1 if plan.mixing == "factors" else LOG2_E
  arrays = {
    "query": split(jnp.einsum("bnht->btnh", operands.query)),
    "key": split(jnp.einsum("bnkhs->bsnkh", operands.key)),
    "value": split(jnp.einsum("bnvs->bsnv", operands.value)),
    "scale": operands.scale,
    "row": None if operands.row is None else operands.row * base,
    "column": jnp.where(jnp.arange(plan.S) < operands.key_length[:, :, None, None], column, -jnp.inf),
    "mixing": None if operands.mixing is None else operands.mixing * base,
    "mask": None if operands.mask is None else jnp.swapaxes(operands.mask, 2, 3),
    "query_segment": None if operands.query_segment is None else operands.query_segment[:, :, 0],
    "key_segment": None if operands.key_segment is None else operands.key_segment[:, :, 0],
    "query_length": operands.query_length,
    "key_length": operands.key_length,
  }
  return {name: x for name, x in arrays.items() if x is not None}


def _call(kernel: Callable[..., None], name: str, plan: Plan, arrays: dict, results: dict, interpret: Any) -> dict:
  """Runs a kernel on every block of queries, or of keys, of every head of every example."""
  size = blocks(name, plan, max(arrays["query"].shape[0], arrays["value"].shape[0]))
  holds_keys = name == "by_key"
  held, looped = size[:2]
  queries, keys = Side(plan.T, looped if holds_keys else held), Side(plan.S, held if holds_keys else looped)

  def spec(array: str, shape: tuple[int, ...]) -> pl.BlockSpec:
    """All of an array that belongs to one head of one example."""
    padded = {"b": None, "n": None, "t": queries.number * queries.block, "s": keys.number * keys.block}
    padded |= {"h": padded_width(plan.H), "v": padded_width(plan.V)}
    sizes = list(zip(AXES[array], shape, strict=True))

    def index(_: Any, n: Any, b: Any) -> tuple[Any, ...]:
      place = {"b": b, "n": n}
      return tuple(place[axis] if axis in place and size > 1 else 0 for axis, size in sizes)

    return pl.BlockSpec([padded.get(axis, size) for axis, size in sizes], index)

  def run(*refs: Any) -> None:
    kernel(Program(plan, queries, keys, holds_keys, dict(zip([*arrays, *results], refs, strict=True))))

  _, B, _, N, _ = arrays["query"].shape
  varying = jax.typeof(arrays["query"]).manual_axis_type  # inside of shard_map
  found = pl.pallas_call(
    run,
    grid=(keys.number if holds_keys else queries.number, N, B),
    in_specs=[spec(array, x.shape) for array, x in arrays.items()],
    out_specs=[spec(array, shape) for array, (shape, _) in results.items()],
    out_shape=[jax.ShapeDtypeStruct(*x, manual_axis_type=varying) for x in results.values()],
    compiler_params=plgpu.CompilerParams(num_warps=size.warps, num_stages=size.stages),
    interpret=interpret,
    name=f"mixture_attention_{name}",
  )(*arrays.values())
  return dict(zip(results, found, strict=True))


def _forward_kernel(program: Program) -> None:
  i = program.block()
  queries = program.load_queries(i)

  def step(is_diagonal, j, carry):
    old_peak, mass, total = carry
    keys = program.load_keys(j)
    scores, mixing = program.scores(i, j, queries, keys, is_diagonal)
    peak = jnp.maximum(old_peak, jnp.max(functools.reduce(jnp.maximum, scores), axis=1))
    offset = jnp.where(peak == -jnp.inf, 0, peak)
    weights = functools.reduce(jnp.add, exponentials(scores, offset[:, None], program.plan.estep))
    weights = weights * mixing.product() if isinstance(mixing, tiles.Factors) else weights
    rescale = jnp.exp2(old_peak - offset)
    mass = mass * rescale + jnp.sum(weights, axis=1)
    return peak, mass, total * rescale[:, None] + dot(like(keys.value, weights), keys.value)

  block = program.queries.block
  thin, wide = jnp.zeros(block, jnp.float32), jnp.zeros((block, padded_width(program.plan.V)), jnp.float32)
  peak, mass, total = program.over_keys(i, step, (thin - jnp.inf, thin, wide))
  alive = (mass > 0) & (program.queries.positions(i) < program.load("query_length"))
  safe = jnp.where(alive, mass, 1)
  program.store("out", jnp.where(alive[:, None], total / safe[:, None], 0), t=i)
  program.store("log_normaliser", jnp.where(alive, peak / LOG2_E + jnp.log(safe), jnp.inf), m=0, t=i)


def _query_kernel(program: Program) -> None:
  plan, i = program.plan, program.block()
  queries = program.load_queries(i)

  def step(is_diagonal, j, carry):
    by_query, by_row = carry
    keys = program.load_keys(j)
    _, by_products, terms = program.gradient(i, j, queries, keys, is_diagonal)
    for c, key in enumerate(keys.key):
      by_product = by_products[c] if plan.K == 1 else by_products[c] * program.load("scale", k=c)
      by_query += dot(like(key, by_product), key)
    return by_query, [x + jnp.sum(term, axis=1) for x, term in zip(by_row, terms, strict=False)]

  block = program.queries.block
  thin, wide = jnp.zeros(block, jnp.float32), jnp.zeros((block, padded_width(plan.H)), jnp.float32)
  by_query, by_row = program.over_keys(i, step, (wide, [thin] * (plan.M if plan.has_row else 0)))
  program.store("by_query", by_query * program.load("scale", k=0) if plan.K == 1 else by_query, t=i)
  for r, x in enumerate(by_row):
    program.store("by_row", x * program.load("row", m=r, t=i) if plan.mixing == "factors" else x, m=r, t=i)


def _key_kernel(program: Program) -> None:
  plan, j = program.plan, program.block()
  keys = program.load_keys(j)

  def step(is_diagonal, i, carry):
    by_key, by_value, by_column, by_shared = carry
    queries = program.load_queries(i)
    tile, by_products, terms = program.gradient(i, j, queries, keys, is_diagonal)
    by_value += dot(like(queries.by_out, tile.weights), queries.by_out)
    by_key = [x + dot(like(queries.query, y), queries.query) for x, y in zip(by_key, by_products, strict=True)]
    by_column = [x + jnp.sum(term, axis=1) for x, term in zip(by_column, terms, strict=False)]
    return by_key, by_value, by_column, [x + jnp.sum(by_products[0], axis=1) for x in by_shared]

  block = program.keys.block
  thin, by_value = jnp.zeros(block, jnp.float32), jnp.zeros((block, padded_width(plan.V)), jnp.float32)
  by_key = [jnp.zeros((block, padded_width(plan.H)), jnp.float32)] * plan.K
  start = (by_key, by_value, [thin] * (plan.M if plan.has_column else 0), [thin] * int(plan.has_shared))
  by_key, by_value, by_column, by_shared = program.over_queries(j, step, start)
  program.store("by_value", by_value, s=j)
  for c, x in enumerate(by_key):
    program.store("by_key", x * program.load("scale", k=c), k=c, s=j)
  for r, x in enumerate(by_column):
    program.store("by_column", x * program.load("mixing", m=r, s=j) if plan.mixing == "factors" else x, m=r, s=j)
  for x in by_shared:
    program.store("by_shared", x, m=0, s=j)
