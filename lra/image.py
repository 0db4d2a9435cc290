"""The task `image`: which of ten things a picture shows, from the grey values of its 32×32 pixels (CIFAR-10)."""

import functools
import io
import pickle
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
from jaxtyping import UInt8

from lra import sources
from lra.builder import TaskBuilder
from lra.task import Example, Protocol, RawData, RawSplit, Task
from mgk_jax.data import DataError, archives, places
from mgk_jax.data.findings import Findings

TASK = Task(
  name="image",
  length=32 * 32,
  vocab_size=257,
  num_classes=10,
  byte_offset=1,
  protocols={"lra": Protocol("train[:90%]", "train[90%:]", "test")},
)
FILES = {"train": tuple(f"data_batch_{number}" for number in range(1, 6)), "test": ("test_batch",)}
PICTURES = 10_000  # in each file
RECORD = 1 + 3 * 1024  # the label and the planes red, green and blue

Pictures = UInt8[np.ndarray, "pictures 3073"]  # records of the binary version


class LraImage(TaskBuilder):
  """Pictures as their grey values, row by row."""

  task = TASK

  def find(self, data_dir: Path | None) -> RawData:
    """The pictures of CIFAR-10, binary or Python version, in a directory or in the official archive."""
    place, contents = _locate(data_dir)
    findings = Findings(TASK.name, sources.advice(TASK.name), partial=self.partial)
    splits = {}
    for split, files in FILES.items():
      numbers = {file: _check(place, file, contents, findings) for file in files}
      splits[split] = RawSplit(sum(numbers.values()), functools.partial(_read, place, files, contents))
    return RawData(f"CIFAR-10 in {place}", splits, incomplete=findings.conclude())


Contents = dict[str, Callable[[], bytes]]  # what the files hold, by their names


def _locate(data_dir: Path | None) -> tuple[Path, Contents]:
  """The folder or archive with the files, and how to read those of them that there are."""
  folders = ("cifar-10-batches-bin", "cifar-10-batches-py")
  expected = "cifar-10-batches-bin/{data_batch_1…5,test_batch}.bin or cifar-10-batches-py/{data_batch_1…5,test_batch}"
  if data_dir is None:
    raise DataError(f"image: expected --data_dir with {expected}, got none\n{sources.advice(TASK.name)}")
  if data_dir.is_file():
    return data_dir, _in_archive(data_dir)
  if not data_dir.exists():
    raise DataError(f"image: {data_dir} does not exist\n{sources.advice(TASK.name)}")
  for place in (data_dir, *(data_dir / folder for folder in folders)):
    names = [path.name for path in place.iterdir() if _is_wanted(path)] if place.is_dir() else []
    if names:
      return place, {name: (place / name).read_bytes for name in names}
  for name in (sources.ARCHIVES[TASK.name].name, "cifar-10-python.tar.gz"):
    if (data_dir / name).is_file():
      return _locate(data_dir / name)
  raise DataError(
    f"image: expected {expected} in {data_dir}, found {places.contents(data_dir)}\n{sources.advice(TASK.name)}"
  )


def _is_wanted(path: Path | PurePosixPath) -> bool:
  return path.name.removesuffix(".bin") in (*FILES["train"], *FILES["test"])


def _in_archive(archive: Path) -> Contents:
  """The files of an archive, in memory: 184 MB."""

  def constant(content: bytes) -> Callable[[], bytes]:
    return lambda: content

  return {path.name: constant(file.read()) for path, file in archives.members(archive, _is_wanted)}


def _check(place: Path, file: str, contents: Contents, findings: Findings) -> int:
  """The number of pictures in a file."""
  try:
    number = len(_records(place, file, contents))
  except DataError as error:
    findings.fault(str(error))
    return 0
  findings.count(f"{place}: {file}", expected=PICTURES, found=number, unit="pictures")
  return number


def _read(place: Path, files: tuple[str, ...], contents: Contents) -> Iterator[tuple[str, Example]]:
  number = 0
  for file in files:
    records = _records(place, file, contents)
    for label, pixels in zip(records[:, 0], grey(records[:, 1:]), strict=True):
      yield str(number), {"tokens": pixels, "label": int(label)}
      number += 1


