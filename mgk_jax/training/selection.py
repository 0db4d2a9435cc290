"""Which checkpoint of a run is meant."""

from mgk_jax.training import records
from mgk_jax.training.checkpoints import Checkpoints
from mgk_jax.training.failures import TrainingStopped
from mgk_jax.training.measure import Measure
from mgk_jax.training.workdir import Workdir


def find_step(directory: Workdir, step: str | int, measure: Measure) -> int:
  """The number of the step that is meant by "best", "latest" or a number.

  Args:
    directory: of a run.
    step: what the user said.
    measure: by which the best one on the validation set is chosen.

  Raises:
    TrainingStopped: there is none.
  """
  if not directory.checkpoints.exists():
    raise TrainingStopped(f"{directory} has no checkpoint yet")
  with Checkpoints(directory.checkpoints, read_only=True) as checkpoints:
    there = checkpoints.steps
  if not there:
    raise TrainingStopped(f"{directory} has no checkpoint yet")
  if step == "latest":
    return there[-1]
  if step == "best":
    valid = {r["step"]: r["valid"] for r in records.read(directory.path / "metrics.jsonl") if "valid" in r}
    judged = {number: valid[number] for number in there if number in valid}
    if not judged:
      raise TrainingStopped(f"{directory} was not evaluated yet: choose --step=latest or one of {there}")
    return measure.best(judged)
  if not str(step).isdigit() or int(step) not in there:
    raise TrainingStopped(f"--step: expected best, latest or one of {list(there)}, got {step}")
  return int(step)
