"""The settings that all programs have, the arguments that change them, and how a config comes of both."""

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, get_args

import ml_collections
from ml_collections import config_dict

from configs import arguments
from configs.arguments import Argument, Kind, flag, number, one_of, positive, whole
from mgk_jax.kernels import checks, feature_maps
from mgk_jax.nn import choices, initializers, names
from mgk_jax.training import optimizer

_AXIS = Kind("-1 or a whole number >= 1", lambda text: -1 if text == "-1" else whole().read(text))

RUN: Mapping[str, Argument] = {
  "seed": Argument("seed", whole(0)),  # of parameters, dropout and the order of the data
  "steps": Argument("num_steps", whole()),
  "batch": Argument("batch_size", whole()),
  "accumulation": Argument("accumulation_steps", whole()),  # parts into which a batch is cut to save memory
  "eval_every": Argument("eval_every", whole()),
  "checkpoint_every": Argument("checkpoint_every", whole(0)),  # besides those at evaluations; 0: none
  "log_every": Argument("log_every", whole()),
}
MODEL: Mapping[str, Argument] = {
  "layers": Argument("model.num_layers", whole()),
  "emb_dim": Argument("model.emb_dim", whole()),
  "mlp_dim": Argument("model.mlp_dim", whole()),
  "heads": Argument("model.num_heads", whole()),
  "head_dim": Argument("model.head_dim", whole()),  # of one head, whatever their number
  "components": Argument("model.num_components", whole()),  # mixtures only
  "estep": Argument("model.estep", one_of(*checks.ESTEPS)),  # mgk, smgk
  "prior": Argument("model.prior", one_of(*get_args(choices.Prior))),  # mixtures; em: mgk, smgk
  "prior_scope": Argument("model.prior_scope", one_of(*get_args(choices.PriorScope))),  # of an sgd prior
  "variance": Argument("model.variance", positive()),  # mgk, smgk
  "learn_variance": Argument("model.learn_variance", flag()),  # mgk, smgk
  "feature_map": Argument("model.feature_map", one_of(*feature_maps.NAMES)),  # linear, mlk, smlk
  "shift_init": Argument("model.shift_init", one_of(*initializers.SHIFTS)),  # smgk, smlk
  "dropout": Argument("model.dropout_rate", number(below=1)),
  "attention_dropout": Argument("model.attention_dropout_rate", number(below=1)),  # softmax, mgk, smgk
  "dtype": Argument("model.dtype", one_of("float32", "bfloat16")),  # of the computation
  "implementation": Argument("model.implementation", one_of(*(name for name in choices.IMPLEMENTATIONS if name))),
  "remat": Argument("model.remat", flag()),  # compute activations again in the backward pass
}
OPTIMIZER: Mapping[str, Argument] = {
  "schedule": Argument("optimizer.schedule", one_of(*optimizer.SCHEDULES)),
  "lr": Argument("optimizer.learning_rate", positive()),
  "warmup": Argument("optimizer.warmup_steps", whole(0)),
  "b1": Argument("optimizer.b1", number(below=1)),
  "b1_peak": Argument("optimizer.b1_peak", number(below=1)),  # where the learning rate is highest; one_cycle only
  "b2": Argument("optimizer.b2", number(below=1)),
  "eps": Argument("optimizer.eps", positive()),
  "weight_decay": Argument("optimizer.weight_decay", number()),
  "clip_norm": Argument("optimizer.clip_norm", number()),  # of the gradient; 0: none
  "mesh_data": Argument("mesh.data", _AXIS),  # devices over which batches are cut; -1: all that are left
  "mesh_model": Argument("mesh.model", _AXIS),  # devices over which heads and MLPs are cut
}


def mixture() -> dict[str, Any]:
  """The settings of mixtures of keys, as the paper has them."""
  return {
    "num_components": 2,
    "estep": "soft",
    "prior": "sgd",
    "prior_scope": "head",
    "variance": config_dict.placeholder(float),  # None: √head_dim
    "learn_variance": False,
    "feature_map": choices.DEFAULT_FEATURE_MAP,
    "shift_init": "paper",
  }