def pictures(data_dir: Path, split: str) -> tuple[UInt8[np.ndarray, "pictures 32 32 3"], UInt8[np.ndarray, "pictures"]]:
  """The pictures of "train" or "test" in colour, with their labels, for other models than those of this task.

  Raises:
    DataError: they are missing or unreadable.
  """
  place, contents = _locate(data_dir)
  records = np.concatenate([_records(place, file, contents) for file in FILES[split]])
  return np.moveaxis(records[:, 1:].reshape(-1, 3, 32, 32), 1, -1), records[:, 0]


def grey(pixels: UInt8[np.ndarray, "pictures 3072"]) -> UInt8[np.ndarray, "pictures 1024"]:
  """The grey values that the Long Range Arena has: those of TensorFlow's `rgb_to_grayscale` on uint8.

  ⌊(0.2989 R + 0.5870 G + 0.1140 B) / 255 · 255.5⌋, in float32 with the operations in TensorFlow's order.
  """
  red, green, blue = np.moveaxis(pixels.reshape(-1, 3, 1024), 1, 0).astype(np.float32) * np.float32(1 / 255)
  mixed = red * np.float32(0.2989) + green * np.float32(0.5870) + blue * np.float32(0.1140)
  return (mixed * np.float32(255.5)).astype(np.uint8)


def _records(place: Path, file: str, contents: Contents) -> Pictures:
  """The records of a file of either version."""
  name = f"{file}.bin" if f"{file}.bin" in contents else file
  if name not in contents:
    raise DataError(f"{place}: expected {file}.bin or {file}, found neither")
  where = f"{place}: {name}"
  try:
    content = contents[name]()
  except OSError as error:
    raise DataError(f"{where}: cannot be read: {error.strerror or error}") from error
  if not content:
    raise DataError(f"{where}: the file is empty")
  records = _from_binary(where, content) if name.endswith(".bin") else _from_pickle(where, content)
  wrong = np.flatnonzero(records[:, 0] >= TASK.num_classes)
  if len(wrong):
    raise DataError(f"{where}, picture {wrong[0]}: expected a label from 0 to 9, got {records[wrong[0], 0]}")
  return records


def _from_binary(where: str, content: bytes) -> Pictures:
  if len(content) % RECORD:
    raise DataError(
      f"{where}: expected records of {RECORD:,} bytes, got {len(content):,} bytes, "
      f"which are {len(content) // RECORD:,} records and {len(content) % RECORD:,} bytes"
    )
  return np.frombuffer(content, np.uint8).reshape(-1, RECORD)


def _from_pickle(where: str, content: bytes) -> Pictures:
  try:
    batch = _Unpickler(io.BytesIO(content), encoding="bytes").load()
    batch = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
    data, labels = np.asarray(batch["data"]), np.asarray(batch["labels"])
  except Exception as error:  # a damaged pickle may raise anything
    raise DataError(f"{where}: cannot be read as a batch of CIFAR-10's Python version: {error!r}") from error
  if data.dtype != np.uint8 or data.shape != (len(labels), RECORD - 1) or labels.ndim != 1 or labels.dtype.kind != "i":
    raise DataError(
      f"{where}: expected data uint8 [n, {RECORD - 1}] and n labels, got {data.dtype} {data.shape}, {labels.shape}"
    )
  labels = np.where((labels >= 0) & (labels < 255), labels, 255)  # a byte as in the binary version
  return np.concatenate([labels.astype(np.uint8)[:, None], data], axis=1)


class _Unpickler(pickle.Unpickler):
  """Admits NumPy's arrays and what Python itself writes without a name, so that a file cannot run code."""

  def find_class(self, module: str, name: str) -> Any:
    """The few names that batches of CIFAR-10 refer to."""
    if module in ("numpy.core.multiarray", "numpy._core.multiarray") and name == "_reconstruct":
      return np.zeros(0).__reduce__()[0]
    if (module, name) in (("numpy", "ndarray"), ("numpy", "dtype")):
      return getattr(np, name)
    if (module, name) == ("_codecs", "encode"):
      return lambda text, encoding: text.encode("latin1")  # how Python 3 writes bytes into old pickles
    raise pickle.UnpicklingError(f"{module}.{name} is not admitted")
