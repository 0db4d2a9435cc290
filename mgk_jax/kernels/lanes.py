"""Loops that run side by side, each on a core of its own.

XLA:CPU runs one operation after the other and cuts each into parts for all cores. Those wait for each other after
every operation, and what one core has written another one reads. Two loops that need nothing of each other it can run
at the same time instead, each with its tiles in the caches of one core, but only if no two operations of theirs write
to the same memory. It gives memory to what is alive at a moment, and while one loop runs, what the other one computes
on the way is not. Here all of that is part of the loop's carry, which is alive until the last loop has ended. One loop
does without: the last in XLA's order, while all that the others have is alive. XLA lets its arrays share memory.

    def step(count, state, keep):
      product = keep(a @ b)  # computed anew in each step, always in the same memory
      return state + keep(product @ c)

What is forgotten costs only speed: loops that share memory run one after the other, with all cores for each operation.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
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
LONG = 2**23  # pairs of a call that takes long enough for a longer start


class Keeper:
  """The memory of one loop that has others beside it, for what a step computes on the way; `keep(x)` is x."""

  def __init__(self, *, keeps: bool, has_company: bool):
    self.keeps, self.has_company = keeps, has_company
    self.kept: list[jax.Array] = []

  def __call__(self, x: jax.Array) -> jax.Array:
    """`x`, which gets memory of its own where the loop needs that."""
    if self.keeps:
      self.kept.append(x)
    return x

  def once(self, x: jax.Array) -> jax.Array:
    """`x`, which any loop with company keeps: XLA computes anew what is cheap for each element that is made of it."""
    if self.has_company:
      self.kept.append(x)
    return x


class Loop(NamedTuple):
  """`step(count, state, keep)` for every count from `start` on, which `advance` takes to the next, below `end`."""

  end: Index
  step: Callable[[jax.Array, Tree, Keeper], Tree]
  start: Index = 0
  advance: Callable[[jax.Array], jax.Array] = lambda count: count + 1


def run(
  lanes: Sequence[Sequence[Loop]], states: Sequence[Tree], *, first_fill: float = 0, is_long: bool = False
) -> list[Tree]:
  """The states of all lanes after their loops, of which those of one lane run one after the other.

  Args:
    lanes: the loops of each.
    states: what each lane starts with.
    first_fill: a number of its own for each call in a program (see `_prepare`).
    is_long: whether the loops take milliseconds (see `_on_cores_of_their_own`).
  """
  has_company = len(lanes) > 1
  fill = itertools.count(first_fill)
  ready = [
    # The first lane, which waits for a product, comes last in XLA's order, unless several loops follow each other.
    [_prepare(loop, state, fill if has_company else None, keeps=number > 0 or len(loops) > 1) for loop in loops]
    for number, (loops, state) in enumerate(zip(lanes, states, strict=True))
  ]
  starts = [jnp.int32(loops[0].start) for loops in lanes]
  factors: list[jax.Array] = []
  kept: list[jax.Array] = []
  if has_company:
    needed = [(loop.constants, loop.kept) for loops in ready for loop in loops]
    starts, factors, kept = _on_cores_of_their_own((needed, states), starts, 192 if is_long else 128)
  results: list[Tree] = []
  for loops, state, start in zip(ready, states, starts, strict=True):
    for number, loop in enumerate(loops):
      carry = {"count": loop.start if number else start, "goes_on": loop.goes_on, "state": state, "kept": loop.kept}
      carry = lax.while_loop(lambda carry: carry["goes_on"], loop.body, vary_alike(carry))
      state = carry["state"]
      # What a loop reads must not become memory of another one either.
      kept += [carry["count"], *carry["kept"], *loop.constants]
    results.append(state)
  if not has_company:
    return results
  # After all that any loop has kept: until then it is alive, and no loop uses the memory of another.
  end = [_row_sums(factor, after(kept, jnp.int32(1))) for factor in factors]
  return [jax.tree.map(lambda x: after(end, x), state) for state in results]


def num_lanes(heads: int, pairs: int) -> int:
  """How many lanes that many heads are worth, with so many pairs of a query and a key altogether."""
  return min(LANES, heads) if dispatch.platform() == "cpu" and pairs >= WORTHWHILE else 1


class _Ready(NamedTuple):
  """A loop's body, the arrays that it needs from outside, and what its carry starts with beside the state."""

  body: Callable[[Tree], Tree]
  constants: Sequence[jax.Array]
  start: jax.Array
  goes_on: jax.Array
  kept: list[jax.Array]