def computation() -> dict[str, Any]:
  """How a model is computed."""
  return {
    "dtype": "float32",
    "implementation": config_dict.placeholder(str),  # None: the best one
    "remat": False,
  }


@dataclasses.dataclass(frozen=True)
class Schema:
  """How the configs of a program are made.

  Attributes:
    arguments: by the names that may stand behind a config's.
    subject: the setting that says what a config is for, such as "task".
    attention: unless the user says which.
    idle: the settings of a config that have no effect, each with the reason.
    check: raises ValueError for settings that are not possible together.
  """

  arguments: Mapping[str, Argument]
  subject: str
  attention: str
  idle: Callable[[Mapping[str, Any]], dict[str, str]]
  check: Callable[[ml_collections.ConfigDict], None]

  def finish(
    self, config: ml_collections.ConfigDict, arg: str, **other: Argument
  ) -> ml_collections.ConfigDict:  # fmt: skip
    """Applies the arguments behind the config's name, and leaves out of the config what has no effect.

    Args:
      config: with every setting that there is.
      arg: such as "smgk,heads=2,seed=3".
      **other: arguments that have another meaning here.

    Raises:
      ValueError: an argument that is not known here, of the wrong type, without an effect beside the others, or not
        possible with them. The message says what is.
    """
    attention, texts = arguments.split(arg, words=names.VARIANTS, default=self.attention)
    config.model.attention = attention
    table = {name: argument for name, argument in self.arguments.items() if _has(config, argument.path)} | other
    for name, value in arguments.read(texts, table, of=config[self.subject]).items():
      _set(config, table[name].path, value)
    self.settle(config, {table[name].path: f"{name}={text}" for name, text in texts.items()})
    return config

  def settle(self, config: ml_collections.ConfigDict, chosen: Mapping[str, str]) -> None:
    """Takes out of a config what has no effect beside the rest, and checks what goes together.

    Args:
      config: to be changed.
      chosen: what the user chose, by its path, as the user wrote it.

    Raises:
      ValueError: the user chose a setting that has no effect, or settings that are not possible together.
    """
    checks.one_of("model.attention", config.model.attention, names.VARIANTS)
    idle = self.idle(config)
    for path, written in chosen.items():
      if path in idle:
        used = sorted(name for name, arg in self.arguments.items() if arg.path not in idle and _has(config, arg.path))
        whose = f"{config[self.subject]} with {config.model.attention}"
        raise ValueError(f"{written} has no effect: {idle[path]}; {whose} takes {', '.join(used)}")
    with config.unlocked():
      for path in idle:
        _remove(config, path)
    check_run(config)
    self.check(config)


def check_run(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for settings of a run that are not possible together."""
  if config.accumulation_steps < 1 or config.batch_size % config.accumulation_steps:
    raise ValueError(f"accumulation: expected a divisor of batch={config.batch_size}, got {config.accumulation_steps}")
  warmup, steps = config.optimizer.warmup_steps, config.num_steps
  if config.optimizer.schedule == "one_cycle" and not 1 <= warmup < steps:
    raise ValueError(f"warmup: expected at least 1 and less than steps={steps} with one_cycle, got {warmup}")


def _has(config: Any, path: str) -> bool:
  for part in path.split("."):
    if part not in config:
      return False
    config = config[part]
  return True


def _set(config: Any, path: str, value: Any) -> None:
  *parts, last = path.split(".")
  for part in parts:
    config = config[part]
  config[last] = value


def _remove(config: Any, path: str) -> None:
  """Takes a setting out, and what is empty without it."""
  first, _, rest = path.partition(".")
  if first in config:
    if rest:
      _remove(config[first], rest)
    if not rest or not config[first]:
      del config[first]
