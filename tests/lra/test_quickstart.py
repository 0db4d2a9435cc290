import contextlib
import io
import itertools

import jax
import numpy as np
import pytest

from lra import listops, quickstart

SMALL = ["--steps", "150", "--batch-size", "32", "--max-length", "16", "--test-size", "500"]


@pytest.fixture(scope="module")
def small_run():
  """The results of a short run, and what it printed."""
  with contextlib.redirect_stdout(io.StringIO()) as out:
    return quickstart.main(SMALL), out.getvalue()


def test_learns_something_even_in_a_short_run(small_run):
  smgk, softmax = small_run[0]
  assert (smgk.attention, smgk.num_heads, softmax.attention, softmax.num_heads) == ("smgk", 1, "softmax", 2)
  labels = next(quickstart._batches(quickstart._parse(SMALL), 500)).labels
  majority = np.bincount(labels).max() / 500
  # 500 tests at the majority's rate have a standard deviation of 1.5%: six of them are no accident.
  assert min(smgk.accuracy, softmax.accuracy) > majority + 0.09


def test_counts_parameters(small_run):
  tokens, positions, width, mlp, head, classes = 16, 16, 64, 128, 32, 10
  norm = 2 * width
  head_parameters = 4 * width * head + 3 * head  # and the output's bias, once for all heads
  mixture = 2 * head + 2  # shifts and priors of two components
  layer = 2 * norm + width + (width * mlp + mlp) + (mlp * width + width)
  outside = (tokens + positions) * width + norm + (width * mlp + mlp) + (mlp * classes + classes)
  smgk, softmax = small_run[0]
  assert smgk.num_parameters == outside + 2 * (layer + head_parameters + mixture)
  assert softmax.num_parameters == outside + 2 * (layer + 2 * head_parameters)


def test_prints_progress_and_a_table(small_run):
  results, out = small_run
  assert "smgk, 1 head: step 150/150" in out
  assert "softmax, 2 heads: step 15/150" in out
  for result in results:
    assert f"{result.num_parameters:,}" in out
    assert f"{result.accuracy:.1%}" in out
  assert "chance" in out


def test_training_and_test_expressions_differ_and_are_the_same_for_every_model():
  args = quickstart._parse([])
  test = next(quickstart._batches(args, 100))
  batches = [list(itertools.islice(quickstart._batches(args, 50, skip=100), 4)) for _ in range(2)]
  jax.tree.map(np.testing.assert_array_equal, batches[0], batches[1])
  texts = [listops.decode(row) for batch in (test, *batches[0]) for row in batch.tokens]
  assert len(set(texts)) == len(texts) == 300


@pytest.mark.parametrize(
  ("argv", "message"),
  [
    (["--steps", "0"], "--steps: expected a positive whole number, got 0"),
    (["--max-length", "7"], "--max-length: expected at least 8"),
    (["--stepz", "5"], "unrecognized arguments"),
  ],
)
def test_wrong_arguments_are_refused(argv, message, capsys):
  with pytest.raises(SystemExit):
    quickstart.main(argv)
  assert message in capsys.readouterr().err


def test_help_shows_an_example(capsys):
  with pytest.raises(SystemExit):
    quickstart.main(["--help"])
  assert "example: python -m lra.quickstart" in capsys.readouterr().out
