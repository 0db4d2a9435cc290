"""Checkpoints by Orbax: written in the background, the newest two and the best one kept."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import orbax.checkpoint as ocp
from orbax.checkpoint import checkpoint_managers as managers

from mgk_jax.training.failures import TrainingStopped

NUM_LATEST = 2


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
    self._manager = managers.CheckpointManager(directory.absolute(), options=options)

  def __enter__(self) -> "Checkpoints":
    return self

  def __exit__(self, *_: object) -> None:
    self._manager.close()

  @property
  def steps(self) -> Sequence[int]:
    """The steps of which there is a checkpoint, in order."""
    return sorted(self._manager.all_steps())

  def save(self, step: int, state: Any, facts: dict[str, Any]) -> None:
    """Starts to write a checkpoint, once the one before is written.

    Raises:
      TrainingStopped: this one or the one before cannot be written.
    """
    self.wait()
    self._writing = step
    with self._writes():
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
    return restored.state, restored.facts

  def facts(self, step: int) -> dict[str, Any]:
    """What was saved beside the state of a step."""
    with self._reads(step):
      return self._manager.restore(step, args=ocp.args.Composite(facts=ocp.args.JsonRestore())).facts

  @contextlib.contextmanager
  def _reads(self, step: int) -> Iterator[None]:
    try:
      yield
    except Exception as error:
      raise TrainingStopped(
        f"The checkpoint of step {step} in {self.directory} cannot be read: {_first_line(error)}\n"
        f"Checkpoints there: {list(self.steps)}. Nothing was changed. To go on from an earlier one, move the directory "
        f"{self.directory / str(step)} away and start again."
      ) from error

  @contextlib.contextmanager
  def _writes(self) -> Iterator[None]:
    try:
      yield
    except Exception as error:
      good = [step for step in self.steps if step != self._writing]
      raise TrainingStopped(
        f"The checkpoint of step {self._writing} could not be written to {self.directory}: {_first_line(error)}\n"
        + (f"The last good checkpoint is that of step {good[-1]}. " if good else "There is no checkpoint yet. ")
        + "Once there is room and permission to write, start again with the same command."
      ) from error


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
