"""Sliding windows: every word is scored once, by the protocol's definition, on any number of devices."""

import functools
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import optax
import pytest

import mgk_jax
from lm.windows import Protocol, Score, Scorer, Windows, default_batch_size
from mgk_jax import training
from mgk_jax.data.rows import Rows
from mgk_jax.training import state as states
from tests.nn import projecting

ROOT = Path(__file__).parents[2]
V, WINDOW = 30, 6
CONFIG = mgk_jax.LanguageModelConfig(
  vocab_size=V, max_len=WINDOW, num_layers=2, emb_dim=8, mlp_dim=8, num_heads=2, head_dim=4, cutoffs=(10, 20),
  attention="mgk", prior_scope="position", implementation="reference",  # compiles fastest
)  # fmt: skip


def make_model(rngs):
  return projecting.randomise(mgk_jax.LanguageModel(CONFIG, rngs=rngs))


@functools.cache
def model_on(num_devices):
  """A structure, and parameters and variables on a mesh."""
  mesh = training.make_mesh(num_devices, devices=jax.devices()[:num_devices])
  structure, state = states.create(make_model, optax.sgd(1.0), mesh, 0)
  return structure, mesh, (state.params, state.variables)


def text(size):
  return np.random.default_rng(0).integers(0, V, size, np.int32)


def all_losses(tokens, protocol, batch_size, num_devices=1, first=0):
  structure, mesh, arrays = model_on(num_devices)
  scorer = Scorer(structure, mesh, protocol, batch_size)
  found = list(scorer.losses(*arrays, Windows(tokens, protocol), first))
  return sum(number for number, _ in found), np.concatenate([losses for _, losses in found])


@functools.cache
def one_window():
  structure, _, arrays = model_on(1)
  model = structure.merge(*arrays)
  return jax.jit(lambda tokens, targets: model.nll(tokens, targets, deterministic=True)[0])


def by_definition(tokens, protocol):
  """One window at a time, with the vocabulary at all positions: −log p of every word but the first."""
  run, losses = one_window(), {}
  for start in range(0, len(tokens), protocol.stride):
    words, targets = tokens[start : start + protocol.window], tokens[start + 1 : start + protocol.window + 1]
    padded = np.zeros((2, 1, protocol.window), np.int32)
    padded[0, 0, : len(words)], padded[1, 0, : len(targets)] = words, targets
    for position, loss in enumerate(run(*padded)[: len(targets)]):
      losses.setdefault(start + position + 1, float(loss))  # by the first window that reaches the word
  return np.array([losses[position] for position in range(1, len(tokens))])


@pytest.mark.parametrize(("size", "stride", "batch_size"), [(40, 1, 7), (4, 1, 2), (41, 4, 3), (40, WINDOW, 2)])
def test_it_is_the_loop_over_windows(size, stride, batch_size):
  """To 1e-5 for each word, whatever the batch, however short the text, and with other strides."""
  tokens, protocol = text(size), Protocol(WINDOW, stride)
  windows, found = all_losses(tokens, protocol, batch_size)
  assert windows == len(Windows(tokens, protocol))
  assert len(found) == size - 1
  np.testing.assert_allclose(found, by_definition(tokens, protocol), atol=1e-5)


def test_windows_written_out():
  windows = Windows(np.arange(10, 18, dtype=np.int32), Protocol(4))
  assert len(windows) == 4
  assert windows.first()["tokens"].tolist() == [[10, 11, 12, 13]]
  assert windows.first()["targets"].tolist() == [[11, 12, 13, 14]]
  batch = windows.batch(1, Rows(4, 0, 1))
  assert batch["tokens"][:3].tolist() == [[11, 12, 13, 14], [12, 13, 14, 15], [13, 14, 15, 16]]
  assert batch["targets"][:3].tolist() == [[15], [16], [17]]
  assert batch["weights"].tolist() == [[1], [1], [1], [0]]
  second = windows.batch(1, Rows(4, 1, 2))
  assert all(np.array_equal(second[name], rows[2:]) for name, rows in batch.items())


def test_scores_add_up_and_can_be_gone_on_with():
  """From any number of windows on, the total is that of a run without a break, to the last bit."""
  structure, mesh, arrays = model_on(1)
  protocol = Protocol(WINDOW)
  windows = Windows(text(40), protocol)
  scorer = Scorer(structure, mesh, protocol, 5)
  scores = list(scorer.score(*arrays, windows))
  assert scores[-1].windows == len(windows) and scores[-1].count == 39
  assert scores[-1].nll == pytest.approx(by_definition(text(40), protocol).sum(), rel=1e-6)
  for done in (scores[0], scores[3]):
    assert list(scorer.score(*arrays, windows, start=done))[-1] == scores[-1]
  assert list(scorer.score(*arrays, windows, start=scores[-1])) == []
  assert scores[0] + Score(2, 3.0, 4) == Score(3, scores[0].nll + 3.0, WINDOW + 4)


def test_the_vocabulary_is_only_scored_where_it_counts():
  """And in the last layer there is one query."""
  structure, mesh, arrays = model_on(1)
  scorer = Scorer(structure, mesh, Protocol(WINDOW), 4)
  shapes = []
  original = mgk_jax.LanguageModel.losses

  def losses(model, hidden, *rest):
    shapes.append(hidden.shape)
    return original(model, hidden, *rest)

  with pytest.MonkeyPatch.context() as patch:
    patch.setattr(mgk_jax.LanguageModel, "losses", losses)
    list(scorer.losses(*arrays, Windows(text(20), Protocol(WINDOW))))
  assert shapes == [(1, WINDOW, 8), (4, 1, 8)]


def test_batches_that_fit_the_caches():
  config = mgk_jax.LanguageModelConfig(vocab_size=267_735)
  assert default_batch_size(config, 256, 2) == 2 * 4
  assert default_batch_size(config, 10**6, 1) == 1


@pytest.mark.slow
def test_on_several_devices():
  done = subprocess.run(
    [sys.executable, "-m", "tests.lm.sharded_windows"], cwd=ROOT, capture_output=True, text=True, timeout=300
  )
  assert done.returncode == 0, done.stderr


def test_malformed():
  with pytest.raises(ValueError, match="stride: expected 1 to window = 4, or words would be left out, got 5"):
    Protocol(4, 5)
  with pytest.raises(ValueError, match="window: expected at least 1, got 0"):
    Protocol(0)
  with pytest.raises(ValueError, match="expected at least two words, of which one can be predicted, got 1"):
    Windows(np.zeros(1, np.int32), Protocol(4))
  structure, mesh, _ = model_on(1)
  with pytest.raises(ValueError, match="batch_size: expected a multiple of the 1 devices, got 0"):
    Scorer(structure, mesh, Protocol(4), 0)


def test_names_of_protocols():
  assert Protocol(256).describe("word") == "windows of 256 words sliding by 1 word, as in the paper"
  assert Protocol(256, 32).describe("byte") == "windows of 256 bytes sliding by 32 bytes"
  assert Protocol(256, 256).describe("word") == "segments of 256 words, each on its own"
