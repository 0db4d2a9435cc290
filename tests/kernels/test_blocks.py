"""Which tiles are visited, and as what XLA compiles the loops over them."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from mgk_jax.kernels.blocks import Head, Limits, Options
from mgk_jax.kernels.scores import Scores


def make_head(T: int, S: int, is_causal: bool) -> Head:
  scores = Scores(jnp.zeros((T, 4)), jnp.zeros((1, S, 4)), None, None)
  return Head(scores, Limits(*[None] * len(Limits._fields)), Options("soft", is_causal))


def visits(head: Head, *, by_queries: bool) -> np.ndarray:
  """How often each pair is visited, [padded queries, padded keys], in the order of the forward or the backward pass."""
  count = np.zeros((head.query_blocks * head.num_parts * head.query_size, head.key_blocks * head.key_size), int)
  for outer in range(head.query_blocks if by_queries else head.key_blocks):
    for first, last, is_cut in head.key_ranges(outer) if by_queries else head.query_ranges(outer):
      for inner in range(int(first), int(last)):
        i, j = (outer, inner) if by_queries else (inner, outer)
        for place in head.places(head.parts(i), j, is_cut):
          row, column = place.first, place.block * head.key_size
          count[row : row + head.query_size, column : column + place.keys] += 1
  return count


@pytest.mark.parametrize("by_queries", [True, False])
@pytest.mark.parametrize(("T", "S"), [(1, 1), (1, 700), (127, 127), (130, 64), (700, 1100), (1100, 700), (2500, 2500)])
def test_every_pair_is_visited_once(T, S, by_queries):
  assert np.all(visits(make_head(T, S, False), by_queries=by_queries) == 1)
  causal = visits(make_head(T, S, True), by_queries=by_queries)[:T, :S]
  seen = np.arange(S) <= np.arange(T)[:, None]
  assert np.all(causal[seen] == 1) and np.all(causal <= 1)


def test_causality_leaves_little_above_the_diagonal():
  """At N = 4096, half of a part of 256 queries in 4096 keys: 1/2 + 1/32 of all pairs."""
  assert visits(make_head(4096, 4096, True), by_queries=True).mean() <= 1 / 2 + 1 / 32


@pytest.mark.usefixtures("optimised")
@pytest.mark.parametrize(("kind", "estep"), [("mgk", "soft"), ("smgk", "hard")])
def test_loops_over_one_block_stay_loops(kind, estep):
  """Dissolved, they were up to three times slower: XLA:CPU does not vectorise what it makes of them."""
  x, keys, shift = jnp.ones((1, 256, 1, 4)), jnp.ones((1, 256, 1, 2, 4)), jnp.ones((1, 2, 4))

  def forward(x):
    if kind == "mgk":
      return mgk_jax.mixture_attention(x, keys, x, estep=estep, implementation="xla")
    return mgk_jax.shifted_mixture_attention(x, x, x, shift, estep=estep, implementation="xla")

  text = jax.jit(forward).lower(x).compile().as_text()
  assert text.count(" while(") >= 2  # over blocks of queries and of keys; one head of one example needs no other
