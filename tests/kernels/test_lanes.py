"""Loops that run side by side: they compute what they would one after the other, and share no memory."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from mgk_jax.kernels import dispatch, lanes
from mgk_jax.kernels.lanes import Loop

# Operations without memory of their own.
FREE = {"parameter", "get-tuple-element", "tuple", "constant", "bitcast"}


def shared_memory(text: str) -> list[str]:
  """Of a compiled program, what the bodies of its loops compute that is not part of their carry."""
  # Others, as those of random numbers, don't carry whether they go on.
  bodies = re.findall(r"= \(s32\[\], pred\[\], .*? while\(.*?body=%?([\w.\-]+)", text)
  assert len(bodies) >= 2 * lanes.LANES  # of both passes
  found = []
  for body in bodies:
    (lines,) = re.findall(rf"^%?{re.escape(body)} \(.*?\n(.*?)^\}}", text, re.MULTILINE | re.DOTALL)
    operations = re.findall(r"^ *(ROOT )?%([\w.\-]+) = \S.*? ([\w\-]+)\((.*)$", lines, re.MULTILINE)
    (carry,) = [operands for is_root, _, _, operands in operations if is_root]
    kept = set(re.findall(r"%([\w.\-]+)", carry))
    found += [name for is_root, name, kind, _ in operations if not is_root and kind not in FREE and name not in kept]
  return found


def test_loops_of_several_lanes():
  """The sum of the first n numbers, for several n at once and one loop after the other within a lane."""

  def loop(n, factor):
    return Loop(n, lambda i, state, keep: state + keep(jnp.full(3, 1.0)) * factor * i)

  @jax.jit
  def run(n):
    return lanes.run([[loop(n, 1), loop(3, 10)], [loop(0, 1)], [loop(2 * n, 1)]], [jnp.zeros(3)] * 3)

  np.testing.assert_array_equal(run(5), [[40] * 3, [0] * 3, [45] * 3])


def test_infinities_and_nans_on_the_way_stay_there():
  @jax.jit
  def run(x):
    return lanes.run([[Loop(2, lambda i, state, keep: state + 0 * jnp.sign(keep(x)))]] * 2, [jnp.zeros(2)] * 2)

  np.testing.assert_array_equal(run(jnp.array([jnp.inf, -jnp.inf])), np.zeros((2, 2)))
  assert np.all(np.isnan(run(jnp.full(2, jnp.nan))))


@pytest.mark.usefixtures("optimised")
def test_lanes_start_without_waiting_for_each_other():
  """What hands a lane to another thread has memory of its own: it is alive until all loops have ended.

  If it were not, the last lane's first number could be written there, and would have to wait until the other has begun.
  """

  def loop():
    return Loop(3, lambda i, state, keep: state + keep(jnp.sin(state)))

  program = jax.jit(lambda x: lanes.run([[loop()], [loop()], [loop()]], [x, 2 * x, 3 * x]))
  text = program.lower(jnp.ones(100)).compile().as_text()
  (entry,) = re.findall(r"^ENTRY .*?\n(.*?)^\}", text, re.MULTILINE | re.DOTALL)
  operands = {
    name: re.findall(r"%([\w.\-]+)", rest)
    for name, rest in re.findall(r"^ *(?:ROOT )?%([\w.\-]+) = (.*)$", entry, re.MULTILINE)
  }

  def needed(name):
    return {name}.union(*map(needed, operands.get(name, ())))

  loops = set(re.findall(r"%([\w.\-]+) = \(.*? while\(", entry))
  products = re.findall(r"%([\w.\-]+) = s32\[128,128\]\S* dot\(%([\w.\-]+)", entry)
  assert len(loops) == 3 and len(products) == 2
  for array in itertools.chain(*products):
    assert any(loops <= needed(user) for user, used in operands.items() if array in used)


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
    *((name, variant) for name in ("softmax", "mgk", "smgk") for variant in VARIANTS),
    *((name, "plain") for name in ("mgk hard", "smgk hard")),
  ],
)
def test_attention_runs_side_by_side(name, variant):
  """All that the loops of the forward and the backward pass compute has memory of their own."""
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
  assert not shared_memory(jax.jit(program).lower(x, keys, shift).compile().as_text())
