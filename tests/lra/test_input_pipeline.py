"""Batches: every example once, in an order that is a function of the seed, on any number of processes."""

import itertools
import json

import numpy as np
import pytest

from lra import input_pipeline, listops, prepare
from lra.input_pipeline import EvalBatches, collate, train_batches
from lra.task import Task
from mgk_jax.data.rows import Rows

BYTES = Task(name="bytes", length=9, vocab_size=257, num_classes=3, byte_offset=1)
TOKENS = Task(name="tokens", length=9, vocab_size=20, num_classes=3, byte_offset=0)
PAIRS = Task(name="pairs", length=9, vocab_size=257, num_classes=2, byte_offset=1, num_sequences=2)

NAMES = ("tokens", "lengths", "labels", "weights")


def example(*tokens, label=0):
  return {"tokens": np.array(tokens, np.uint8), "label": label}


def numbered(count):
  """Examples that tell by their one token and by their label which they are."""
  return [example(number, label=number) for number in range(count)]


def rows(size=4, part=0, parts=1):
  return Rows(size, part, parts)


def train(source, count, seed=0, of=None):
  """The labels of the first batches."""
  batches = train_batches(source, BYTES, rows=of or rows(), length=3, seed=seed)
  return [next(batches)["labels"].tolist() for _ in range(count)]


def test_every_example_once_an_epoch():
  """Batches go across the ends of epochs: ten examples in batches of four are two epochs of five batches."""
  labels = np.concatenate(train(numbered(10), 15)).reshape(6, 10)
  assert all(sorted(epoch) == list(range(10)) for epoch in labels.tolist())
  orders = {tuple(epoch) for epoch in labels.tolist()} | {tuple(range(10))}
  assert len(orders) == 7  # each epoch in an order of its own, and none in the given one


def test_batches_of_one():
  assert sorted(itertools.chain(*train(numbered(5), 5, of=rows(1)))) == list(range(5))


def test_the_order_is_a_function_of_the_seed():
  first = train(numbered(10), 5, seed=3)
  assert first == train(numbered(10), 5, seed=3)
  assert first != train(numbered(10), 5, seed=4)


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_the_same_batches_on_any_number_of_processes(parts):
  whole = train(numbered(10), 6)
  by_process = [train(numbered(10), 6, of=rows(4, part, parts)) for part in range(parts)]
  assert [list(itertools.chain(*pieces)) for pieces in zip(*by_process, strict=True)] == whole


