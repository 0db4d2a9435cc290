"""Batches of a task, read from its prepared data through Grain.

The order of the examples is a function of the seed and the step alone: batch n holds the same examples on any number of
processes, of which each reads only its own rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import grain
import numpy as np
from jaxtyping import Float, Int

from lra.builder import TaskBuilder
from lra.task import Task
from mgk_jax.data.rows import READING, Rows

Batch = Mapping[str, Int[np.ndarray, "B *length"] | Float[np.ndarray, "B"]]


def train_batches(
  source: Sequence[Mapping[str, Any]], task: Task, *, rows: Rows, length: int, seed: int
) -> grain.DatasetIterator:
  """An endless iterator: every example once an epoch, in an order that is new in each; its state can be saved.

  Raises:
    ValueError: fewer examples than rows in a batch.
  """
  if len(source) < rows.batch_size:
    raise ValueError(f"expected at least batch_size={rows.batch_size} training examples, got {len(source)}")
  numbers = grain.MapDataset.range(len(source)).seed(seed).shuffle().repeat()
  numbers = numbers.batch(rows.batch_size, drop_remainder=True)  # of endlessly many, so that there is none
  dataset = numbers.map(lambda chosen: collate(_read(source, chosen[rows.slice]), task, rows.local_size, length))
  return iter(dataset.to_iter_dataset(READING))


class EvalBatches:
  """Every example exactly once, in order; the last batch is filled up with rows of weight 0.

  Raises:
    ValueError: there is no example.
  """

  def __init__(self, source: Sequence[Mapping[str, Any]], task: Task, *, rows: Rows, length: int):
    if not len(source):
      raise ValueError("expected at least one example to evaluate on, got none")
    numbers = grain.MapDataset.range(len(source)).batch(rows.batch_size, drop_remainder=False)
    self._dataset = numbers.map(
      lambda chosen: collate(_read(source, chosen[rows.slice]), task, rows.local_size, length)
    )

  def __len__(self) -> int:
    return len(self._dataset)

  def __iter__(self) -> Iterator[Batch]:
    return iter(self._dataset.to_iter_dataset(READING))


def source(builder: TaskBuilder, protocol: str, split: str) -> Sequence[Mapping[str, Any]]:
  """The prepared examples of "train", "valid" or "test" under a protocol of the task."""
  return builder.as_data_source(split=getattr(builder.task.protocol(protocol), split))


def collate(examples: Sequence[Mapping[str, Any]], task: Task, size: int, length: int) -> Batch:
  """Examples as arrays of `size` rows, cut or padded on the right with 0 to `length` tokens.

  Returns:
    For each sequence of the task `tokens` [size, length] and `lengths` [size] (with 1 and 2 behind the name, if there
    are two), `labels` [size] and `weights` [size], which are 0 in rows without an example.
  """
  batch: dict[str, np.ndarray] = {}
  for name in task.sequence_names:
    tokens, lengths = np.zeros((size, length), np.int32), np.zeros(size, np.int32)
    for row, example in enumerate(examples):
      sequence = example[name][:length]
      lengths[row] = len(sequence)
      tokens[row, : len(sequence)] = sequence
      tokens[row, : len(sequence)] += task.byte_offset
    batch |= {name: tokens, name.replace("tokens", "lengths"): lengths}
  batch["labels"] = np.zeros(size, np.int32)
  batch["labels"][: len(examples)] = [example["label"] for example in examples]
  batch["weights"] = (np.arange(size) < len(examples)).astype(np.float32)
  return batch


def _read(source: Sequence[Mapping[str, Any]], numbers: np.ndarray) -> Sequence[Mapping[str, Any]]:
  many: Callable[[list[int]], Sequence[Mapping[str, Any]]] | None = getattr(source, "__getitems__", None)
  return many(numbers.tolist()) if many and len(numbers) else [source[int(number)] for number in numbers]
