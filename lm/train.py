"""Trains a language model, from a config.

    python -m lm.train --config=configs/lm/wikitext103.py:mgk,heads=4 --workdir=runs/wt103_mgk

The same command goes on where a run was stopped. It ends with the perplexity on the test set, segment by segment, of
the checkpoint that was best on the validation set, and leaves in the work directory the config, metrics.jsonl,
TensorBoard files, checkpoints and a summary.json. The perplexity of the paper's protocol, whose window slides over the
text, is then that of `python -m lm.evaluate`.
"""

import functools
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_collections

import lm.model
from configs import shipped
from configs.lm import schema
from lm import ahead, datasets, input_pipeline, prepare
from lm.corpus import Corpus
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
    config: as the files in configs/lm make it.
    workdir: where everything is written.
    data_dir: raw files, for a corpus that is not prepared yet.
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
    corpus = prepare.require(datasets.get(config.dataset), data_dir, prepared_dir)
    return summarize(config, corpus, make_trainer(config, directory, corpus).run())

  return directory.run(config.to_dict(), work)


def check(config: ml_collections.ConfigDict) -> None:
  """Looks at all settings, so that a wrong one is found before data are prepared and a work directory is taken.

  Raises:
    ValueError, TypeError: a setting that is not allowed.
  """
  dataset = datasets.get(config.dataset)
  lm.model.model_config(config, 2**31)  # the corpus that is there may have any number of words
  meshes.check_batch_size(training.make_mesh(**config.mesh), config.batch_size, config.accumulation_steps)
  steps = num_steps(config, dataset.num_tokens["train"])
  training.make_optimizer(num_steps=steps, **config.optimizer)
  make_schedule(config, steps)
  if config.seed < 0:
    raise ValueError(f"seed: expected 0 or more, got {config.seed}")


def steps_per_epoch(config: ml_collections.ConfigDict, num_tokens: int) -> float:
  """Steps in which every word of the training split is predicted once."""
  carry_state = config.data.get("carry_state", False)
  return input_pipeline.steps_per_epoch(
    num_tokens, batch_size=config.batch_size, length=config.data.length, carry_state=carry_state
  )


def num_steps(config: ml_collections.ConfigDict, num_tokens: int) -> int:
  """How many steps a run has: those of its epochs, but no more than the config allows."""
  if not config.num_epochs:
    return config.num_steps
  return min(config.num_steps, math.ceil(config.num_epochs * steps_per_epoch(config, num_tokens)))


def make_schedule(config: ml_collections.ConfigDict, steps: int) -> training.Schedule:
  """When a run of so many steps evaluates, saves and logs."""
  names = ("eval_every", "checkpoint_every", "log_every")
  return training.Schedule(num_steps=steps, **{name: config[name] for name in names})


def make_trainer(config: ml_collections.ConfigDict, directory: training.Workdir, corpus: Corpus) -> training.Trainer:
  """The run that a config describes."""
  mesh = training.make_mesh(**config.mesh)
  meshes.check_batch_size(mesh, config.batch_size, config.accumulation_steps)
  steps = num_steps(config, len(corpus.train))
  optimizer, learning_rate = training.make_optimizer(num_steps=steps, **config.optimizer)
  segments: dict[str, Any] = {
    "rows": Rows(config.batch_size, *meshes.batch_part(mesh)),
    "length": config.data.length,
    "carry_state": config.data.get("carry_state", False),
  }
  return training.Trainer(
    directory=directory.path,
    name=f"{corpus.name} {config.model.attention}",
    make_model=lm.model.maker(config, corpus.vocab_size),
    objective=lm.model.predict,
    optimizer=optimizer,
    learning_rate=learning_rate,
    mesh=mesh,
    schedule=make_schedule(config, steps),
    seed=config.seed,
    accumulation_steps=config.accumulation_steps,
    train_data=input_pipeline.train_batches(corpus.train, seed=config.seed, **segments),
    eval_data=lambda split: input_pipeline.EvalBatches(getattr(corpus, split), **segments),
    measure=training.LOSS,
    derive=functools.partial(lm.model.perplexity, unit=corpus.unit),
  )


def summarize(config: ml_collections.ConfigDict, corpus: Corpus, outcome: training.Outcome) -> dict[str, Any]:
  """All that one wants to know of a finished run."""
  settings = lm.model.model_config(config, corpus.vocab_size)
  shares = lm.model.cluster_shares(settings, corpus.counts)
  count = flops.language_model_flops(settings, config.batch_size, config.data.length, shares)
  steps = num_steps(config, len(corpus.train))
  return {
    "dataset": corpus.name,
    "variant": config.model.attention,
    "num_heads": config.model.num_heads,
    "seed": config.seed,
    "num_parameters": outcome.num_parameters,
    "flops_per_step": count.training,
    "num_steps": steps,
    "num_epochs": steps / steps_per_epoch(config, len(corpus.train)),
    "best_step": outcome.best_step,
    "protocol": f"segments of {config.data.length} {corpus.unit}s"
    + (", with the state carried along" if config.data.get("carry_state") else ", each on its own"),
    "valid": outcome.valid,
    "test": outcome.test,
    "data": {
      "origin": corpus.metadata["origin"],
      "notes": corpus.notes,
      "num_tokens": corpus.metadata["num_tokens"],
      "vocab_size": corpus.vocab_size,
    },
    "timing": {
      "seconds": outcome.seconds,
      "train_seconds": outcome.train_seconds,
      "steps_per_second": steps / outcome.train_seconds,
    },
    "config": config.to_dict(),
  }


def describe(summary: Mapping[str, Any]) -> str:
  """The summary in a few lines."""
  heads = f"{summary['num_heads']} head{'s' if summary['num_heads'] > 1 else ''}"
  lines = [
    f"{summary['dataset']}, {summary['variant']} with {heads}, seed {summary['seed']}: "
    f"{summary['num_parameters']:,} parameters, {summary['flops_per_step'] / 1e9:.1f} GFLOPs a step",
    f"best step {summary['best_step']} of {summary['num_steps']} ({summary['num_epochs']:.2f} epochs): "
    f"segment perplexity {summary['valid']['segment_perplexity']:.2f} on valid, "
    f"{summary['test']['segment_perplexity']:.2f} on test ({summary['protocol']})",
  ]
  if "segment_bits_per_byte" in summary["test"]:
    lines.append(f"test: {summary['test']['segment_bits_per_byte']:.4f} bits per byte, by segments")
  lines += [f"data: {note}" for note in summary["data"]["notes"]]
  lines.append(f"{summary['timing']['seconds'] / 60:.1f} minutes, {summary['timing']['steps_per_second']:.2f} steps/s")
  return "\n".join(lines)


def command() -> None:
  """The command."""
  commands.run(
    "lm.train",
    __doc__,
    find=functools.partial(shipped.find, program="lm"),
    arguments=schema.ARGUMENTS,
    example="configs/lm/wikitext103.py:mgk,heads=4,seed=3",
    settle=schema.settle,
    train=train,
    describe=describe,
    compile_for=ahead.report,
    several="one command for each",
    expected=[DataError],
    afterwards="The perplexity of the paper's protocol, a sliding window: python -m lm.evaluate --workdir={workdir}",
  )


if __name__ == "__main__":
  command()
