"""Evaluates a run from one of its checkpoints, on any split and any number of devices.

    python -m lra.evaluate --workdir=runs/listops_smgk
    python -m lra.evaluate --workdir=runs/listops_smgk --split=valid --step=latest

Without --step it is the best checkpoint on the validation set. The run may still be going on; nothing of it is changed.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import ml_collections

from lra import prepare, tasks, train
from lra.task import SPLITS
from mgk_jax import console, training
from mgk_jax.data import DataError
from mgk_jax.training import processes


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
  number = training.find_step(directory, step, training.ACCURACY)
  builder = prepare.require(tasks.builder(config, prepared_dir), data_dir)
  metrics = train.make_trainer(config, directory, builder).evaluate_checkpoint(number, split)
  examples = len(train.input_pipeline.source(builder, config.data.protocol, split))
  return {"split": split, "step": number, **metrics, "examples": examples}


def describe(result: dict[str, Any]) -> str:
  """The result in a line."""
  return (
    f"{result['split']} of step {result['step']}: accuracy {result['accuracy']:.2%}, loss {result['loss']:.4f}, "
    f"{result['examples']:,} examples"
  )


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  parser = console.parser("lra.evaluate", __doc__)
  parser.add_argument("--workdir", required=True, help="of the run")
  parser.add_argument("--split", default="test", choices=SPLITS)
  parser.add_argument("--step", default="best", help="best (the default), latest, or the number of a step")
  parser.add_argument("--data_dir", help="raw data, if they are not prepared yet")
  parser.add_argument("--prepared_dir", help="where prepared data are")
  processes.add_arguments(parser)
  parser.add_argument("--json", action="store_true", help="print JSON")
  args = vars(parser.parse_args(argv))
  as_json = args.pop("json")
  with training.reported(DataError, ValueError):
    processes.join(processes.Place(*(args.pop(name) for name in processes.FLAGS)))
    result = evaluate(**args)
    if jax.process_index() == 0:
      print(json.dumps(result) if as_json else describe(result))


if __name__ == "__main__":
  main()
