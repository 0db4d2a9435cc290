"""Files for TensorBoard, written by the thread that has the numbers, so that a full disk is noticed there."""

import socket
import time
from collections.abc import Mapping
from pathlib import Path

import tensorboardX
from tensorboardX.proto import event_pb2, summary_pb2

SECONDS_BETWEEN_FLUSHES = 5.0


class EventFile:
  """A new event file in a directory, to which scalars are written.

  With `purge_step`, TensorBoard forgets what earlier files say of that step and later ones.
  """

  def __init__(self, directory: Path, *, purge_step: int):
    directory.mkdir(parents=True, exist_ok=True)
    self.path = directory / f"events.out.tfevents.{time.time():.3f}.{socket.gethostname()}"
    self._writer = tensorboardX.RecordWriter(str(self.path))
    self._add(file_version="brain.Event:2")
    self._add(step=purge_step, session_log=event_pb2.SessionLog(status=event_pb2.SessionLog.START))
    self._flush()

  def write(self, step: int, scalars: Mapping[str, float]) -> None:
    """Writes numbers of a step by their tags."""
    values = [summary_pb2.Summary.Value(tag=tag, simple_value=value) for tag, value in scalars.items()]
    self._add(step=step, summary=summary_pb2.Summary(value=values))
    if time.monotonic() - self._flushed >= SECONDS_BETWEEN_FLUSHES:
      self._flush()

  def close(self) -> None:
    """Writes what is left and closes the file."""
    try:
      self._flush()
    finally:
      self._writer.close()

  def _add(self, **fields: object) -> None:
    self._writer.write(event_pb2.Event(wall_time=time.time(), **fields).SerializeToString())

  def _flush(self) -> None:
    self._writer.flush()
    self._flushed = time.monotonic()
