"""Trains a model on a task of the Long Range Arena, from a config.

    python -m lra.train --config=configs/lra/listops.py:smgk --workdir=runs/listops_smgk

The same command goes on where a run was stopped. It ends with the test accuracy of the checkpoint that was best on the
validation set, and leaves in the work directory the config, metrics.jsonl, TensorBoard files, checkpoints and a
summary.json.
"""

import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

import lra.model
from configs import shipped
from configs.lra import schema
from lra import ahead, input_pipeline, prepare, tasks
from lra.builder import TaskBuilder
from mgk_jax import training
from mgk_jax.analysis import flops
from mgk_jax.data import DataError
from mgk_jax.data.rows import Rows
from mgk_jax.training import command as commands, mesh as meshes


def train(
  config: ml_collections.ConfigDict,
  workdir: str | Path,
  *,
  data_dir: str | Path | None = None,
  prepared_dir: str | Path | None = None,
) -> dict[str, Any]:
  """Trains as the config says, from the start or from where a run in `workdir` was stopped.

  Args:
    config: as the files in configs/lra make it.
    workdir: where everything is written.
    data_dir: raw data, for a task whose data are not prepared yet.
    prepared_dir: where prepared data are, or are to be.

  Returns:
    The summary, which is also in the work directory.

  Raises:
    ValueError, TypeError: a setting that is not allowed.
    DataError: there are no data, or not all.
    TrainingStopped: the run cannot go on.
    Interrupted: it was asked to stop, and can be gone on with.
  """
  check(config)
  directory = training.Workdir(workdir)

  def work() -> dict[str, Any]:
    builder = prepare.require(tasks.builder(config, prepared_dir), data_dir)
    return summarize(config, builder, make_trainer(config, directory, builder).run())

  return directory.run(config.to_dict(), work)


def check(config: ml_collections.ConfigDict) -> None:
  """Looks at all settings, so that a wrong one is found before data are prepared and a work directory is taken.

  Raises:
    ValueError, TypeError: a setting that is not allowed.
  """
  task = tasks.get(config.task).task
  task.protocol(config.data.protocol)
  lra.model.model_config(config, task)
  meshes.check_batch_size(training.make_mesh(**config.mesh), config.batch_size, config.accumulation_steps)
  training.make_optimizer(num_steps=config.num_steps, **config.optimizer)
  make_schedule(config)
  if config.seed < 0:
    raise ValueError(f"seed: expected 0 or more, got {config.seed}")


def make_schedule(config: ml_collections.ConfigDict) -> training.Schedule:
  """When a run evaluates, saves and logs."""
  names = ("num_steps", "eval_every", "checkpoint_every", "log_every")
  return training.Schedule(**{name: config[name] for name in names})


def make_trainer(
  config: ml_collections.ConfigDict, directory: training.Workdir, builder: TaskBuilder
) -> training.Trainer:
  """The run that a config describes."""
  task = builder.task
  settings = lra.model.model_config(config, task)
  mesh = training.make_mesh(**config.mesh)
  meshes.check_batch_size(mesh, config.batch_size, config.accumulation_steps)
  optimizer, learning_rate = training.make_optimizer(num_steps=config.num_steps, **config.optimizer)
  rows = Rows(config.batch_size, *meshes.batch_part(mesh))
  length = config.data.pad_to or config.data.length
  source = functools.partial(input_pipeline.source, builder, config.data.protocol)
  return training.Trainer(
    directory=directory.path,
    name=f"{task.name} {config.model.attention}",
    make_model=functools.partial(lra.model.make_model, settings),
    objective=lra.model.classify,
    optimizer=optimizer,
    learning_rate=learning_rate,
    mesh=mesh,
    schedule=make_schedule(config),
    seed=config.seed,
    accumulation_steps=config.accumulation_steps,
    train_data=input_pipeline.train_batches(source("train"), task, rows=rows, length=length, seed=config.seed),
    eval_data=lambda split: input_pipeline.EvalBatches(source(split), task, rows=rows, length=length),
    measure=training.ACCURACY,
  )


def summarize(config: ml_collections.ConfigDict, builder: TaskBuilder, outcome: training.Outcome) -> dict[str, Any]:
  """All that one wants to know of a finished run."""
  task = builder.task
  protocol = task.protocol(config.data.protocol)
  length = config.data.pad_to or config.data.length
  count = flops.training_flops(lra.model.model_config(config, task), config.batch_size, length)
  sizes = {
    split: len(input_pipeline.source(builder, config.data.protocol, split)) for split in ("train", "valid", "test")
  }
  return {
    "task": task.name,
    "variant": config.model.attention,
    "num_heads": config.model.num_heads,
    "seed": config.seed,
    "num_parameters": outcome.num_parameters,
    "flops_per_step": count.training,
    "num_steps": config.num_steps,
    "best_step": outcome.best_step,
    "valid": outcome.valid,
    "test": outcome.test,
    "protocol": {"name": config.data.protocol, "note": protocol.note},
    "data": {"origin": builder.info.metadata["origin"], "notes": builder.notes, "examples": sizes},
    "timing": {
      "seconds": outcome.seconds,
      "train_seconds": outcome.train_seconds,
      "steps_per_second": config.num_steps / outcome.train_seconds,
    },
    "config": config.to_dict(),
  }


def describe(summary: Mapping[str, Any]) -> str:
  """The summary in a few lines."""
  heads = f"{summary['num_heads']} head{'s' if summary['num_heads'] > 1 else ''}"
  lines = [
    f"{summary['task']}, {summary['variant']} with {heads}, seed {summary['seed']}: "
    f"{summary['num_parameters']:,} parameters, {summary['flops_per_step'] / 1e9:.1f} GFLOPs a step",
    f"best step {summary['best_step']} of {summary['num_steps']}: "
    f"valid accuracy {summary['valid']['accuracy']:.2%}, test accuracy {summary['test']['accuracy']:.2%}",
  ]
  if summary["protocol"]["note"]:
    lines.append(f"protocol {summary['protocol']['name']}: {summary['protocol']['note']}")
  lines += [f"data: {note}" for note in summary["data"]["notes"]]
  lines.append(f"{summary['timing']['seconds'] / 60:.1f} minutes, {summary['timing']['steps_per_second']:.2f} steps/s")
  return "\n".join(lines)


def command() -> None:
  """The command."""
  commands.run(
    "lra.train",
    __doc__,
    find=functools.partial(shipped.find, program="lra"),
    arguments=schema.ARGUMENTS,
    example="configs/lra/listops.py:smgk,heads=2,seed=3",
    settle=schema.settle,
    train=train,
    describe=describe,
    compile_for=ahead.report,
    several="python -m lra.sweep",
    expected=[DataError],
  )


if __name__ == "__main__":
  command()