@pytest.mark.parametrize("parts", [1, 2, 4])
@pytest.mark.parametrize("count", [1, 8, 9, 11])
def test_evaluation_sees_every_example_exactly_once_in_order(count, parts):
  whole = [EvalBatches(numbered(count), BYTES, rows=rows(4, part, parts), length=3) for part in range(parts)]
  assert {len(batches) for batches in whole} == {-(-count // 4)}
  for _ in range(2):  # as often as it is evaluated
    labels, weights = [], []
    for pieces in zip(*whole, strict=True):
      assert {len(piece["labels"]) for piece in pieces} == {4 // parts}
      labels += np.concatenate([piece["labels"] for piece in pieces]).tolist()
      weights += np.concatenate([piece["weights"] for piece in pieces]).tolist()
    assert [label for label, weight in zip(labels, weights, strict=True) if weight] == list(range(count))
    assert weights == [1.0] * count + [0.0] * (-count % 4)


def test_the_rows_of_a_process_must_be_equal_parts():
  with pytest.raises(ValueError, match=r"batch_size: expected a multiple of the 3 .*, got 4"):
    rows(4, 0, 3)
  alone = Rows(4)
  assert (alone.batch_size, alone.local_size, alone.slice) == (4, 4, slice(0, 4))
  last = rows(12, 2, 3)
  assert (last.batch_size, last.local_size, last.slice) == (12, 4, slice(8, 12))


def test_too_few_examples():
  with pytest.raises(ValueError, match=r"expected at least batch_size=4 training examples, got 3"):
    train(numbered(3), 1)
  with pytest.raises(ValueError, match=r"expected at least one example to evaluate on, got none"):
    EvalBatches([], BYTES, rows=rows(), length=3)


@pytest.mark.parametrize("position", [0, 1, 3, 7])
def test_an_iterator_goes_on_from_its_state(position):
  """Through JSON, as in a checkpoint, with batches that were read ahead and across the end of an epoch."""
  arguments = {"rows": rows(), "length": 3, "seed": 5}
  batches = train_batches(numbered(10), BYTES, **arguments)
  for _ in range(position):
    next(batches)
  state = json.loads(json.dumps(batches.get_state()))
  expected = [next(batches)["labels"].tolist() for _ in range(6)]
  for read in (0, 2):  # into a new iterator, and into one that is elsewhere
    again = train_batches(numbered(10), BYTES, **arguments)
    for _ in range(read):
      next(again)
    again.set_state(state)
    assert [next(again)["labels"].tolist() for _ in range(6)] == expected


def test_padding_and_cutting():
  """Whole arrays: bytes are shifted by one so that 0 is padding only; what is longer is cut; rows may be missing."""
  examples = [example(0, 255, 7, label=2), example(1, 2, 3, 4, 5, 6, label=1), example(label=0)]
  batch = collate(examples, BYTES, size=5, length=4)
  expected = {
    "tokens": [[1, 256, 8, 0], [2, 3, 4, 5], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
    "lengths": [3, 4, 0, 0, 0],
    "labels": [2, 1, 0, 0, 0],
    "weights": [1, 1, 1, 0, 0],
  }
  assert {name: value.tolist() for name, value in batch.items()} == expected
  assert {name: value.dtype.name for name, value in batch.items()} == {
    "tokens": "int32", "lengths": "int32", "labels": "int32", "weights": "float32",
  }  # fmt: skip
  assert examples[0]["tokens"].tolist() == [0, 255, 7]


def test_tokens_that_are_stored_as_they_are():
  batch = collate([example(15, 3, label=1)], TOKENS, size=1, length=3)
  assert (batch["tokens"].tolist(), batch["lengths"].tolist()) == ([[15, 3, 0]], [2])


def test_pairs():
  pair = {"tokens1": np.array([9, 8], np.uint8), "tokens2": np.array([1, 2, 3, 4], np.uint8), "label": 1}
  batch = collate([pair], PAIRS, size=2, length=3)
  assert {name: value.tolist() for name, value in batch.items()} == {
    "tokens1": [[10, 9, 0], [0, 0, 0]],
    "lengths1": [2, 0],
    "tokens2": [[2, 3, 4], [0, 0, 0]],
    "lengths2": [3, 0],
    "labels": [1, 0],
    "weights": [1, 0],
  }
  assert next(train_batches([pair], PAIRS, rows=rows(1), length=3, seed=0))["tokens2"].tolist() == [[2, 3, 4]]


def test_prepared_data(tmp_path):
  """From array_record files: the splits of a protocol, every example once, with its own label."""
  sizes = {
    "num_train": 20,
    "num_valid": 6,
    "num_test": 5,
    "min_length": 5,
    "max_length": 30,
    "max_depth": 3,
    "max_args": 4,
  }
  builder = prepare.prepare(listops.LraListops(data_dir=tmp_path, config=listops.ListopsConfig(**sizes)))
  seen = {}
  for split, stored in (("train", "train"), ("valid", "validation"), ("test", "test")):
    source = input_pipeline.source(builder, "lra", split)
    batches = list(EvalBatches(source, listops.TASK, rows=rows(), length=30))
    examples = [row for batch in batches for row in zip(*(batch[name] for name in NAMES), strict=True) if row[-1]]
    seen[split] = [(tokens[:length].tolist(), int(label)) for tokens, length, label, _ in examples]
    expected = [(example["tokens"].tolist(), int(example["label"])) for example in builder.as_data_source(split=stored)]
    assert seen[split] == expected
  batches = train_batches(input_pipeline.source(builder, "lra", "train"), listops.TASK, rows=rows(), length=30, seed=0)
  first_epoch = itertools.islice(batches, 5)
  epoch = [row for batch in first_epoch for row in zip(*(batch[name] for name in NAMES), strict=True)]
  assert sorted((tokens[:length].tolist(), int(label)) for tokens, length, label, _ in epoch) == sorted(seen["train"])
  with pytest.raises(ValueError, match=r"protocol of listops: expected one of .*lra.*, got 'holdout'"):
    input_pipeline.source(builder, "holdout", "valid")
