"""Runs a kernel on the examples and heads that a device holds, in place of `vmap`.

A kernel whose loops end where the sequence ends cannot be vectorised over examples of different lengths without
running every one of them to the longest; and a plain loop over the batch would gather a batch that is sharded over
devices. `over_heads` does neither: under `vmap` the new axis joins the batch, and each device loops over the examples
and heads that it holds, with no communication.
"""

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.experimental.custom_partitioning import custom_partitioning
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from mgk_jax.kernels import dispatch

Tree = Any


class Layout(NamedTuple):
  """Over which axes of a mesh batch and heads are cut, for attention that cannot see it from its operands."""

  mesh: Mesh
  batch: str
  heads: str

  def specs(self, full: tuple[int, ...], shapes: Sequence[Any]) -> tuple[PartitionSpec, ...]:
    """How arrays [B or 1, N or 1, …] lie on the mesh; an axis that it does not divide stays whole."""
    names = [name if size % self.mesh.shape[name] == 0 else None for name, size in zip(self[1:], full, strict=True)]
    return tuple(
      PartitionSpec(*(name if x.shape[axis] == full[axis] else None for axis, name in enumerate(names))) for x in shapes
    )


_layout: contextvars.ContextVar[Layout | None] = contextvars.ContextVar("layout", default=None)


@contextlib.contextmanager
def sharded_heads(mesh: Mesh, *, batch: str, heads: str) -> Iterator[None]:
  """Within it, attention is computed where batch and heads lie: cut over these axes of the mesh, by jax.shard_map.

  On CPUs and GPUs it finds that out by itself, and so it does everywhere on meshes with explicit axes and inside
  jax.shard_map. The compiler for TPUs does not ask: there, a function that is compiled for several devices needs this.
  """
  token = _layout.set(Layout(mesh, batch, heads))
  try:
    yield
  finally:
    _layout.reset(token)


def present_layout() -> Layout | None:
  """What `sharded_heads` said, here; None outside of it."""
  return _layout.get()


def context() -> tuple[str, Layout | None]:
  """What decides how a kernel is traced without JAX's knowing: a static argument of what is jitted in the library."""
  return dispatch.platform(), present_layout()


def over_heads(kernel: Callable[[Tree], Tree], operands: Tree) -> Tree:
  """`kernel(operands)` on the examples and heads that a device holds; with `vmap`, the new axis joins the batch.

  Args:
    kernel: from operands with the axes [B or 1, N or 1] to a tree of arrays with the axes [B, N].
    operands: a tree of arrays with leading axes [B or 1, N or 1]; size 1 is broadcast. The first one has the full
      B and N, and its sharding along them decides that of all others.
  """
  leaves, treedef = jax.tree.flatten(operands)
  results: list[Any] = []  # the structure of the kernel's result, known once it has been traced

  def local(*leaves: jax.Array) -> tuple[jax.Array, ...]:
    out_leaves, out_treedef = jax.tree.flatten(kernel(jax.tree.unflatten(treedef, leaves)))
    results[:] = [out_treedef]
    return tuple(out_leaves)

  out_leaves = _vectorisable(local, *leaves)
  return jax.tree.unflatten(results[0], out_leaves)


def vary_alike(tree: Tree) -> Tree:
  """Inside `shard_map`, marks all arrays as varying over every axis over which one of them varies.

  A loop's carry starts as a constant and has to have the type of what the loop makes of it.
  """
  leaves = jax.tree.leaves(tree)
  axes = frozenset[str]().union(*(jax.typeof(x).manual_axis_type.varying for x in leaves))

  def vary(x: jax.Array) -> jax.Array:
    missing = tuple(axes - jax.typeof(x).manual_axis_type.varying)
    return jax.lax.pcast(x, missing, to="varying") if missing else x

  return jax.tree.map(vary, tree)


