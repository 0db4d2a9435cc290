"""Loops that run side by side: they compute what they would one after the other, and share no memory."""

import collections
import itertools
import re
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from mgk_jax.kernels import dispatch, lanes

Range = tuple[str, int, int]  # allocation, first byte, end


class Loop(NamedTuple):
  """A loop of a compiled program: in which computation it is, what it needs there, and its memory."""

  computation: str
  needed: set[str]
  reads: list[Range]
  writes: list[Range]


def compiled_loops(lowered, folder) -> dict[str, Loop]:
  """The loops of a program by name, as XLA compiled it and gave memory to it."""
  lowered.compile(compiler_options={"xla_dump_to": str(folder), "xla_dump_hlo_as_text": True})
  (program,) = (path.read_text() for path in folder.glob("*.cpu_after_optimizations.txt"))
  (memory,) = (path.read_text() for path in folder.glob("*.cpu_after_optimizations-buffer-assignment.txt"))

  ranges = collections.defaultdict(list)
  for allocation in re.split(r"^(?=allocation \d+:)", memory, flags=re.MULTILINE)[1:]:
    number = allocation.split(":")[0]
    values = re.findall(r"value: <\d+ ([\w.\-]+)\S* .*?@\d+> \(size=(\d+),offset=(\d+)\)", allocation)
    for name, size, offset in values:
      ranges[name].append((number, int(offset), int(offset) + int(size)))
  assert ranges

  found = {}
  computations = dict(re.findall(r"^(?:ENTRY )?%?(\S+) \(.*?\{\n(.*?)^\}", program, re.MULTILINE | re.DOTALL))
  for computation, lines in computations.items():
    operands = {
      name: re.findall(r"%([\w.\-]+)", rest)
      for name, rest in re.findall(r"^ *(?:ROOT )?%([\w.\-]+) = (.*)$", lines, re.MULTILINE)
    }
    loops = re.findall(r"%([\w.\-]+) = \(s32\[\], pred\[\], .*? while\(.*?body=%?([\w.\-]+)", lines)
    for loop, body in loops:  # others, as those of random numbers, don't carry whether they go on
      computed = re.findall(r"^ *(?:ROOT )?%([\w.\-]+) = (?!.* parameter\()", computations[body], re.MULTILINE)
      needed = needed_by(loop, operands)
      found[loop] = Loop(
        computation,
        needed,
        reads=[memory for name in needed_by(loop, operands, depth=2) for memory in ranges[name]],
        writes=[memory for name in computed for memory in ranges[name]],
      )
  return found


def needed_by(name: str, operands: dict[str, list[str]], depth: int = 10**6) -> set[str]:
  """`name`, and what it depends on in so many steps."""
  seen, last = {name}, {name}
  while last and depth:
    last = {operand for user in last for operand in operands.get(user, ())} - seen
    seen, depth = seen | last, depth - 1
  return seen


def shared_memory(loops: dict[str, Loop]) -> list[tuple[str, str, Range]]:
  """What a loop writes that another one, which does not wait for it, reads or writes."""
  found = []
  for (first, one), (second, other) in itertools.permutations(loops.items(), 2):
    if one.computation == other.computation and first not in other.needed and second not in one.needed:
      for allocation, begin, end in one.writes:
        for its_allocation, its_begin, its_end in other.reads + other.writes:
          if allocation == its_allocation and begin < its_end and its_begin < end:
            found.append((first, second, (allocation, begin, end)))
  return found


def test_loops_of_several_lanes():
  """The sum of the first n numbers, for several n at once and one loop after the other within a lane."""

  def loop(n, factor):
    return lanes.Loop(n, lambda i, state, keep: state + keep(jnp.full(3, 1.0)) * factor * i)

  @jax.jit
  def run(n):
    return lanes.run([[loop(n, 1), loop(3, 10)], [loop(0, 1)], [loop(2 * n, 1)]], [jnp.zeros(3)] * 3)

  np.testing.assert_array_equal(run(5), [[40] * 3, [0] * 3, [45] * 3])


