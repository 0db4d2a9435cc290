"""The TFDS builder that all tasks share: bytes in, array_record files out, without TensorFlow."""

import itertools
import math
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from lra.shuffle import Shuffled
from lra.statistics import Statistics
from lra.task import Example, RawData, RawSplit, Task
from mgk_jax.data import DataError, places
from mgk_jax.training.progress import Progress

_SHARD_BYTES = 1 << 28


class TaskBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):  # type: ignore[call-arg]
  """Writes the examples of a task. A subclass says which task it is and finds its raw data.

  Raw data are looked for in TFDS's `manual_dir`, which may also be an archive:

      builder.download_and_prepare(download_config=tfds.download.DownloadConfig(manual_dir="aclImdb"))

  `builder.info.metadata` then holds their origin, notes on them, what they lack, and statistics of each split.
  """

  VERSION = tfds.core.Version("1.0.0")
  task: ClassVar[Task]

  def __init__(
    self, *, data_dir: str | Path | None = None, config: Any = None, partial: bool = False, **arguments: Any
  ):
    """Builds or reads the prepared data below `data_dir`; with `partial`, raw data need not be complete."""
    self.partial = partial
    self._raw: RawData | None = None
    data_dir = places.default_prepared_dir() if data_dir is None else Path(data_dir).expanduser()
    super().__init__(data_dir=str(data_dir), config=config, file_format="array_record", **arguments)

  def find(self, data_dir: Path | None) -> RawData:
    """Finds and checks the raw data in a directory or an archive.

    Raises:
      DataError: they are not there or not complete; the message says what is missing and where to get it.
    """
    raise NotImplementedError

  @property
  def needs_raw_data(self) -> bool:
    """Whether there must be raw data to prepare the task from."""
    return True

  def is_prepared(self) -> bool:
    """Whether the data are there to be read."""
    return self.data_path.exists() and super().is_prepared()  # TFDS warns of a directory that is not there

  @property
  def notes(self) -> list[str]:
    """What a reader of results should know of the prepared data; empty if there is nothing unusual."""
    metadata = self.info.metadata or {}
    lacking = metadata.get("incomplete", "")
    return [*metadata.get("notes", ()), *([f"incomplete raw data: {lacking}"] if lacking else [])]

  def reopened(self) -> "TaskBuilder":
    """The same builder, with what is on the disk now."""
    return type(self)(data_dir=self.data_dir_root, config=self.builder_config, partial=self.partial)

  def download_and_prepare(
    self, *, download_config: tfds.download.DownloadConfig | None = None, **arguments: Any
  ) -> None:
    """Finds the raw data in the `manual_dir` of the config and writes them, unless they are prepared already.

    Raises:
      DataError: the raw data are not right, or the prepared data cannot be written.
    """
    config = download_config or tfds.download.DownloadConfig()
    if not self.is_prepared() or config.download_mode.overwrite_dataset:
      self.write(self.find(Path(config.manual_dir).expanduser() if config.manual_dir else None), config, **arguments)

  def write(self, raw: RawData, download_config: tfds.download.DownloadConfig | None = None, **arguments: Any) -> None:
    """Writes raw data that were found; until all are written, nothing counts as prepared.

    Raises:
      DataError: they turn out to be unreadable, or the prepared data cannot be written.
    """
    self._raw = raw
    try:
      with tempfile.TemporaryDirectory() as downloads:  # TFDS wants one, and nothing is downloaded through TFDS
        super().download_and_prepare(download_config=download_config, **{"download_dir": downloads} | arguments)
    except OSError as error:
      raise DataError(f"{self.data_dir}: cannot be written: {error.strerror or error}") from error
    finally:
      self._raw = None

  def _info(self) -> tfds.core.DatasetInfo:
    sequence = tfds.features.Tensor(shape=(None,), dtype=np.uint8, encoding="bytes")
    features: dict[str, Any] = dict.fromkeys(self.task.sequence_names, sequence)
    return tfds.core.DatasetInfo(
      builder=self,
      description=f"The task {self.task.name} of the Long Range Arena.",
      features=tfds.features.FeaturesDict(features | {"label": np.int32}),
      metadata=tfds.core.MetadataDict(),
    )

  def _split_generators(self, dl_manager: Any) -> dict[str, Iterator[tuple[str, Example]]]:
    assert self._raw is not None
    return {name: self._generate_examples(name, split) for name, split in self._raw.splits.items()}

  def _generate_examples(self, name: str, split: RawSplit) -> Iterator[tuple[str, Example]]:
    return read(self.task, name, split)

  def _generate_splits(self, dl_manager: Any, download_config: Any) -> Sequence[tfds.core.SplitInfo]:
    assert self._raw is not None
    self.info.metadata.update(
      origin=self._raw.origin, notes=list(self._raw.notes), incomplete=self._raw.incomplete, statistics={}
    )
    return [self._write_split(name, examples) for name, examples in self._split_generators(dl_manager).items()]

  def _write_split(self, name: str, examples: Iterator[tuple[str, Example]]) -> tfds.core.SplitInfo:
    """Writes examples in the order of the hashes of their keys, which is the order that TFDS gives them."""
    template = tfds.core.ShardedFileTemplate(
      data_dir=self.data_path, dataset_name=self.name, split=name, filetype_suffix="array_record"
    )
    statistics = Statistics(self.task)
    records = Shuffled(Path(self.data_path), name)
    try:
      for key, example in examples:
        statistics.add(example)
        records.add(key, self.info.features.serialize_example(example))
      num_shards = min(math.ceil(records.num_bytes / _SHARD_BYTES), records.num_records)
      bounds = [records.num_records * shard // num_shards for shard in range(num_shards + 1)]
      lengths = [end - start for start, end in itertools.pairwise(bounds)]
      stream = iter(records)
      for path, length in zip(template.sharded_filepaths(num_shards), lengths, strict=True):
        _write_shard(Path(path), stream, length)
    finally:
      records.close()
    self.info.metadata["statistics"][name] = statistics.as_dict()
    return tfds.core.SplitInfo(
      name=name, shard_lengths=lengths, num_bytes=records.num_bytes, filename_template=template
    )

  def _log_download_bytes(self) -> None:
    """TFDS would print a line before."""

  def _log_download_done(self) -> None:
    """TFDS would print a line after."""


def read(task: Task, name: str, split: RawSplit) -> Iterator[tuple[str, Example]]:
  """The examples of a raw split, with a progress bar.

  Raises:
    DataError: while iterating, if an example cannot be read or if there are more or fewer than were found.
  """
  with Progress(f"{task.name} {name}", total=split.num_examples, unit="example") as progress:
    for key_and_example in split.read():
      yield key_and_example
      progress.advance()
  if progress.done != split.num_examples:
    raise DataError(f"{task.name} {name}: expected {split.num_examples:,} examples, read {progress.done:,}")


def _write_shard(path: Path, records: Iterator[bytes], number: int) -> None:
  """Writes the next `number` records to a file."""
  writer = tfds.core.ExampleWriter(tfds.core.FileFormat.ARRAY_RECORD)
  try:
    writer.write(path, ((b"", record) for record in itertools.islice(records, number)))
  except RuntimeError as error:  # in this way array_record reports a full disk
    raise DataError(f"{path}: cannot be written: {error}") from error
