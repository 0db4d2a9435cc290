"""The task `retrieval`: whether one of two papers cites the other, from the bytes of both (ACL Anthology Network)."""

import functools
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lra import release, sources
from lra.builder import TaskBuilder
from lra.task import Example, RawData, RawSplit, Task
from mgk_jax.data import DataError
from mgk_jax.data.findings import Findings
from mgk_jax.training.progress import Progress

TASK = Task(name="retrieval", length=4000, vocab_size=257, num_classes=2, byte_offset=1, num_sequences=2)
FILES = {
  "train": "new_aan_pairs.train.tsv",
  "validation": "new_aan_pairs.eval.tsv",
  "test": "new_aan_pairs.test.tsv",
}
ROWS = {"train": 147_086, "validation": 18_090, "test": 17_437}
LABELS = {b"0": 0, b"0.0": 0, b"1": 1, b"1.0": 1}
COLUMNS = "label, id1, id2, text1, text2"
_FEW = 10  # so many pairs may lack a text and are then left out; more of them are another file
_CHUNK = 1_000_000


class LraRetrieval(TaskBuilder):
  """Pairs of papers as the bytes of their texts, whole and unchanged."""

  task = TASK

  def find(self, data_dir: Path | None) -> RawData:
    """The pairs of `new_aan_pairs.{train,eval,test}.tsv`, in a directory or in the official archive."""
    folder = release.locate(
      data_dir,
      TASK.name,
      folders=(".", "tsv_data", "aan", "retrieval"),
      holds=lambda path: any((path / file).is_file() for file in FILES.values()),
      wanted=lambda path: path.name in FILES.values(),
      looking_for=", ".join(FILES.values()),
    )
    findings = Findings(TASK.name, sources.advice(TASK.name), partial=self.partial)
    splits, notes = {}, []
    for name, file in FILES.items():
      path = folder / file
      if not path.is_file():
        findings.fault(f"{path}: there is no such file")
        continue
      rows, empty = _check(path, findings)
      findings.count(str(path), expected=ROWS[name], found=rows, unit="rows")
      if empty:
        notes.append(f"{file}: pairs without one of the texts are left out, rows {', '.join(map(str, empty))}")
      splits[name] = RawSplit(rows - len(empty), functools.partial(_read, path))
    return RawData(f"AAN pairs in {folder}", splits, notes, findings.conclude())


def _check(path: Path, findings: Findings) -> tuple[int, list[int]]:
  """The number of rows, and which of them lack a text; what is wrong with the first malformed row goes to findings."""
  rows, empty, malformed, done = 0, [], "", 0
  with (
    Progress(f"checking {path.name}", total=path.stat().st_size // _CHUNK, unit="MB") as progress,
    path.open("rb") as file,
  ):
    line = b"\n"
    for rows, line in enumerate(file, 1):
      try:
        _, *texts = _columns(f"{path}, row {rows}", line)
        if not all(texts):
          empty.append(rows)
      except DataError as error:
        malformed = malformed or str(error)
      done += len(line)
      if done // _CHUNK > progress.done:
        progress.advance(steps=done // _CHUNK - progress.done)
  if malformed:
    findings.fault(malformed)
  if len(empty) > _FEW:
    findings.fault(
      f"{path}: expected a text in both columns, {len(empty):,} rows lack one, the first is row {empty[0]}"
    )
  return rows, empty


def _columns(where: str, line: bytes) -> tuple[bytes, bytes, bytes]:
  """Label and texts of a row."""
  columns = line.rstrip(b"\r\n").split(b"\t")
  if len(columns) != 5:
    raise DataError(f"{where}: expected 5 columns ({COLUMNS}), got {len(columns)}: {line[:60]!r}")
  if columns[0] not in LABELS:
    raise DataError(f"{where}: expected a label of {[label.decode() for label in LABELS]}, got {columns[0][:60]!r}")
  return columns[0], columns[3], columns[4]


def _read(path: Path) -> Iterator[tuple[str, Example]]:
  with path.open("rb") as file:
    for number, line in enumerate(file, 1):
      label, *texts = _columns(f"{path}, row {number}", line)
      if all(texts):
        text1, text2 = (np.frombuffer(text, np.uint8) for text in texts)
        yield str(number), {"tokens1": text1, "tokens2": text2, "label": LABELS[label]}
