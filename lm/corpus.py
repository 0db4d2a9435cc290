"""A prepared corpus: arrays of numbered words that are read where they lie on the disk, and the words by frequency."""

import dataclasses
import functools
import itertools
import json
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lm import raw
from lm.datasets import SPLITS, Dataset
from lm.raw import EOS, UNKNOWN, Raw, Text
from mgk_jax.data import DataError
from mgk_jax.data.findings import Findings

FORMAT = 1  # of the files below; another number is another format
_METADATA, _VOCABULARY, _COUNTS = "metadata.json", "vocabulary", "counts.npy"
_CRC_PIECE = 1 << 24


@dataclasses.dataclass(frozen=True)
class Counted:
  """What is in raw files: how often each word comes in each split, the vocabulary, and what they lack."""

  raw: Raw
  counts: Mapping[str, Counter[bytes]]
  vocabulary: Sequence[bytes]
  incomplete: str

  def num_tokens(self, split: str) -> int:
    """Words and ends of lines, or bytes."""
    return self.counts[split].total()

  def num_unknown(self, split: str) -> int:
    """How many of them are not in the vocabulary."""
    known = set(self.vocabulary)
    return sum(number for word, number in self.counts[split].items() if word not in known)


def count(dataset: Dataset, found: Raw, *, partial: bool = False) -> Counted:
  """Reads all raw files once, and compares them with what is known of the corpus; with `partial`, counts may differ.

  Raises:
    DataError: they are empty, incomplete or wrongly encoded; the message says what was expected.
  """
  findings = Findings(dataset.name, dataset.advice(), partial=partial)
  counts = {}
  for split, text in found.texts.items():
    counts[split] = _count(dataset.unit, text, f"{dataset.name} {split}: counting")
    findings.count(
      text.name,
      expected=dataset.num_tokens[split],
      found=counts[split].total(),
      unit="words and line ends" if dataset.unit == "word" else "bytes",
    )
  words = vocabulary(counts["train"], dataset.unit)
  if counts["train"]:
    findings.count("vocabulary", expected=dataset.vocab_size, found=len(words), unit="different words")
  return Counted(found, counts, words, findings.conclude())


def _count(unit: str, text: Text, what: str) -> Counter[bytes]:
  counts = Counter[bytes]()
  if unit == "word":
    for words in raw.words(text, what):
      counts.update(words)
    return counts
  totals = np.zeros(256, np.int64)
  for piece in text.pieces(what):
    totals += np.bincount(np.frombuffer(piece, np.uint8), minlength=256)
  return Counter({bytes([value]): int(number) for value, number in enumerate(totals) if number})


def _encode(unit: str, text: Text, vocabulary: Sequence[bytes], what: str) -> Iterator[np.ndarray]:
  """A split as numbers, a piece at a time."""
  numbers = {word: number for number, word in enumerate(vocabulary)}
  if unit == "word":
    unknown = itertools.repeat(numbers[UNKNOWN])
    for words in raw.words(text, what):
      yield np.fromiter(map(numbers.get, words, unknown), "<i4", len(words))
  else:
    table = np.array([numbers[bytes([value])] for value in range(256)], "<i4")
    for piece in text.pieces(what):
      yield table[np.frombuffer(piece, np.uint8)]


def vocabulary(counts: Mapping[bytes, int], unit: str) -> list[bytes]:
  """Words by falling frequency, equally frequent ones in the order of their bytes, so that a word's number is its rank.

  `<unk>` comes last if it does not occur. Of bytes there are always all 256.
  """
  every = {bytes([value]): 0 for value in range(256 if unit == "byte" else 0)} | dict(counts)
  ranked = sorted(every, key=lambda word: (-every[word], word))
  return ranked if unit == "byte" or UNKNOWN in every else [*ranked, UNKNOWN]


def write(dataset: Dataset, counted: Counted, folder: Path) -> None:
  """Writes the prepared corpus into a folder that is there.

  Raises:
    DataError: the raw files have changed since they were counted.
    OSError: it cannot be written.
  """
  for split, text in counted.raw.texts.items():
    expected = counted.num_tokens(split)
    with (folder / f"{split}.npy").open("wb") as file:
      np.lib.format.write_array_header_1_0(file, {"descr": "<i4", "fortran_order": False, "shape": (expected,)})
      written = 0
      for ids in _encode(dataset.unit, text, counted.vocabulary, f"{dataset.name} {split}: writing"):
        file.write(ids.data)
        written += len(ids)
    if written != expected:
      raise DataError(f"{text.name}: expected {expected:,} words as before, found {written:,}: the file has changed")
  separator = b"" if dataset.unit == "byte" else b"\n"
  (folder / _VOCABULARY).write_bytes(separator.join(counted.vocabulary))
  np.save(folder / _COUNTS, np.array([counted.counts["train"][word] for word in counted.vocabulary], np.int64))
  files = sorted(path for path in folder.iterdir() if path.name != _METADATA)
  metadata = {
    "format": FORMAT,
    "dataset": dataset.name,
    "unit": dataset.unit,
    "origin": counted.raw.origin,
    "notes": list(counted.raw.notes),
    "incomplete": counted.incomplete,
    "vocab_size": len(counted.vocabulary),
    "num_tokens": {split: counted.num_tokens(split) for split in SPLITS},
    "num_unknown": {split: counted.num_unknown(split) for split in SPLITS},
    "files": {path.name: {"bytes": path.stat().st_size, "crc32": _crc(path)} for path in files},
  }
  (folder / _METADATA).write_text(json.dumps(metadata, indent=2) + "\n")


