"""Batches of segments of a corpus, read where it lies on the disk.

A segment is `length` words and, as targets, the words after each: of N words all but the first are predicted, each once
in an epoch. Segments are independent of each other and come in an order that is new in each epoch, a function of the
seed and the step alone: batch n is the same on any number of processes, of which each reads only its own rows.

With streams instead, row r of a batch goes on where row r of the batch before ended, for models that carry a state
along; `begins` says where it starts anew.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import grain
import numpy as np
from jaxtyping import Bool, Float, Int

from mgk_jax.data.rows import READING, Rows

Batch = Mapping[str, Int[np.ndarray, "B T"] | Float[np.ndarray, "B T"] | Bool[np.ndarray, "B"]]


class Segments:
  """A split, cut into segments; the last one may be short, and what is past its end has weight 0.

  Args:
    tokens: of the split.
    length: of a segment.

  Raises:
    ValueError: there is nothing to predict.
  """

  def __init__(self, tokens: np.ndarray, length: int):
    if length < 1:
      raise ValueError(f"length: expected at least 1, got {length}")
    if len(tokens) < 2:
      raise ValueError(f"expected at least two words, of which one can be predicted, got {len(tokens)}")
    self.tokens, self.length = tokens, length
    self.num_targets = len(tokens) - 1

  def __len__(self) -> int:
    return -(-self.num_targets // self.length)

  def batch(self, numbers: Int[np.ndarray, "n"], size: int) -> dict[str, np.ndarray]:
    """The segments of these numbers; rows without one, or with a number past the last, have weight 0 throughout."""
    shape = (size, self.length)
    batch = {name: np.zeros(shape, np.int32) for name in ("tokens", "targets")} | {
      "weights": np.zeros(shape, np.float32)
    }
    for row, number in enumerate(numbers):
      start = int(number) * self.length
      found = np.asarray(self.tokens[start : start + self.length + 1])
      if (count := len(found) - 1) > 0:
        batch["tokens"][row, :count], batch["targets"][row, :count] = found[:-1], found[1:]
        batch["weights"][row, :count] = 1
    return batch


class Streams:
  """A split, cut into as many contiguous streams as a batch has rows; each goes through its segments in order.

  A batch has besides `begins` [B], True in the first batch of an epoch. Streams that are shorter than the others have
  weight 0 where they have ended.
  """

  def __init__(self, segments: Segments, rows: Rows):
    self.segments, self.rows = segments, rows
    self.num_batches = -(-len(segments) // rows.batch_size)  # of an epoch

  def batch(self, number: int) -> dict[str, np.ndarray]:
    """Batch `number`, counted through all epochs."""
    place = number % self.num_batches
    streams = np.arange(self.rows.batch_size)[self.rows.slice]
    batch = self.segments.batch(streams * self.num_batches + place, self.rows.local_size)
    return batch | {"begins": np.full(self.rows.local_size, place == 0)}


class _Endless:
  """Batches by number, from a position that can be saved."""

  def __init__(self, streams: Streams):
    self.streams, self.position = streams, 0

  def __iter__(self) -> "_Endless":
    return self

  def __next__(self) -> Batch:
    self.position += 1
    return self.streams.batch(self.position - 1)

  def get_state(self) -> dict[str, int]:
    return {"next_index": self.position}

  def set_state(self, state: Mapping[str, int]) -> None:
    self.position = state["next_index"]


def train_batches(tokens: np.ndarray, *, rows: Rows, length: int, seed: int, carry_state: bool = False) -> Any:
  """An endless iterator: every target once an epoch; its state can be saved.

  Args:
    tokens: of the training split.
    rows: of a batch, that this process reads.
    length: of a segment.
    seed: of the order of segments; streams have none.
    carry_state: streams instead of independent segments.

  Returns:
    An iterator of batches with `tokens`, `targets` int32 and `weights` float32, [B, length] each.

  Raises:
    ValueError: fewer segments than rows in a batch.
  """
  segments = Segments(tokens, length)
  if len(segments) < rows.batch_size:
    raise ValueError(
      f"expected at least batch_size={rows.batch_size} segments of {length} words to train on, got {len(segments)}"
    )
  if carry_state:
    return _Endless(Streams(segments, rows))
  numbers = grain.MapDataset.range(len(segments)).seed(seed).shuffle().repeat()
  numbers = numbers.batch(rows.batch_size, drop_remainder=True)  # of endlessly many, so that there is none
  dataset = numbers.map(lambda chosen: segments.batch(chosen[rows.slice], rows.local_size))
  return iter(dataset.to_iter_dataset(READING))


def steps_per_epoch(num_tokens: int, *, batch_size: int, length: int, carry_state: bool = False) -> float:
  """Batches that hold every target once; with streams a whole number, as an epoch then ends with a batch."""
  segments = -(-(num_tokens - 1) // length)
  return float(-(-segments // batch_size)) if carry_state else segments / batch_size


class EvalBatches:
  """Every target exactly once, in order; the last batch is filled up with rows of weight 0.

  With `carry_state`, streams: as many as a batch has rows, so that the first words of each have nothing before them.
  """

  def __init__(self, tokens: np.ndarray, *, rows: Rows, length: int, carry_state: bool = False):
    segments = Segments(tokens, length)
    if carry_state:
      streams = Streams(segments, rows)
      self._dataset = grain.MapDataset.range(streams.num_batches).map(streams.batch)
    else:
      numbers = grain.MapDataset.range(len(segments)).batch(rows.batch_size, drop_remainder=False)
      self._dataset = numbers.map(lambda chosen: segments.batch(chosen[rows.slice], rows.local_size))

  def __len__(self) -> int:
    return len(self._dataset)

  def __iter__(self) -> Iterator[Batch]:
    return iter(self._dataset.to_iter_dataset(READING))


def empty(batch_size: int, length: int, *, carry_state: bool = False) -> Batch:
  """A batch's shapes and dtypes."""
  batch = Segments(np.zeros(2, np.int32), length).batch(np.zeros(0, np.int32), batch_size)
  return batch | ({"begins": np.zeros(batch_size, bool)} if carry_state else {})
