"""How many parameters a model has, and where."""

import math
from typing import Any

import jax
from flax import nnx


def count(tree: Any) -> int:
  """The number of trained parameters of a module, or of all numbers in any other tree of arrays.

  Abstract arrays count as well, so that a model need not be made: `count(nnx.eval_shape(lambda: Classifier(…)))`.
  """
  leaves = jax.tree.leaves(nnx.state(tree, nnx.Param) if isinstance(tree, nnx.Module) else tree)
  return sum(math.prod(leaf.shape) for leaf in leaves)


def by_part(module: nnx.Module) -> dict[str, int]:
  """The trained parameters of a module's direct parts, by their names; parts without any are left out."""
  return {str(name): count(part) for name, part in nnx.state(module, nnx.Param).items()}
