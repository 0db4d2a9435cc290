"""The training step of a config, compiled for a machine that is not there (`python -m lra.train --compile_for=…`)."""

import functools
from collections.abc import Sequence

import ml_collections

import lra.model
from configs.lra import schema
from lra import input_pipeline, tasks
from mgk_jax import training
from mgk_jax.analysis import flops
from mgk_jax.training import ahead, comparison, targets


def report(
  config: ml_collections.ConfigDict, target_name: str, *, variants: Sequence[str] = (), heads: Sequence[int] = ()
) -> str:
  """What a step needs of each device of a machine, as a table; see `mgk_jax.training.comparison.report`."""
  tokens = config.data.pad_to or config.data.length
  return f"{config.task}, batches of {config.batch_size} × {tokens} tokens, on " + comparison.report(
    config, target_name, compile_config=compile_config, settle=schema.settle, variants=variants, heads=heads
  )


def with_model(config: ml_collections.ConfigDict, variant: str, heads: int) -> ml_collections.ConfigDict:
  """The config with another attention and number of heads."""
  return comparison.with_model(config, variant, heads, schema.settle)


def compile_config(config: ml_collections.ConfigDict, target: targets.Target) -> tuple[ahead.Needs, float]:
  """What the step of a config needs of a device, and the FLOPs of a step by the formula, on all devices."""
  task = tasks.get(config.task).task
  settings = lra.model.model_config(config, task)
  optimizer, _ = training.make_optimizer(num_steps=config.num_steps, **config.optimizer)
  length = config.data.pad_to or config.data.length
  needs = ahead.compile_step(
    target,
    make_model=functools.partial(lra.model.make_model, settings),
    objective=lra.model.classify,
    optimizer=optimizer,
    batch=input_pipeline.collate([], task, config.batch_size, length),
    accumulation_steps=config.accumulation_steps,
    **config.mesh,
  )
  return needs, flops.training_flops(settings, config.batch_size, length).training
