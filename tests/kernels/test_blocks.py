"""Which tiles are visited."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels.blocks import Heads, Start
from mgk_jax.kernels.limits import Limits, Options
from mgk_jax.kernels.operands import prepare
from mgk_jax.kernels.scores import Scores

SIZES = [(1, 1), (1, 700), (127, 127), (130, 64), (700, 1100), (1100, 700), (2500, 2500)]


def make_heads(T: int, S: int, *, is_causal: bool, lengths: dict[str, list[int]] | None = None) -> Heads:
  lengths = lengths or {}
  B = max((len(x) for x in lengths.values()), default=1)
  scores = Scores(jnp.zeros((B, 1, T, 4)), jnp.zeros((B, 1, 1, S, 4)), None, None)
  limits = Limits(**dict.fromkeys(Limits._fields) | {name: jnp.array(x)[:, None] for name, x in lengths.items()})
  options = Options("soft", is_causal)
  return Heads(prepare(scores, limits, options), limits, options)


def visits(heads: Heads, *, by_queries: bool) -> np.ndarray:
  """How often each pair is visited, [heads, queries, keys], in the order of the forward or the backward pass."""

  blocks = jnp.arange(heads.form.padded_S // heads.form.key_size)[:, None]

  def visit(place, counts, keep):
    seen = jnp.broadcast_to(blocks == place.key_block, (len(blocks), heads.form.query_size))
    return heads.add(counts, place, keep(seen.astype(counts.dtype)))

  start = Start((len(blocks), heads.form.query_size))
  counts = np.asarray(jax.jit(lambda: heads.visit(visit, start, by_queries=by_queries))())[:, 0]
  pairs = np.repeat(counts.swapaxes(2, 3), heads.form.key_size, axis=3)
  return pairs.reshape(len(pairs), heads.form.padded_T, heads.form.padded_S)[:, : heads.form.T, : heads.form.S]


@pytest.mark.parametrize("by_queries", [True, False])
@pytest.mark.parametrize(("T", "S"), SIZES)
def test_every_pair_is_visited_once(T, S, by_queries):
  assert np.all(visits(make_heads(T, S, is_causal=False), by_queries=by_queries) == 1)
  causal = visits(make_heads(T, S, is_causal=True), by_queries=by_queries)
  seen = np.arange(S) <= np.arange(T)[:, None]
  assert np.all(causal[:, seen] == 1) and np.all(causal <= 1)


@pytest.mark.parametrize("by_queries", [True, False])
@pytest.mark.parametrize("is_causal", [True, False])
def test_blocks_past_the_lengths_are_not_visited(is_causal, by_queries):
  lengths = {"query_length": [0, 1, 700, 300, 1100], "key_length": [700, 1100, 0, 513, 1100]}
  found = visits(make_heads(1100, 1100, is_causal=is_causal, lengths=lengths), by_queries=by_queries)
  for count, query_length, key_length in zip(found, *lengths.values(), strict=True):
    seen = (np.arange(1100)[:, None] < query_length) & (np.arange(1100) < key_length)
    if is_causal:
      seen &= np.arange(1100) <= np.arange(1100)[:, None]
    assert np.all(count[seen] == 1) and np.all(count <= 1)
    assert np.all(count[query_length + 255 :] == 0) and np.all(count[:, key_length + 511 :] == 0)


def test_causality_leaves_little_above_the_diagonal():
  """At N = 4096, half of a block of 512 keys for each query: 1/2 + 1/16 of all pairs."""
  assert visits(make_heads(4096, 4096, is_causal=True), by_queries=True).mean() <= 1 / 2 + 1 / 16
