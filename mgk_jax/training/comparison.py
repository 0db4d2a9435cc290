"""The training steps of a config and of its variants, compiled for a machine that is not there."""

import sys
from collections.abc import Callable, Mapping, Sequence

import ml_collections

from mgk_jax.training import ahead, targets

Settle = Callable[[ml_collections.ConfigDict, Mapping[str, str]], None]
Compile = Callable[[ml_collections.ConfigDict, targets.Target], tuple[ahead.Needs, float]]


def report(
  config: ml_collections.ConfigDict,
  target_name: str,
  *,
  compile_config: Compile,
  settle: Settle,
  variants: Sequence[str] = (),
  heads: Sequence[int] = (),
) -> str:
  """What a step needs of each device of a machine, as a table.

  Args:
    config: of a program.
    target_name: such as v5e:4x4 or a100x4.
    compile_config: what the step of a config needs of a device, and its FLOPs by the formula, on all devices.
    settle: what a config does not say of another attention is then as in the paper.
    variants, heads: compare all of these; none for that of the config.

  Raises:
    ValueError: no such machine, or settings that are not possible.
    TrainingStopped: the compiler for it is not installed.
  """
  models = {
    f"{variant}, {number} head{'s' if number > 1 else ''}": with_model(config, variant, number, settle)
    for variant in variants or [config.model.attention]
    for number in heads or [config.model.num_heads]
  }
  target = targets.find(target_name)
  needs: dict[str, ahead.Needs] = {}
  model_flops: dict[str, float] = {}
  for name, chosen in models.items():
    print(f"compiling {name} …", file=sys.stderr, flush=True)
    needs[name], model_flops[name] = compile_config(chosen, target)
  return ahead.describe(target, needs, model_flops)


def with_model(
  config: ml_collections.ConfigDict, variant: str, heads: int, settle: Settle
) -> ml_collections.ConfigDict:  # fmt: skip
  """The config with another attention and number of heads; what the config does not say of it is as in the paper."""
  changed = config.copy_and_resolve_references()
  changed.model.attention, changed.model.num_heads = variant, heads
  settle(changed, {})
  return changed
