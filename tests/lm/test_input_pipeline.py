"""Segments cover a split exactly, in an order that the seed decides, on any number of processes, from any step on."""

import itertools
import json
import math

import numpy as np
import pytest

from lm import input_pipeline
from lm.input_pipeline import EvalBatches, Segments, train_batches
from mgk_jax.data.rows import Rows


def split(number):
  """Words that are all different, so that each says where it is from."""
  return np.arange(1000, 1000 + number, dtype=np.int32)


def targets(batches):
  """The targets that count; each comes with the word before it."""
  found = []
  for batch in batches:
    counts = batch["weights"] > 0
    assert np.array_equal(batch["tokens"][counts] + 1, batch["targets"][counts])
    assert not batch["tokens"][~counts].any() and set(np.unique(batch["weights"])) <= {0, 1}
    found += batch["targets"][counts].tolist()
  return found


def train(number, batches, *, rows=None, seed=0, length=4, **options):
  iterator = train_batches(split(number), rows=rows or Rows(3, 0, 1), length=length, seed=seed, **options)
  return list(itertools.islice(iterator, batches))


def test_whole_batches():
  """Written out: three segments of four words, the last one short, and a row that is empty."""
  batch = Segments(split(10), 4).batch(np.array([1, 2, 0]), 4)
  assert {name: x.tolist() for name, x in batch.items()} == {
    "tokens": [[1004, 1005, 1006, 1007], [1008, 0, 0, 0], [1000, 1001, 1002, 1003], [0, 0, 0, 0]],
    "targets": [[1005, 1006, 1007, 1008], [1009, 0, 0, 0], [1001, 1002, 1003, 1004], [0, 0, 0, 0]],
    "weights": [[1, 1, 1, 1], [1, 0, 0, 0], [1, 1, 1, 1], [0, 0, 0, 0]],
  }
  assert {name: x.dtype.name for name, x in batch.items()} == {
    "tokens": "int32", "targets": "int32", "weights": "float32",
  }  # fmt: skip


