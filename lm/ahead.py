"""The training step of a config, compiled for a machine that is not there (`python -m lm.train --compile_for=…`)."""

from collections.abc import Sequence

import ml_collections

import lm.model
from configs.lm import schema
from lm import datasets, input_pipeline
from mgk_jax import training
from mgk_jax.analysis import flops
from mgk_jax.training import ahead, comparison, targets


def report(
  config: ml_collections.ConfigDict, target_name: str, *, variants: Sequence[str] = (), heads: Sequence[int] = ()
) -> str:
  """What a step needs of each device of a machine, as a table; see `mgk_jax.training.comparison.report`."""
  return comparison.report(
    config, target_name, compile_config=compile_config, settle=schema.settle, variants=variants, heads=heads
  )


def compile_config(config: ml_collections.ConfigDict, target: targets.Target) -> tuple[ahead.Needs, float]:
  """What the step of a config needs of a device, and the FLOPs of a step by the formula, on all devices.

  The vocabulary is that of the official corpus, which need not be there; how often words come, by Zipf's law.
  """
  size, length = datasets.get(config.dataset).vocab_size, config.data.length
  optimizer, _ = training.make_optimizer(num_steps=config.num_steps, **config.optimizer)
  needs = ahead.compile_step(
    target,
    make_model=lm.model.maker(config, size),
    objective=lm.model.predict,
    optimizer=optimizer,
    batch=input_pipeline.empty(config.batch_size, length, carry_state=config.data.get("carry_state", False)),
    accumulation_steps=config.accumulation_steps,
    **config.mesh,
  )
  settings = lm.model.model_config(config, size)
  return needs, flops.language_model_flops(settings, config.batch_size, length).training