def test_infinities_and_nans_on_the_way_stay_there():
  @jax.jit
  def run(x):
    return lanes.run([[lanes.Loop(2, lambda i, state, keep: state + 0 * jnp.sign(keep(x)))]] * 2, [jnp.zeros(2)] * 2)

  np.testing.assert_array_equal(run(jnp.array([jnp.inf, -jnp.inf])), np.zeros((2, 2)))
  assert np.all(np.isnan(run(jnp.full(2, jnp.nan))))


@pytest.mark.usefixtures("optimised")
def test_lanes_start_without_waiting_for_each_other():
  """What hands a lane to another thread has memory of its own: it is alive until all loops have ended.

  If it were not, the last lane's first number could be written there, and would have to wait until the other has begun.
  """

  def loop(n):
    return lanes.Loop(n, lambda i, state, keep: state + keep(jnp.sin(state)))

  program = jax.jit(lambda n, x: lanes.run([[loop(n)], [loop(n)], [loop(n)]], [x, 2 * x, 3 * x]))
  text = program.lower(3, jnp.ones(10**5)).compile().as_text()
  (entry,) = re.findall(r"^ENTRY .*?\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
  operands = {
    name: re.findall(r"%([\w.\-]+)", rest)
    for name, rest in re.findall(r"^ *(?:ROOT )?%([\w.\-]+) = (.*)$", entry, re.MULTILINE)
  }

  loops = set(re.findall(r"%([\w.\-]+) = \(.*? while\(", entry))
  products = re.findall(r"%([\w.\-]+) = s32\[128,128\]\S* dot\(%([\w.\-]+)", entry)
  assert len(loops) == 3 and len(products) == 2
  for array in itertools.chain(*products):
    assert any(loops <= needed_by(user, operands) for user, used in operands.items() if array in used)


def test_where_there_are_lanes():
  assert lanes.num_lanes(8, lanes.WORTHWHILE) == lanes.LANES
  assert lanes.num_lanes(1, lanes.WORTHWHILE) == lanes.num_lanes(8, lanes.WORTHWHILE - 1) == 1
  with dispatch.compiling_for("gpu"):
    assert lanes.num_lanes(8, lanes.WORTHWHILE) == 1


VARIANTS = {
  "plain": {},
  "causal": {"is_causal": True},
  "dropout": {"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)},
  "lengths": {"key_value_seq_lengths": jnp.array([300]), "query_seq_lengths": jnp.array([500])},
}


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(
  ("name", "variant"),
  [
    *(("softmax", variant) for variant in VARIANTS),
    *((name, variant) for name in ("mgk", "smgk") for variant in ("plain", "causal")),
    *(
      pytest.param(name, variant, marks=pytest.mark.slow)
      for name in ("mgk", "smgk")
      for variant in ("dropout", "lengths")
    ),
    *((name, "plain") for name in ("mgk hard", "smgk hard")),
  ],
)
def test_attention_runs_side_by_side(name, variant, tmp_path):
  """No loop writes to memory that the one beside it uses, in the forward and in the backward pass."""
  x, keys, shift = jnp.ones((1, 600, 2, 32)), jnp.ones((1, 600, 2, 2, 32)), jnp.ones((2, 2, 32))
  kind, _, estep = name.partition(" ")
  options = VARIANTS[variant] | {"implementation": "xla"}

  def attend(x, keys, shift):
    if kind == "softmax":
      return mgk_jax.softmax_attention(x, keys[..., 0, :], x, **options)
    if kind == "mgk":
      return mgk_jax.mixture_attention(x, keys, x, estep=estep or "soft", **options)
    return mgk_jax.shifted_mixture_attention(x, keys[..., 0, :], x, shift, estep=estep or "soft", **options)

  program = jax.value_and_grad(lambda *arguments: jnp.sum(attend(*arguments)), (0, 1, 2))
  loops = compiled_loops(jax.jit(program).lower(x, keys, shift), tmp_path)
  assert len(loops) >= 2 * lanes.LANES  # of both passes
  assert not shared_memory(loops)
