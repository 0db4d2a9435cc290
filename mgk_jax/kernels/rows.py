"""A function of rows, such as words with their targets, computed where the rows lie."""

from collections.abc import Callable
from typing import Any

import jax
from jax.sharding import PartitionSpec

from mgk_jax.kernels import heads

Tree = Any


def over_rows(function: Callable[[Tree, Tree], jax.Array], rows: Tree, whole: Tree) -> jax.Array:
  """`function(rows, whole)`; within `sharded_heads`, each device computes the rows that it holds.

  The first axis of rows is cut over the mesh axis of the batch, the second, if there is one, over that of the heads,
  which else would compute the same rows several times. An axis that the mesh does not divide stays whole.

  Args:
    function: from rows [B, T, …] and from what every row needs to an array [B, T]; a row's result depends on that row.
    rows: a tree of arrays; the one with the fewest axes has those of the result.
    whole: a tree of arrays, on every device. Their gradients are summed over devices.
  """
  layout, inside = heads.present_layout(), jax.sharding.get_abstract_mesh()
  if layout is None or layout.mesh.size == 1 or (not inside.empty and inside.are_all_axes_manual):
    return function(rows, whole)
  shape = min((x.shape for x in jax.tree.leaves(rows)), key=len)
  axes = zip(shape, (layout.batch, layout.heads), strict=False)
  spec = PartitionSpec(*(name if size % layout.mesh.shape[name] == 0 else None for size, name in axes))
  mapped = jax.shard_map(
    function, mesh=layout.mesh, in_specs=(spec, PartitionSpec()), out_specs=spec, check_vma=False
  )  # fmt: skip
  return mapped(rows, whole)
