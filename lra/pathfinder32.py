"""The task `pathfinder32`: whether a dashed line joins two dots, from the grey values of 32×32 pixels.

These are the images with the long distractors, `curv_contour_length_14`, which the Long Range Arena calls hard.
"""

import functools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import PIL.Image

from lra import release, sources
from lra.builder import TaskBuilder
from lra.task import Example, Protocol, RawData, RawSplit, Task
from mgk_jax.data import DataError
from mgk_jax.data.findings import Findings

SPLIT = "images"  # the files know no splits, and TFDS keeps the name "all" to itself
TASK = Task(
  name="pathfinder32",
  length=32 * 32,
  vocab_size=257,
  num_classes=2,
  byte_offset=1,
  protocols={"lra": Protocol(f"{SPLIT}[:80%]", f"{SPLIT}[80%:90%]", f"{SPLIT}[90%:]")},
)
FOLDER = "curv_contour_length_14"
EASIER = ("curv_baseline", "curv_contour_length_9")  # the other folders of the archive, of the same structure
IMAGES = 200_000
LABELS = {"0": 0, "1": 1}
_FEW = 10  # so many images may be empty files, which the Long Range Arena passes over too
_GREY = ("1", "L", "LA", "P", "RGB", "RGBA")  # modes of 8-bit images, in which PIL finds grey values


class Image(NamedTuple):
  """A line of the metadata."""

  key: str
  label: int
  path: Path


class LraPathfinder32(TaskBuilder):
  """Images as their grey values, row by row."""

  task = TASK

  def find(self, data_dir: Path | None) -> RawData:
    """The images that `curv_contour_length_14/metadata/*.npy` list, in a directory or in the official archive."""
    folder = release.locate(
      data_dir,
      TASK.name,
      folders=(".", FOLDER, f"pathfinder32/{FOLDER}", f"pathfinder/pathfinder32/{FOLDER}"),
      holds=lambda path: (path / "metadata").is_dir() and path.resolve().name not in EASIER,
      wanted=lambda path: f"pathfinder32/{FOLDER}/" in str(path),
      looking_for=f"pathfinder32/{FOLDER}/metadata and …/imgs",
    )
    findings = Findings(TASK.name, sources.advice(TASK.name), partial=self.partial)
    images = _listed(folder, findings)
    findings.count(f"{folder}/metadata", expected=IMAGES, found=len(images), unit="images listed")
    sizes = _sizes(folder)
    missing = [image.key for image in images if image.key not in sizes]
    if missing:
      findings.fault(
        f"{folder}: {len(missing):,} of the images listed in metadata are missing, the first is {missing[0]}"
      )
    empty = [image.key for image in images if sizes.get(image.key) == 0]
    if len(empty) > _FEW:
      findings.fault(
        f"{folder}: {len(empty):,} images are empty files, the first is {empty[0]}; expected at most {_FEW}"
      )
    incomplete = findings.conclude()
    full = [image for image in images if sizes[image.key]]
    notes = [f"{len(empty)} images are empty files and left out: {', '.join(empty)}"] if empty else []
    splits = {SPLIT: RawSplit(len(full), functools.partial(_read, full))}
    return RawData(f"Pathfinder images in {folder}", splits, notes, incomplete)


def _listed(folder: Path, findings: Findings) -> list[Image]:
  """The lines of the metadata: `imgs/<n> sample_<k>.png <id> <label> …`, texts in spite of their names."""
  images: dict[str, Image] = {}
  for path in sorted((folder / "metadata").glob("*.npy"), key=lambda path: (len(path.name), path.name)):
    lines = path.read_bytes().splitlines()
    if not lines:
      findings.fault(f"{path}: the file is empty")
    for number, line in enumerate(lines, 1):
      fields = line.decode("utf-8", "replace").split()
      if len(fields) < 4 or fields[3] not in LABELS or Path(fields[0]).parts[:1] != ("imgs",) or ".." in fields[0]:
        findings.fault(
          f"{path}, line {number}: expected 'imgs/<n> <name>.png <id> <label 0 or 1> …', got {line[:60]!r}"
        )
        break  # one message a file is enough
      key = f"{fields[0]}/{fields[1]}"
      if key in images:
        findings.fault(f"{path}, line {number}: {key} is listed a second time")
      images[key] = Image(key, LABELS[fields[3]], folder / fields[0] / fields[1])
  return list(images.values())


def _sizes(folder: Path) -> dict[str, int]:
  """The sizes of the files under `imgs`, by the names that the metadata have for them."""
  sizes: dict[str, int] = {}
  for place in sorted((folder / "imgs").glob("*/")):
    with os.scandir(place) as entries:
      sizes |= {f"imgs/{place.name}/{entry.name}": entry.stat().st_size for entry in entries}
  return sizes


def _read(images: list[Image]) -> Iterator[tuple[str, Example]]:
  for image in images:
    yield image.key, {"tokens": _pixels(image.path), "label": image.label}


def _pixels(path: Path) -> np.ndarray:
  try:
    with PIL.Image.open(path, formats=("PNG",)) as image:
      if image.size != (32, 32) or image.mode not in _GREY:
        raise DataError(f"{path}: expected 32×32 grey pixels, got {image.size} of mode {image.mode}")
      return np.asarray(image.convert("L")).reshape(-1)
  except (OSError, SyntaxError, ValueError) as error:  # what Pillow raises for damaged files
    raise DataError(f"{path}: cannot be read as a PNG image: {error}") from error
