"""Loops that run side by side, each on a core of its own.

XLA:CPU runs one operation after the other and cuts each into parts for all cores. Those wait for each other after
every operation, and what one core has written another one reads. Two loops that need nothing of each other it can run
at the same time instead, each with its tiles in the caches of one core, but only if no two operations of theirs write
to the same memory. It gives memory to what is alive at a moment, and while one loop runs, what the other one computes
on the way is not. Here all of that is part of the loop's carry, which is alive until the last loop has ended:

    def step(count, state, keep):
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
WORTHWHILE = 2**18  # pairs of a query and a key


class Keeper:
  """The memory of one loop that has others beside it, for what a step computes on the way; `keep(x)` is x."""

  def __init__(self, *, has_company: bool):
    self.has_company = has_company
    self.kept: list[jax.Array] = []

  def __call__(self, x: jax.Array) -> jax.Array:
    """`x`, which gets memory of its own."""
    if self.has_company:
      self.kept.append(x)
    return x


class Loop(NamedTuple):
  """`step(count, state, keep)` for every count from `start` on, which `advance` takes to the next, below `end`."""

  end: Index
  step: Callable[[jax.Array, Tree, Keeper], Tree]
  start: Index = 0
  advance: Callable[[jax.Array], jax.Array] = lambda count: count + 1


def run(lanes: Sequence[Sequence[Loop]], states: Sequence[Tree]) -> list[Tree]:
  """The states of all lanes after their loops, of which those of one lane run one after the other."""
  results: list[Tree] = []
  kept: list[jax.Array] = []
  has_company = len(lanes) > 1
  for loops, state in zip(lanes, states, strict=True):
    for loop in loops:
      state, memory = _run(loop, state, first_fill=len(kept), has_company=has_company)
      kept += memory
    results.append(state)
  # After all that any loop has kept: until then it is alive, and no loop uses the memory of another.
  return [jax.tree.map(lambda x: after(kept, x), state) for state in results] if has_company else results


def num_lanes(heads: int, pairs: int) -> int:
  """How many lanes that many heads are worth, with so many pairs of a query and a key altogether."""
  return min(LANES, heads) if dispatch.platform() == "cpu" and pairs >= WORTHWHILE else 1


def _run(loop: Loop, state: Tree, first_fill: int, *, has_company: bool) -> tuple[Tree, list[jax.Array]]:
  def body(carry: Tree) -> Tree:
    keep = Keeper(has_company=has_company)
    state = loop.step(carry["count"], carry["state"], keep)
    count = loop.advance(carry["count"])
    if has_company:  # it is written over this step's count: last of all, and from memory of its own
      count = keep(after(state, count))
    return {"count": count, "goes_on": count < end, "state": state, "kept": keep.kept}

  start, end = jnp.int32(loop.start), jnp.int32(loop.end)
  # Whether it goes on is part of the carry too: what a condition computes would have memory that loops share.
  carry = {"count": start, "goes_on": start < end, "state": state}
  program, shapes = jax.make_jaxpr(body, return_shape=True)(carry)
  # Nobody reads what the memory starts with. It differs, since XLA:CPU makes one array of equal ones, and copies it.
  carry["kept"] = [jnp.full(x.shape, first_fill + i, x.dtype) for i, x in enumerate(shapes["kept"])]
  if has_company:
    carry["count"] = _on_another_core((program.consts, carry), start)
  carry = lax.while_loop(lambda carry: carry["goes_on"], body, vary_alike(carry))
  return carry["state"], carry["kept"]


def _on_another_core(operands: Tree, x: jax.Array) -> jax.Array:
  """`x`, computed after all operands of what comes next, in a thread that can go on with that.

  XLA:CPU goes on in the thread in which the last operand was computed. That is the one that has begun with all of it,
  which would begin with the next loop only when this one has ended. A product of integers that is large enough for
  several threads ends in one of those.
  """
  factor = lax.broadcasted_iota(jnp.int32, (128, 128), 0) ^ after(operands, x)
  return after(jnp.dot(factor, factor.T), x)


def after(tree: Tree, x: jax.Array) -> jax.Array:
  """`x`, in a form that XLA:CPU computes after all arrays of `tree`: no number is greater than infinity."""
  leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
  firsts = jnp.stack([leaf[(0,) * leaf.ndim].astype(jnp.float32) for leaf in leaves])
  return x + (jnp.max(firsts) > jnp.inf).astype(x.dtype)
