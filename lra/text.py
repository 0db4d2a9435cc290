"""The task `text`: whether a review of a film is positive, from its bytes (IMDb, Maas et al. 2011)."""

import functools
import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np

from lra import sources
from lra.builder import TaskBuilder
from lra.task import Example, Protocol, RawData, RawSplit, Task
from mgk_jax.data import DataError, archives, places
from mgk_jax.data.findings import Findings

TASK = Task(
  name="text",
  length=4000,
  vocab_size=257,
  num_classes=2,
  byte_offset=1,
  protocols={
    "lra": Protocol(
      "train",
      "test",
      "test",
      note="Validated on the test set, as the Long Range Arena does: IMDb has no validation split. The best checkpoint "
      "is thus chosen on the test set; protocol=holdout keeps 10% of the training set for validation instead.",
    ),
    "holdout": Protocol(
      "train[:90%]",
      "train[90%:]",
      "test",
      note="Validated on 10% of the training set, which the Long Range Arena trains on.",
    ),
  },
)
SPLITS = ("train", "test")
LABELS = {"neg": 0, "pos": 1}
REVIEWS = 12_500  # in each folder

Review = tuple[str, Path | bytes]  # its key, and the file or what is in it


class LraText(TaskBuilder):
  """Reviews as the bytes of their files, whole and unchanged."""

  task = TASK

  def find(self, data_dir: Path | None) -> RawData:
    """The reviews in `aclImdb/{train,test}/{neg,pos}/*.txt`, in a directory or in the official archive."""
    place = _locate(data_dir)
    reviews = _in_archive(place) if place.is_file() else _in_folder(place)
    findings = Findings(TASK.name, sources.advice(TASK.name), partial=self.partial)
    for folder, found in reviews.items():
      findings.count(folder, expected=REVIEWS, found=len(found), unit="files")
      for key, content in found:
        if not (content if isinstance(content, bytes) else content.stat().st_size):
          findings.fault(f"{key}: the file is empty")
    incomplete = findings.conclude()
    splits = {}
    for split in SPLITS:
      parts = {label: reviews[f"{split}/{name}"] for name, label in LABELS.items()}
      splits[split] = RawSplit(sum(map(len, parts.values())), functools.partial(_read, parts))
    return RawData(f"IMDb in {place}", splits, incomplete=incomplete)


def _locate(data_dir: Path | None) -> Path:
  """The folder `aclImdb` or the archive."""
  expected = "aclImdb/{train,test}/{neg,pos}/*.txt"
  if data_dir is None:
    raise DataError(f"text: expected --data_dir with {expected}, got none\n{sources.advice(TASK.name)}")
  if data_dir.is_file():
    return data_dir
  if not data_dir.exists():
    raise DataError(f"text: {data_dir} does not exist\n{sources.advice(TASK.name)}")
  for place in (data_dir, data_dir / "aclImdb"):
    if any((place / split).is_dir() for split in SPLITS):
      return place
  archive = data_dir / sources.ARCHIVES[TASK.name].name
  if archive.is_file():
    return archive
  raise DataError(
    f"text: expected {expected} in {data_dir}, found {places.contents(data_dir)}\n{sources.advice(TASK.name)}"
  )


def _in_folder(folder: Path) -> dict[str, list[Review]]:
  reviews: dict[str, list[Review]] = {}
  for part in (f"{split}/{label}" for split in SPLITS for label in LABELS):
    names = sorted(os.listdir(folder / part)) if (folder / part).is_dir() else []
    reviews[part] = [(f"{part}/{name}", folder / part / name) for name in names if _is_review(name)]
  return reviews


def _in_archive(archive: Path) -> dict[str, list[Review]]:
  """The reviews of an archive, in memory: 65 MB."""
  reviews: dict[str, list[Review]] = {f"{split}/{label}": [] for split in SPLITS for label in LABELS}

  def wanted(path: PurePosixPath) -> bool:
    return "/".join(path.parts[-3:-1]) in reviews and _is_review(path.name)

  for path, file in archives.members(archive, wanted):
    part = "/".join(path.parts[-3:-1])
    reviews[part].append((f"{part}/{path.name}", file.read()))
  return reviews


def _is_review(name: str) -> bool:
  return name.endswith(".txt") and not name.startswith(".")


def _read(parts: dict[int, list[Review]]) -> Iterator[tuple[str, Example]]:
  for label, reviews in parts.items():
    for key, content in reviews:
      try:
        text = content if isinstance(content, bytes) else content.read_bytes()
      except OSError as error:
        raise DataError(f"{content!s}: cannot be read: {error.strerror or error}") from error
      yield key, {"tokens": np.frombuffer(text, np.uint8), "label": label}