def _vectorisable(local: Callable[..., tuple[jax.Array, ...]], *operands: jax.Array) -> tuple[jax.Array, ...]:
  """A function of all heads, whose rule for `vmap` lays the new axis into the batch."""

  @jax.custom_batching.custom_vmap
  def mapped(*operands: jax.Array) -> tuple[jax.Array, ...]:
    return _partitioned(local, *operands)

  @mapped.def_vmap
  def fold(axis_size: int, batched: list[bool], *operands: jax.Array):
    B = operands[0].shape[1 if batched[0] else 0]

    def into_batch(x: jax.Array, is_batched: bool) -> jax.Array:
      if not is_batched and x.shape[0] == 1 and axis_size * B > 1 and x is not operands[0]:
        return x
      x = x if is_batched else x[None]
      return jnp.broadcast_to(x, (axis_size, B, *x.shape[2:])).reshape(axis_size * B, *x.shape[2:])

    out = _vectorisable(local, *map(into_batch, operands, batched))
    return tuple(x.reshape(axis_size, B, *x.shape[1:]) for x in out), (True,) * len(out)

  return mapped(*operands)


def _partitioned(local: Callable[..., tuple[jax.Array, ...]], *operands: jax.Array) -> tuple[jax.Array, ...]:
  """A function of all heads, partitioned along the batch and the heads as the first operand is."""
  mesh = jax.sharding.get_abstract_mesh()
  if not mesh.empty and mesh.are_all_axes_manual:
    return local(*operands)
  out_shapes = jax.eval_shape(local, *(jax.ShapeDtypeStruct(x.shape, x.dtype) for x in operands))
  full = operands[0].shape[:2]
  layout = _layout.get()
  if layout is not None:
    in_specs, out_specs = layout.specs(full, operands), layout.specs(full, out_shapes)
    mapped = jax.shard_map(local, mesh=layout.mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False)
    return tuple(mapped(*operands))
  if dispatch.platform() == "tpu" and mesh.empty:
    return local(*operands)  # whose compiler knows no custom partitioning; jax says so if there are several devices

  def specs(sharding_of_first: PartitionSpec, shapes: list[Any]) -> tuple[PartitionSpec, ...]:
    b, n = (*sharding_of_first, None, None)[:2]
    return tuple(
      PartitionSpec(b if x.shape[0] == full[0] else None, n if x.shape[1] == full[1] else None) for x in shapes
    )

  if not mesh.empty and AxisType.Explicit in mesh.axis_types:
    in_specs = specs(jax.typeof(operands[0]).sharding.spec, list(operands))
    out_specs = specs(in_specs[0], list(out_shapes))
    operands = tuple(jax.sharding.reshard(x, spec) for x, spec in zip(operands, in_specs, strict=True))
    return jax.shard_map(local, in_specs=in_specs, out_specs=out_specs, check_vma=False)(*operands)

  def partition(mesh, arg_shapes, result_shapes):
    first = arg_shapes[0].sharding.spec
    arg_specs, result_specs = specs(first, arg_shapes), specs(first, result_shapes)
    named = functools.partial(NamedSharding, mesh)
    return mesh, local, tuple(map(named, result_specs)), tuple(map(named, arg_specs))

  rule, whole = _sharding_rule(full, list(operands), list(out_shapes))
  sharded = custom_partitioning(local)
  sharded.def_partition(partition=partition, sharding_rule=rule, need_replication_factors=whole)
  return tuple(sharded(*operands))


def _sharding_rule(full: tuple[int, ...], operands: list[Any], results: list[Any]) -> tuple[str, tuple[str, ...]]:
  """Says to the partitioner: b and n may be split, every other axis is needed whole."""
  whole: list[str] = []

  def factors(x: Any) -> str:
    names = []
    for axis, size in enumerate(x.shape):
      if axis < 2 and size == full[axis]:
        names.append("bn"[axis])
      else:
        whole.append(f"w{len(whole)}")
        names.append(whole[-1])
    return " ".join(names)

  rule = f"{', '.join(map(factors, operands))} -> {', '.join(map(factors, results))}"
  return rule, tuple(whole)