@pytest.mark.parametrize("number", [13, 25, 26, 61])
def test_every_target_once_an_epoch(number):
  """In five epochs, each in an order of its own, also where an epoch ends within a batch."""
  segments = math.ceil((number - 1) / 4)
  batches = train(number, 5 * segments)  # batches of three: fifteen epochs
  rows = [
    row for batch in batches for row in zip(*(batch[name] for name in ("tokens", "targets", "weights")), strict=True)
  ]
  orders = set()
  for epoch in _batched(rows, segments):
    names = ("tokens", "targets", "weights")
    found = targets([{name: row[i][None] for i, name in enumerate(names)} for row in epoch])
    assert sorted(found) == split(number)[1:].tolist()
    orders.add(tuple(found))
  assert len(orders) > min(10, math.factorial(segments) // 2)


def _batched(rows, size):
  return [rows[start : start + size] for start in range(0, len(rows), size)]


def test_the_order_is_a_function_of_the_seed():
  first = targets(train(50, 9, seed=3))
  assert first == targets(train(50, 9, seed=3)) != targets(train(50, 9, seed=4))


@pytest.mark.parametrize("carry_state", [False, True])
@pytest.mark.parametrize("parts", [2, 4])
def test_the_same_batches_on_any_number_of_processes(parts, carry_state):
  whole = train(50, 7, rows=Rows(4, 0, 1), carry_state=carry_state)
  pieces = [train(50, 7, rows=Rows(4, part, parts), carry_state=carry_state) for part in range(parts)]
  for expected, *got in zip(whole, *pieces, strict=True):
    for name in expected:
      assert np.array_equal(np.concatenate([batch[name] for batch in got]), expected[name])
  evaluated = list(EvalBatches(split(50), rows=Rows(4, 0, 1), length=4, carry_state=carry_state))
  pieces = [
    EvalBatches(split(50), rows=Rows(4, part, parts), length=4, carry_state=carry_state) for part in range(parts)
  ]
  for expected, *got in zip(evaluated, *pieces, strict=True):
    assert np.array_equal(np.concatenate([batch["targets"] for batch in got]), expected["targets"])


@pytest.mark.parametrize("carry_state", [False, True])
@pytest.mark.parametrize("number", [2, 5, 6, 13, 30])
def test_evaluation_sees_every_target_exactly_once(number, carry_state):
  batches = EvalBatches(split(number), rows=Rows(3, 0, 1), length=4, carry_state=carry_state)
  for _ in range(2):
    found = list(batches)
    assert len(found) == len(batches) == math.ceil(math.ceil((number - 1) / 4) / 3)
    assert {batch["tokens"].shape for batch in found} == {(3, 4)}
    order = targets(found)
    assert sorted(order) == split(number)[1:].tolist()
    assert carry_state or order == sorted(order)


@pytest.mark.parametrize("number", [37, 40, 50])
def test_streams_go_on_where_they_were(number):
  """Each row is the text in order; where rows begin anew, all do, and everything is seen once until then."""
  batches = train(number, 20, carry_state=True)
  starts = [step for step, batch in enumerate(batches) if batch["begins"].all()]
  assert all(batch["begins"].all() == batch["begins"].any() for batch in batches)
  length = math.ceil(math.ceil((number - 1) / 4) / 3)
  assert starts == list(range(0, 20, length))
  assert length == input_pipeline.steps_per_epoch(number, batch_size=3, length=4, carry_state=True)
  for start in starts[:-1]:
    epoch = batches[start : start + length]
    assert sorted(targets(epoch)) == split(number)[1:].tolist()
    for row in range(3):
      words = np.concatenate([batch["targets"][row][batch["weights"][row] > 0] for batch in epoch])
      assert np.array_equal(np.diff(words), np.ones(len(words) - 1))


@pytest.mark.parametrize("carry_state", [False, True])
@pytest.mark.parametrize("position", [0, 1, 5, 8])
def test_an_iterator_goes_on_from_its_state(position, carry_state):
  """Through JSON, as in a checkpoint, with batches that were read ahead and across the end of an epoch."""
  options = {"rows": Rows(3, 0, 1), "length": 4, "seed": 5, "carry_state": carry_state}
  batches = train_batches(split(60), **options)
  for _ in range(position):
    next(batches)
  state = json.loads(json.dumps(batches.get_state()))
  expected = [next(batches) for _ in range(6)]
  for read in (0, 2):  # into a new iterator, and into one that is elsewhere
    again = train_batches(split(60), **options)
    for _ in range(read):
      next(again)
    again.set_state(state)
    for batch in expected:
      got = next(again)
      assert all(np.array_equal(got[name], batch[name]) for name in batch)


def test_epochs_in_steps():
  assert input_pipeline.steps_per_epoch(103_227_021, batch_size=96, length=256) == pytest.approx(4200.3, abs=0.05)
  assert input_pipeline.steps_per_epoch(25, batch_size=3, length=4) == 2.0


def test_too_little():
  with pytest.raises(ValueError, match="expected at least two words, of which one can be predicted, got 1"):
    EvalBatches(split(1), rows=Rows(3, 0, 1), length=4)
  with pytest.raises(ValueError, match="expected at least batch_size=3 segments of 4 words to train on, got 2"):
    train(9, 1)
  with pytest.raises(ValueError, match="length: expected at least 1, got 0"):
    train(9, 1, length=0)


def test_the_shapes_of_a_batch():
  for carry_state in (False, True):
    made = input_pipeline.empty(3, 4, carry_state=carry_state)
    (batch,) = train(50, 1, carry_state=carry_state)
    assert {name: (x.shape, x.dtype) for name, x in made.items()} == {
      name: (x.shape, x.dtype) for name, x in batch.items()
    }
