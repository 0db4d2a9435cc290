"""Loops that run side by side, each on a core of its own.

XLA:CPU runs one operation after the other and cuts each into parts for all cores. Those wait for each other after
every operation, and what one core has written another one reads. Two loops that need nothing of each other it can run
at the same time instead, each with its tiles in the caches of one core, but only if no two operations of theirs write
to the same memory. It gives memory to what is alive at a moment, and while one loop runs, what the other one computes
on the way is not. Here all of that is part of the loop's carry, which is alive until the last loop has ended:

    def step(index, state, keep):
      product = keep(a @ b)  # computed anew in each step, always in the same memory
      return state + keep(product @ c)

What is forgotten costs only speed: loops that share memory run one after the other, with all cores for each operation.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels import dispatch
from mgk_jax.kernels.heads import vary_alike

Tree = Any
Index = jax.Array | int

LANES = 2


class Keeper:
  """The memory of one loop, for what a step computes on the way; `keep(x)` is x."""

  def __init__(self) -> None:
    self.kept: list[jax.Array] = []

  def __call__(self, x: jax.Array) -> jax.Array:
    """`x`, which gets memory of its own."""
    if _can_share_cores():
      self.kept.append(x)
    return x


class Loop(NamedTuple):
  """`step(index, state, keep)` for every index below `number`."""

  number: Index
  step: Callable[[jax.Array, Tree, Keeper], Tree]


def run(lanes: Sequence[Sequence[Loop]], states: Sequence[Tree]) -> list[Tree]:
  """The states of all lanes after their loops, of which those of one lane run one after the other."""
  results, kept = [], []
  for loops, state in zip(lanes, states, strict=True):
    for loop in loops:
      state, memory = _run(loop, state)
      kept += memory
    results.append(state)
  # After all that any loop has kept: until then it is alive, and no loop uses the memory of another.
  return [jax.tree.map(lambda x: after(kept, x), state) for state in results]


def num_lanes(items: int) -> int:
  """How many lanes that many items are worth."""
  return min(LANES, items) if _can_share_cores() else 1


def _run(loop: Loop, state: Tree) -> tuple[Tree, list[jax.Array]]:
  def body(carry: Tree) -> Tree:
    keep = Keeper()
    state = loop.step(carry["index"], carry["state"], keep)
    # The next step's index is written over this one's, which all of the state is computed from.
    index = after(state, carry["index"] + 1)
    return {"index": index, "goes_on": index < count, "state": state, "kept": keep.kept}

  count = jnp.int32(loop.number)
  # Whether it goes on is part of the carry too: what a condition computes would have memory that loops share.
  carry = {"index": jnp.int32(0), "goes_on": count > 0, "state": state}
  carry["kept"] = [jnp.zeros(x.shape, x.dtype) for x in jax.eval_shape(body, carry)["kept"]]
  carry = lax.while_loop(lambda carry: carry["goes_on"], body, vary_alike(carry))
  return carry["state"], carry["kept"]


def after(tree: Tree, x: jax.Array) -> jax.Array:
  """`x`, in a form that XLA:CPU computes after all arrays of `tree`: no number is greater than infinity."""
  leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
  if not _can_share_cores() or not leaves:
    return x
  firsts = jnp.stack([leaf[(0,) * leaf.ndim].astype(jnp.float32) for leaf in leaves])
  return x + (jnp.max(firsts) > jnp.inf).astype(x.dtype)


def _can_share_cores() -> bool:
  return dispatch.platform() == "cpu"