def _prepare(loop: Loop, state: Tree, fill: Iterator[float] | None, *, keeps: bool) -> _Ready:
  """A loop that has others beside it if there is a `fill`; without `keeps` its arrays may share memory."""
  keeps = keeps and fill is not None

  def body(carry: Tree) -> Tree:
    keep = Keeper(keeps=keeps, has_company=fill is not None)
    state = loop.step(carry["count"], carry["state"], keep)
    count = loop.advance(carry["count"])
    if keeps:  # it is written over this step's count: last of all, and from memory of its own
      count = keep(after(state, count))
    return {"count": count, "goes_on": count < end, "state": state, "kept": keep.kept}

  start, end = jnp.int32(loop.start), jnp.int32(loop.end)
  # Whether it goes on is part of the carry too: what a condition computes would have memory that loops share.
  goes_on = start < end
  if fill is None:
    return _Ready(body, [], start, goes_on, [])
  program, shapes = jax.make_jaxpr(body, return_shape=True)({"count": start, "goes_on": goes_on, "state": state})
  # Nobody reads what the memory starts with. It differs, since XLA:CPU makes one array of equal ones, and copies it.
  kept = [jnp.full(x.shape, next(fill), x.dtype) for x in shapes["kept"]]
  return _Ready(body, program.consts, start, goes_on, kept)


def _on_cores_of_their_own(
  needed: Tree, starts: Sequence[jax.Array], size: int
) -> tuple[list[jax.Array], list[jax.Array], list[jax.Array]]:
  """`starts`, each computed after all that is needed, in a thread that can go on from there.

  XLA:CPU goes on in the thread in which the last operand was computed, with one thing after the other: with the next
  loop when this one has ended. But a product of integers that is large enough for several threads it leaves to those,
  and the one that ends it goes on from there. So all lanes but the last wait for a product each, and with the last
  one goes on who has left the products to others. These have to wake up for that: if that takes longer than their part
  of the product, the one who left it to them takes it back, and one lane runs after the other.

  Args:
    needed: before all starts.
    starts: of the lanes.
    size: rows and columns of the product.

  Returns:
    The starts, and the factors and products. These are to be alive until all lanes have ended: what is written to the
    memory of one that is not has to wait for it.
  """
  zero = after(needed, jnp.int32(0))
  factors = [lax.broadcasted_iota(jnp.int32, (size, size), 0) ^ (zero + lane) for lane in range(len(starts) - 1)]
  products = [factor @ factor for factor in factors]
  own = [after(product, start) for product, start in zip(products, starts[:-1], strict=True)]
  last = after([_row_sums(factor, jnp.int32(1)) for factor in factors], starts[-1])
  return [*own, last], factors, products


def _row_sums(x: jax.Array, one: jax.Array) -> jax.Array:
  """The sums of the rows, as a product: XLA:CPU would compute the operand of a sum anew."""
  return x @ jnp.broadcast_to(one, (x.shape[1], 1))


def after(tree: Tree, x: jax.Array) -> jax.Array:
  """`x`, in a form that XLA:CPU computes after all arrays of `tree`: no number is greater than infinity."""
  leaves = [leaf for leaf in jax.tree.leaves(tree) if leaf.size]
  firsts = jnp.stack([leaf[(0,) * leaf.ndim].astype(jnp.float32) for leaf in leaves])
  return x + (jnp.max(firsts) > jnp.inf).astype(x.dtype)
