"""The training step of a config, compiled for a machine that is not there (`python -m lra.train --compile_for=…`)."""

import functools
import sys
from collections.abc import Sequence

import ml_collections

import lra.model
from configs.lra import schema
from lra import input_pipeline, tasks
from mgk_jax import training
from mgk_jax.analysis import flops
from mgk_jax.training import ahead, targets


def report(
  config: ml_collections.ConfigDict, target_name: str, *, variants: Sequence[str] = (), heads: Sequence[int] = ()
) -> str:
  """What a step needs of each device of a machine, as a table.

  Args:
    config: as the files in configs/lra make it.
    target_name: such as v5e:4x4 or a100x4.
    variants, heads: compare all of these; none for that of the config.

  Raises:
    ValueError: no such machine, or settings that are not possible.
    TrainingStopped: the compiler for it is not installed.
  """
  models = {
    f"{variant}, {number} head{'s' if number > 1 else ''}": with_model(config, variant, number)
    for variant in variants or [config.model.attention]
    for number in heads or [config.model.num_heads]
  }
  target = targets.find(target_name)
  needs, model_flops = {}, {}
  for name, chosen in models.items():
    print(f"compiling {name} …", file=sys.stderr, flush=True)
    needs[name], model_flops[name] = compile_config(chosen, target)
  heading = f"{config.task}, batches of {config.batch_size} × {config.data.pad_to or config.data.length} tokens, on "
  return heading + ahead.describe(target, needs, model_flops)


def with_model(config: ml_collections.ConfigDict, variant: str, heads: int) -> ml_collections.ConfigDict:
  """The config with another attention and number of heads; what the config does not say of it is as in the paper."""
  changed = config.copy_and_resolve_references()
  changed.model.attention, changed.model.num_heads = variant, heads
  schema.settle(changed, {})
  return changed


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
