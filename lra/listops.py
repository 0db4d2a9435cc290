"""The task `listops`: the value of an expression such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, which is 9.

Its data are generated, with the distribution of the Long Range Arena and the same for a seed on every machine; or they
are read from the Long Range Arena's own files, `basic_{train,val,test}.tsv`.
"""

import dataclasses
import functools
import itertools
from collections.abc import Iterator
from pathlib import Path

import tensorflow_datasets as tfds

from lra import expressions, release, sources
from lra.builder import TaskBuilder
from lra.expressions import (
  VOCABULARY as VOCABULARY,
  decode as decode,
  encode as encode,
  evaluate as evaluate,
  generate as generate,
)
from lra.task import Example, RawData, RawSplit, Task
from mgk_jax.data import DataError
from mgk_jax.data.findings import Findings

TASK = Task(name="listops", length=2000, vocab_size=len(VOCABULARY), num_classes=10, byte_offset=0)
FILES = {"train": "basic_train.tsv", "validation": "basic_val.tsv", "test": "basic_test.tsv"}
ROWS = {"train": 96_000, "validation": 2_000, "test": 2_000}
SOURCES = ("generated", "files")


@dataclasses.dataclass(kw_only=True)
class ListopsConfig(tfds.core.BuilderConfig):
  """Which ListOps data: read from files, or generated, and then how many of them with what limits (see `generate`)."""

  name: str = ""  # follows from the rest
  source: str = "generated"
  seed: int = 0
  num_train: int = ROWS["train"]
  num_valid: int = ROWS["validation"]
  num_test: int = ROWS["test"]
  min_length: int = 500
  max_length: int = 2000
  max_depth: int = 10
  max_args: int = 10

  def __post_init__(self) -> None:
    """Names the data by all that decides them."""
    if self.source not in SOURCES:
      raise ValueError(f"source: expected one of {SOURCES}, got {self.source!r}")
    for name in ("num_train", "num_valid", "num_test"):
      if getattr(self, name) < 1:
        raise ValueError(f"{name}: expected at least 1, got {getattr(self, name)}")
    if self.seed < 0:
      raise ValueError(f"seed: expected 0 or more, got {self.seed}")
    sizes = f"{self.num_train}_{self.num_valid}_{self.num_test}"
    limits = f"{self.min_length}_{self.max_length}_{self.max_depth}_{self.max_args}"
    self.name = "files" if self.source == "files" else f"seed{self.seed}-{sizes}-{limits}"


class LraListops(TaskBuilder):
  """Expressions as numbers of tokens in `VOCABULARY`."""

  task = TASK

  def _create_builder_config(self, config: ListopsConfig | None, **_: object) -> ListopsConfig:
    return config or ListopsConfig()  # TFDS would look for it in a fixed list of configs, and warn

  @property
  def needs_raw_data(self) -> bool:
    """Only where they are not generated."""
    return bool(self.builder_config.source == "files")

  def find(self, data_dir: Path | None) -> RawData:
    """The generated expressions, or those of the Long Range Arena's files in `data_dir`."""
    if self.needs_raw_data:
      return from_files(data_dir, partial=self.partial)
    return generated(self.builder_config)


def generated(config: ListopsConfig) -> RawData:
  """One stream of different expressions, cut into test, validation and training set in this order.

  The sets thus share no expression, and those to be tested on stay the same whatever the number to train on.
  """
  _stream(config)  # limits that no expression meets are an error now
  start, splits = 0, {}
  for name, size in (("test", config.num_test), ("validation", config.num_valid), ("train", config.num_train)):
    splits[name] = RawSplit(size, functools.partial(_numbered, config, start, size))
    start += size
  return RawData(f"generated, {config.name}", {name: splits[name] for name in FILES})


def _stream(config: ListopsConfig) -> Iterator[expressions.Example]:
  limits = {name: getattr(config, name) for name in ("min_length", "max_length", "max_depth", "max_args")}
  try:
    return expressions.generate(config.seed, **limits)
  except ValueError as error:
    raise DataError(f"listops: {error}") from error


def _numbered(config: ListopsConfig, start: int, size: int) -> Iterator[tuple[str, Example]]:
  """A part of the stream; the examples are numbered from 0 in each."""
  try:
    for number, example in enumerate(itertools.islice(_stream(config), start, start + size)):
      yield str(number), {"tokens": example.tokens, "label": example.label}
  except ValueError as error:
    raise DataError(f"listops: {error}") from error


def from_files(data_dir: Path | None, *, partial: bool) -> RawData:
  """The files `basic_*.tsv` in `data_dir` or in its folder `listops-1000`, a header and then Source<TAB>Target.

  Raises:
    DataError: a file is missing, is not such a file, or has other than the expected number of rows.
  """
  folder = release.locate(
    data_dir,
    TASK.name,
    folders=(".", "listops-1000", "listops"),
    holds=lambda path: any((path / file).is_file() for file in FILES.values()),
    wanted=lambda path: path.name in FILES.values(),
    looking_for=", ".join(FILES.values()),
  )
  findings = Findings(TASK.name, sources.advice(TASK.name), partial=partial)
  splits = {}
  for name, file in FILES.items():
    path = folder / file
    if not path.is_file():
      findings.fault(f"{path}: there is no such file")
      continue
    with path.open("rb") as lines:
      header = lines.readline().rstrip(b"\r\n")
      number = sum(1 for line in lines if line.strip())
    if header != b"Source\tTarget":
      findings.fault(f"{path}: expected the header 'Source<TAB>Target', got {header[:60]!r}")
    findings.count(str(path), expected=ROWS[name], found=number, unit="rows")
    splits[name] = RawSplit(number, functools.partial(_parsed, path))
  incomplete = findings.conclude()
  return RawData(f"files in {folder}", splits, incomplete=incomplete)


def _parsed(path: Path) -> Iterator[tuple[str, Example]]:
  with path.open("rb") as file:
    file.readline()
    for number, line in enumerate(file, 2):
      if line.strip():
        yield str(number), _parse(f"{path}, line {number}", line)


def _parse(where: str, line: bytes) -> Example:
  source, _, target = line.decode("utf-8", "replace").rstrip("\r\n").partition("\t")
  if len(target) != 1 or target not in "0123456789":
    raise DataError(f"{where}: expected an expression, a tab and a digit, got a row ending {line[-20:]!r}")
  try:
    tokens, value = expressions.encode(source), expressions.evaluate(source)
  except ValueError as error:
    raise DataError(f"{where}: {_shortened(str(error))}") from error
  if value != int(target):
    raise DataError(f"{where}: the expression's value is {value}, but the file says {target}")
  return {"tokens": tokens, "label": value}


def _shortened(message: str) -> str:
  """Messages on expressions quote them, and these are thousands of characters long."""
  return message if len(message) < 300 else f"{message[:200]} … {message[-60:]}"
