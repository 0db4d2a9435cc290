"""Trains a model on a task of the Long Range Arena, from a config.

    python -m lra.train --config=configs/lra/listops.py:smgk --workdir=runs/listops_smgk

The same command goes on where a run was stopped. It ends with the test accuracy of the checkpoint that was best on the
validation set, and leaves in the work directory the config, metrics.jsonl, TensorBoard files, checkpoints and a
summary.json.
"""

import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

import lra.model
from configs.lra import schema
from lra import ahead, input_pipeline, prepare, tasks
from lra.builder import TaskBuilder
from mgk_jax import training
from mgk_jax.analysis import flops
from mgk_jax.data import DataError
from mgk_jax.data.rows import Rows
from mgk_jax.training import mesh as meshes, processes
from mgk_jax.training.targets import EXAMPLES


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
  with directory.claim(config.to_dict()):
    if (summary := directory.summary()) is not None:
      print(f"{directory} holds a finished run.", file=sys.stderr)
      return summary
    builder = prepare.require(tasks.builder(config, prepared_dir), data_dir)
    trainer = make_trainer(config, directory, builder)
    outcome = trainer.run()
    summary = summarize(config, builder, outcome)
    if jax.process_index() == 0:
      directory.write_summary(summary)
  return summary


def check(config: ml_collections.ConfigDict) -> None:
  """Looks at all settings, so that a wrong one is found before data are prepared and a work directory is taken.

  Raises:
    ValueError, TypeError: a setting that is not allowed.
  """
  task = tasks.get(config.task).task
  task.protocol(config.data.protocol)
  lra.model.model_config(config, task)
  check_batch_size(config, training.make_mesh(**config.mesh))
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
  check_batch_size(config, mesh)
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
  )


def check_batch_size(config: ml_collections.ConfigDict, mesh: jax.sharding.Mesh) -> None:
  """A batch must fall into equal parts for devices and accumulation.

  Raises:
    ValueError: it does not.
  """
  parts = mesh.shape["data"] * config.accumulation_steps
  if config.accumulation_steps < 1 or config.batch_size < 1 or config.batch_size % parts:
    raise ValueError(
      f"batch_size: expected a multiple of {mesh.shape['data']} (devices along mesh.data) × "
      f"{config.accumulation_steps} (accumulation_steps), got {config.batch_size}"
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
  """The command. Its flags are defined here, so that who imports this module gets none."""
  config = config_flags.DEFINE_config_file(
    "config", None, "A file of configs/lra with arguments, e.g. configs/lra/listops.py:smgk,heads=2,seed=3."
  )
  workdir = flags.DEFINE_string("workdir", None, "Where the run is written, and gone on with.")
  data_dir = flags.DEFINE_string("data_dir", None, "Raw data, for a task whose data are not prepared yet.")
  prepared_dir = flags.DEFINE_string("prepared_dir", None, "Where prepared data are; see python -m lra.prepare --help.")
  machine = flags.DEFINE_string(
    "compile_for",
    None,
    f"Train nothing, but compile the training step for a machine that need not be there: {EXAMPLES}.",
  )
  compare = flags.DEFINE_list("compare", [], "With --compile_for: variants to compare, e.g. softmax,mgk,smgk.")
  heads = flags.DEFINE_list("heads", [], "With --compile_for: numbers of heads to compare, e.g. 8,4.")
  flags.register_validator(
    heads, lambda texts: all(text.isdecimal() and int(text) for text in texts), "expected whole numbers such as 8,4"
  )
  distributed = flags.DEFINE_bool(
    "distributed",
    False,
    "This is one of several processes of a run, as on a TPU pod, under Slurm, Open MPI or Kubernetes. Elsewhere, "
    "--coordinator, --num_processes and --process_id say which.",
  )
  coordinator = flags.DEFINE_string("coordinator", None, "With --distributed: HOST:PORT of process 0.")
  num_processes = flags.DEFINE_integer("num_processes", None, "With --distributed: how many processes there are.")
  process_id = flags.DEFINE_integer("process_id", None, "With --distributed: which process this is, from 0.")
  flags.mark_flag_as_required(config)

  def main(argv: list[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f"expected --name=value only, got {argv[1:]}")
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # Orbax has much to say
    with training.reported(DataError, ValueError, TypeError):
      overrides = config_flags.get_override_values(flags.FLAGS["config"])
      schema.settle(config.value, {path: f"--config.{path}={value}" for path, value in overrides.items()})
      if machine.value:
        print(ahead.report(config.value, machine.value, variants=compare.value, heads=[int(x) for x in heads.value]))
        return
      if compare.value or heads.value:
        raise ValueError("--compare and --heads go with --compile_for; python -m lra.sweep trains several models")
      if not workdir.value:
        raise ValueError(f"--workdir: expected a directory, got {workdir.value!r}")
      if distributed.value:
        processes.join(coordinator.value, num_processes.value, process_id.value)
      elif coordinator.value or num_processes.value or process_id.value is not None:
        raise ValueError("--coordinator, --num_processes and --process_id go with --distributed")
      summary = train(config.value, workdir.value, data_dir=data_dir.value, prepared_dir=prepared_dir.value)
      if jax.process_index() == 0:
        print(describe(summary))

  app.run(main, flags_parser=_parse)


def _parse(argv: list[str]) -> list[str]:
  """What absl's parser does; errors in a config, for which ml_collections has tracebacks, are messages here as well."""
  try:
    left = flags.FLAGS(argv)
    _ = flags.FLAGS.config.task  # a file that could not be read is an error only now
    return left
  except OSError as error:
    *_, reason = str(error).splitlines()
    message = f"--config: expected a Python file such as configs/lra/listops.py: {reason.strip()}"
  except (AttributeError, KeyError) as error:
    keys = [link.args[0] for link in _chain(error) if isinstance(link, KeyError)]
    message = "--config: no setting " + str(keys[0]).replace("\n", ". ") if keys else f"--config: {error}"
  except flags.Error as error:
    message = f"--config: {_chain(error)[-1]}" if "Traceback" in str(error) else str(error)
  sys.exit(f"{message}\nSee python -m lra.train --help")


def _chain(error: BaseException) -> list[BaseException]:
  """An error, the one during which it came up, and so on."""
  return [error, *(_chain(error.__context__) if error.__context__ else ())]


if __name__ == "__main__":
  command()
