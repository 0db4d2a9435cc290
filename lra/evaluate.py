"""Evaluates a run from one of its checkpoints, on any split and any number of devices.

    python -m lra.evaluate --workdir=runs/listops_smgk
    python -m lra.evaluate --workdir=runs/listops_smgk --split=valid --step=latest

Without --step it is the best checkpoint on the validation set. The run may still be going on; nothing of it is changed.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections

from lra import prepare, tasks, train
from lra.task import SPLITS
from mgk_jax import training
from mgk_jax.data import DataError
from mgk_jax.training import records
from mgk_jax.training.checkpoints import Checkpoints


def evaluate(
  workdir: str | Path,
  *,
  split: str = "test",
  step: str | int = "best",
  data_dir: str | Path | None = None,
  prepared_dir: str | Path | None = None,
) -> dict[str, Any]:
  """Accuracy and loss of a checkpoint on a split.

  Args:
    workdir: of a run.
    split: "train", "valid" or "test".
    step: "best", "latest" or a number.
    data_dir, prepared_dir: as in `lra.train.train`.

  Returns:
    {"split", "step", "accuracy", "loss", "examples"}.

  Raises:
    TrainingStopped: there is no such run or checkpoint, or it cannot be read.
    DataError: there are no data.
  """
  directory = training.Workdir(workdir)
  config = ml_collections.ConfigDict(directory.config())
  here = jax.device_count()  # which may be another number than where it was trained
  config.mesh.update(data=here, model=1)
  config.update(batch_size=-(-config.batch_size // here) * here, accumulation_steps=1)
  number = find_step(directory, step)
  builder = prepare.require(tasks.builder(config, prepared_dir), data_dir)
  metrics = train.make_trainer(config, directory, builder).evaluate_checkpoint(number, split)
  examples = len(train.input_pipeline.source(builder, config.data.protocol, split))
  return {"split": split, "step": number, **metrics, "examples": examples}


def find_step(directory: training.Workdir, step: str | int) -> int:
  """The number of the step that is meant by "best", "latest" or a number.

  Raises:
    TrainingStopped: there is none.
  """
  if not directory.checkpoints.exists():
    raise training.TrainingStopped(f"{directory} has no checkpoint yet")
  with Checkpoints(directory.checkpoints, read_only=True) as checkpoints:
    there = checkpoints.steps
  if not there:
    raise training.TrainingStopped(f"{directory} has no checkpoint yet")
  if step == "latest":
    return there[-1]
  if step == "best":
    valid = {r["step"]: r["valid"] for r in records.read(directory.path / "metrics.jsonl") if "valid" in r}
    judged = [number for number in there if number in valid]
    if not judged:
      raise training.TrainingStopped(f"{directory} was not evaluated yet: choose --step=latest or one of {there}")
    return max(judged, key=lambda number: (valid[number]["accuracy"], -number))
  if not str(step).isdigit() or int(step) not in there:
    raise training.TrainingStopped(f"--step: expected best, latest or one of {list(there)}, got {step}")
  return int(step)


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  parser = argparse.ArgumentParser(
    prog="python -m lra.evaluate", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("--workdir", required=True, help="of the run")
  parser.add_argument("--split", default="test", choices=SPLITS)
  parser.add_argument("--step", default="best", help="best (the default), latest, or the number of a step")
  parser.add_argument("--data_dir", help="raw data, if they are not prepared yet")
  parser.add_argument("--prepared_dir", help="where prepared data are")
  parser.add_argument("--json", action="store_true", help="print JSON")
  args = parser.parse_args(argv)
  with training.reported(DataError, ValueError):
    result = evaluate(
      args.workdir, split=args.split, step=args.step, data_dir=args.data_dir, prepared_dir=args.prepared_dir
    )
    if args.json:
      print(json.dumps(result))
    else:
      print(
        f"{result['split']} of step {result['step']}: accuracy {result['accuracy']:.2%}, loss {result['loss']:.4f}, "
        f"{result['examples']:,} examples"
      )


if __name__ == "__main__":
  main()
