"""Checkpoints by Orbax: written in the background, the newest two and the best one kept."""

import contextlib
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from mgk_jax.training import quiet
from mgk_jax.training.failures import TrainingStopped

NUM_LATEST = 2
_CHECKSUM = "checksum"  # among the facts: Orbax does not notice a value that changed on the disk


class Checkpoints:
  """The checkpoints below a directory: a training state and a few facts beside it.

  A checkpoint that was not written to its end is never seen again: the one before it counts.
  """

  def __init__(self, directory: Path, *, read_only: bool = False):
    self.directory = directory
    self.best_step: int | None = None  # never deleted; kept up to date by the caller
    self._writing: int | None = None
    options = managers.CheckpointManagerOptions(
      preservation_policy=managers.AnyPreservationPolicy([managers.LatestN(NUM_LATEST), _Best(self)]),
      cleanup_tmp_directories=not read_only,
      create=not read_only,
      save_interval_steps=0 if read_only else 1,
      read_only=read_only,
    )
    try:
      with quiet.without_read_only_warning():
        self._manager = managers.CheckpointManager(directory.absolute(), options=options)
    except OSError as error:
      raise TrainingStopped(f"No checkpoints can be kept in {directory}: {error}") from error

  def __enter__(self) -> "Checkpoints":
    self._quiet = quiet.without_orbax_errors()
    self._quiet.__enter__()
    return self

  def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
    """Waits for what is being written; if that fails, it is an error, unless there is one already."""
    try:
      with self._writes() if kind is None else contextlib.suppress(Exception):
        self._manager.close()
    finally:
      self._quiet.__exit__(kind, error, trace)

  @property
  def steps(self) -> Sequence[int]:
    """The steps of which there is a checkpoint, in order."""
    return sorted(self._manager.all_steps())

  def last_good(self, step: int | None) -> str:
    """A sentence on the last checkpoint before a step that went wrong; None for the last of all."""
    good = [saved for saved in self.steps if step is None or saved < step]
    return f"The last good checkpoint is that of step {good[-1]}." if good else "There is no checkpoint yet."

  def save(self, step: int, state: Any, facts: dict[str, Any]) -> None:
    """Starts to write a checkpoint, once the one before is written.

    Raises:
      TrainingStopped: this one or the one before cannot be written.
    """
    self.wait()
    self._writing = step
    with self._writes():
      facts = facts | {_CHECKSUM: checksum(state)}
      items = ocp.args.Composite(state=ocp.args.StandardSave(state), facts=ocp.args.JsonSave(facts))
      self._manager.save(step, args=items, force=True)

  def wait(self) -> None:
    """Waits for the last checkpoint to be written.

    Raises:
      TrainingStopped: it cannot be written.
    """
    with self._writes():
      self._manager.wait_until_finished()
      self._manager.check_for_errors()
    self._writing = None

  def restore(self, step: int, like: Any) -> tuple[Any, dict[str, Any]]:
    """The state and the facts of a step; `like` says structure, shapes, dtypes and shardings.

    Raises:
      TrainingStopped: the checkpoint cannot be read.
    """
    with self._reads(step):
      items = ocp.args.Composite(state=ocp.args.StandardRestore(like), facts=ocp.args.JsonRestore())
      restored = self._manager.restore(step, args=items)
      expected, got = restored.facts.pop(_CHECKSUM, None), checksum(restored.state)
      if None not in (expected, got) and expected != got:
        raise ValueError(f"expected the checksum {expected}, with which it was written, got {got}")
    return restored.state, restored.facts

  def facts(self, step: int) -> dict[str, Any]:
    """What was saved beside the state of a step."""
    with self._reads(step):
      facts = self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore())).facts
      return {name: fact for name, fact in facts.items() if name != _CHECKSUM}

  @contextlib.contextmanager
  def _reads(self, step: int) -> Iterator[None]:
    try:
      yield
    except Exception as error:  # Orbax, and the storage below it, may raise anything
      raise TrainingStopped(
        f"The checkpoint of step {step} in {self.directory} cannot be read: {_first_line(error)}\n"
        f"Checkpoints there: {list(self.steps)}. Nothing was changed. To go on from an earlier one, move the directory "
        f"{self.directory / str(step)} away and start again."
      ) from error

  @contextlib.contextmanager
  def _writes(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:  # Orbax, and the storage below it, may raise anything
      raise TrainingStopped(
        f"The checkpoint of step {self._writing} could not be written to {self.directory}: {_first_line(error)}\n"
        f"{self.last_good(self._writing)} Once there is room and permission to write, start again with the same "
        "command."
      ) from error


def checksum(state: Any) -> int | None:
  """Of the bits of all arrays, however they lie on devices; None where this process does not have them all."""
  leaves = jax.tree.leaves(state)
  if not all(leaf.is_fully_addressable for leaf in leaves):
    return None
  total = 0
  for leaf in leaves:
    total = zlib.crc32(np.ascontiguousarray(leaf).view(np.uint8).data, total)
  return total


class _Best:
  """Keeps the step that the caller holds to be the best."""

  def __init__(self, checkpoints: Checkpoints):
    self.checkpoints = checkpoints

  def should_preserve(
    self, checkpoints: Sequence[managers.PolicyCheckpointInfo], *, context: managers.PreservationContext
  ) -> Sequence[bool]:
    """Which of the checkpoints to keep."""
    return [checkpoint.step == self.checkpoints.best_step for checkpoint in checkpoints]


def _first_line(error: Exception) -> str:
  lines = str(error).strip().splitlines()
  return f"{type(error).__name__}: {lines[0] if lines else ''}"