def _crc(path: Path) -> int:
  total = 0
  with path.open("rb") as file:
    while piece := file.read(_CRC_PIECE):
      total = zlib.crc32(piece, total)
  return total


class Corpus:
  """A prepared corpus.

  Attributes:
    path: of the folder.
    metadata: what is known of it: origin, notes, numbers of tokens, and a checksum of each file.

  Raises:
    DataError: it is not complete, damaged, or of another format. Arrays are checked when they are first used.
  """

  def __init__(self, path: str | Path):
    self.path = Path(path)
    try:
      self.metadata: dict[str, Any] = json.loads((self.path / _METADATA).read_text())
      version = self.metadata["format"]
      if version != FORMAT:
        raise DataError(f"{self.path}: expected prepared data of format {FORMAT}, got format {version}; {self._again}")
      for name, facts in self.metadata["files"].items():
        size = (self.path / name).stat().st_size if (self.path / name).is_file() else 0
        if size != facts["bytes"]:
          raise DataError(f"{self.path / name}: expected {facts['bytes']:,} bytes, got {size:,}; {self._again}")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
      raise DataError(f"{self.path / _METADATA}: cannot be read: {error!r}; {self._again}") from error

  @property
  def _again(self) -> str:
    name = self.path.parent.name.removeprefix("lm_")
    return f"prepare the data again: python -m lm.prepare {name} --data_dir=FOLDER_OR_ARCHIVE --overwrite"

  def __repr__(self) -> str:
    sizes = ", ".join(f"{split} {number:,}" for split, number in self.metadata["num_tokens"].items())
    return f"Corpus({self.name}: {sizes}; {self.vocab_size:,} {self.unit}s)"

  @property
  def name(self) -> str:
    """Of the corpus, as in the configs."""
    return self.metadata["dataset"]

  @property
  def unit(self) -> str:
    """What a token is: "word" or "byte"."""
    return self.metadata["unit"]

  @property
  def vocab_size(self) -> int:
    """Number of tokens that there are."""
    return self.metadata["vocab_size"]

  @property
  def notes(self) -> list[str]:
    """What a reader of results should know of the corpus; empty if there is nothing unusual."""
    lacking, unknown = self.metadata["incomplete"], self.metadata["num_unknown"]
    notes = [*self.metadata["notes"], *([f"not the official corpus: {lacking}"] if lacking else [])]
    return notes + [
      f"{number:,} words of {split} are not in the vocabulary and read as {UNKNOWN.decode()}"
      for split, number in unknown.items()
      if number
    ]

  @functools.cached_property
  def train(self) -> np.ndarray:
    """The training split: int32, on the disk."""
    return self.split("train")

  @functools.cached_property
  def valid(self) -> np.ndarray:
    """The validation split: int32, on the disk."""
    return self.split("valid")

  @functools.cached_property
  def test(self) -> np.ndarray:
    """The test split: int32, on the disk."""
    return self.split("test")

  def split(self, name: str) -> np.ndarray:
    """A split by its name, checked and mapped into memory; `train`, `valid` and `test` do it once."""
    self._check(f"{name}.npy")
    return np.load(self.path / f"{name}.npy", mmap_mode="r")

  @functools.cached_property
  def counts(self) -> np.ndarray:
    """How often each word comes in the training split: int64, falling."""
    self._check(_COUNTS)
    return np.load(self.path / _COUNTS)

  @functools.cached_property
  def words(self) -> list[bytes]:
    """The vocabulary as bytes."""
    self._check(_VOCABULARY)
    content = (self.path / _VOCABULARY).read_bytes()
    return [bytes([value]) for value in content] if self.unit == "byte" else content.split(b"\n")

  @functools.cached_property
  def vocabulary(self) -> list[str] | list[bytes]:
    """The words by falling frequency, or the bytes."""
    return self.words if self.unit == "byte" else [word.decode() for word in self.words]

  @functools.cached_property
  def _numbers(self) -> dict[bytes, int]:
    return {word: number for number, word in enumerate(self.words)}

  @property
  def eos(self) -> int | None:
    """The number of `<eos>`, the end of a line; None where tokens are bytes."""
    return self._numbers.get(EOS)

  def encode(self, text: str | bytes) -> np.ndarray:
    """Text as tokens: words that are not in the vocabulary are `<unk>`, and the end of a line is `<eos>`."""
    content = text.encode() if isinstance(text, str) else text
    if self.unit == "byte":
      words: Iterable[bytes] = (bytes([value]) for value in content)
    else:
      words = content.replace(b"\n", b" " + EOS + b" ").split()
    unknown = self._numbers.get(UNKNOWN, 0)
    return np.array([self._numbers.get(word, unknown) for word in words], np.int32)

  def decode(self, ids: Iterable[int]) -> str:
    """Tokens as text: words with spaces between them, `<eos>` as the end of a line."""
    words = [self.words[int(number)] for number in ids]
    if self.unit == "byte":
      return b"".join(words).decode(errors="replace")
    text = b" ".join(b"\n" if word == EOS else word for word in words)
    return text.replace(b" \n", b"\n").replace(b"\n ", b"\n").decode()

  def _check(self, name: str) -> None:
    expected = self.metadata["files"][name]["crc32"]
    try:
      got = _crc(self.path / name)
    except OSError as error:
      raise DataError(f"{self.path / name}: cannot be read: {error.strerror or error}; {self._again}") from error
    if got != expected:
      raise DataError(f"{self.path / name}: expected the checksum {expected}, got {got}: it is damaged; {self._again}")
