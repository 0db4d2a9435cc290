"""What a task of the Long Range Arena is: its sizes, its splits, and what its raw data look like once found."""

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from mgk_jax.kernels import checks

SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True)
class Protocol:
  """Which prepared examples serve for training, validation and test, as TFDS splits, and what to know of it."""

  train: str
  valid: str
  test: str
  note: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Task:
  """The sizes of a task in the paper's setting.

  Attributes:
    name: as in the configs.
    length: the longest sequence in tokens; what is longer is cut.
    vocab_size: number of tokens, the padding 0 included.
    num_classes: number of labels.
    byte_offset: a stored byte b is token b + byte_offset: 1 where bytes are text or pixels, so that 0 is padding only.
    num_sequences: 2 for a task on pairs.
    protocols: by name; the first is that of the Long Range Arena.
  """

  name: str
  length: int
  vocab_size: int
  num_classes: int
  byte_offset: int
  num_sequences: int = 1
  protocols: Mapping[str, Protocol] = dataclasses.field(
    default_factory=lambda: {"lra": Protocol("train", "validation", "test")}
  )

  def protocol(self, name: str) -> Protocol:
    """A protocol by its name.

    Raises:
      ValueError: there is none of that name; the message lists those that there are.
    """
    checks.one_of(f"protocol of {self.name}", name, self.protocols)
    return self.protocols[name]

  @property
  def sequence_names(self) -> tuple[str, ...]:
    """The names under which an example's sequences are stored."""
    return ("tokens",) if self.num_sequences == 1 else ("tokens1", "tokens2")


Example = dict[str, Any]  # sequences of bytes under `Task.sequence_names` and "label"


@dataclasses.dataclass(frozen=True)
class RawSplit:
  """One split of raw data: how many examples it has and how to read them, each with a key of its own."""

  num_examples: int
  read: Callable[[], Iterator[tuple[str, Example]]]


@dataclasses.dataclass(frozen=True)
class RawData:
  """Raw data that were found and checked.

  Attributes:
    origin: where they come from, for the record.
    splits: by the name that they get in the prepared data.
    notes: what a user should know of them, such as examples that had to be left out.
    incomplete: what they lack of the official data; "" if nothing.
  """

  origin: str
  splits: Mapping[str, RawSplit]
  notes: Sequence[str] = ()
  incomplete: str = ""
