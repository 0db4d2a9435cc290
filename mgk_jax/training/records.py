"""What a run writes down: metrics.jsonl, the same bytes however often the run was resumed, and TensorBoard files."""

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mgk_jax.training.failures import TrainingStopped


class Records:
  """Metrics by step: to metrics.jsonl, and with whatever depends on the machine to TensorBoard.

  A line is {"step": 50, "train": {"loss": …, …}}, or with "valid" in the place of "train".
  """

  def __init__(self, directory: Path, *, resumed_at: int, enabled: bool = True):
    """Goes on after step `resumed_at`: of what was written later, and of evaluations at that step, nothing stays.

    With `enabled=False`, as in all processes but the first, nothing is written.

    Raises:
      TrainingStopped: nothing can be written there.
    """
    self.enabled = enabled
    if not enabled:
      return
    from mgk_jax.training.tensorboard import EventFile  # late, as tensorboardX imports PyTorch where it is installed

    self.path = directory / "metrics.jsonl"
    with self._writes(resumed_at):
      kept = [line for line in _lines(self.path) if _stays(json.loads(line), resumed_at)]
      temporary = self.path.with_suffix(".tmp")
      temporary.write_text("".join(kept))
      os.replace(temporary, self.path)
      self._file = self.path.open("a", buffering=1)
      self._board = EventFile(directory / "tensorboard", purge_step=resumed_at + 1)

  def __enter__(self) -> "Records":
    return self

  def __exit__(self, *_: object) -> None:
    if self.enabled:
      for file in (self._file, self._board):
        with contextlib.suppress(OSError):  # all that matters is written, or its loss was an error
          file.close()

  def write(
    self, step: int, split: str, metrics: Mapping[str, float], *, measured: Mapping[str, float] | None = None
  ) -> None:
    """Writes metrics of a step; `measured` are times and speeds, which only TensorBoard gets.

    Raises:
      TrainingStopped: they cannot be written.
    """
    if not self.enabled:
      return
    with self._writes(step):
      self._file.write(json.dumps({"step": step, split: dict(metrics)}) + "\n")
      self._board.write(step, {f"{split}/{name}": value for name, value in {**metrics, **(measured or {})}.items()})

  @contextlib.contextmanager
  def _writes(self, step: int) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise TrainingStopped(
        f"The metrics of step {step} could not be written to {self.path.parent}: {error}\nThe checkpoints are intact. "
        "Once there is room and permission to write, start again with the same command to go on from the last of them."
      ) from error


def read(path: Path) -> list[dict[str, Any]]:
  """The records of a metrics.jsonl."""
  return [json.loads(line) for line in _lines(path)]


def _lines(path: Path) -> list[str]:
  """Complete lines: a process that was killed may have left a part of one."""
  if not path.exists():
    return []
  return [line for line in path.read_text().splitlines(keepends=True) if line.endswith("\n")]


def _stays(record: dict[str, Any], resumed_at: int) -> bool:
  return record["step"] < resumed_at or (record["step"] == resumed_at and "train" in record)
