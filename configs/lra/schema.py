"""All settings of a run: their values in the paper, and the arguments that change them."""

from collections.abc import Mapping, Sequence
from typing import Any, get_args

import ml_collections
from ml_collections import config_dict

import mgk_jax
from configs import arguments
from configs.arguments import Argument, Kind, flag, number, one_of, positive, whole
from configs.lra import effects
from mgk_jax.kernels import checks, feature_maps
from mgk_jax.nn import choices, config as nn_config, initializers, names
from mgk_jax.training import optimizer

DEFAULT_ATTENTION = "smgk"

_AXIS = Kind("-1 or a whole number >= 1", lambda text: -1 if text == "-1" else whole().read(text))

ARGUMENTS: Mapping[str, Argument] = {
  "seed": Argument("seed", whole(0)),  # of parameters, dropout and the order of the data
  "steps": Argument("num_steps", whole()),
  "batch": Argument("batch_size", whole()),
  "accumulation": Argument("accumulation_steps", whole()),  # parts into which a batch is cut to save memory
  "eval_every": Argument("eval_every", whole()),
  "checkpoint_every": Argument("checkpoint_every", whole(0)),  # besides those at evaluations; 0: none
  "log_every": Argument("log_every", whole()),
  "length": Argument("data.length", whole()),  # longer sequences are cut
  "pad_to": Argument("data.pad_to", whole(0)),  # static length of the batches; 0: `length`
  "protocol": Argument("data.protocol", one_of("lra", "holdout")),  # holdout: text only
  "source": Argument("data.source", one_of("generated", "files")),  # this one and the next eight: listops only
  "data_seed": Argument("data.generator.seed", whole(0)),
  "num_train": Argument("data.generator.num_train", whole()),
  "num_valid": Argument("data.generator.num_valid", whole()),
  "num_test": Argument("data.generator.num_test", whole()),
  "min_length": Argument("data.generator.min_length", whole(0)),  # expressions have more tokens than this
  "max_length": Argument("data.generator.max_length", whole()),  # and fewer than this
  "max_depth": Argument("data.generator.max_depth", whole(2)),
  "max_args": Argument("data.generator.max_args", whole(2)),
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
  "pooling": Argument("model.pooling", one_of(*nn_config.POOLINGS)),
  "classifier_dim": Argument("model.classifier_dim", whole()),
  "dropout": Argument("model.dropout_rate", number(below=1)),
  "attention_dropout": Argument("model.attention_dropout_rate", number(below=1)),  # softmax, mgk, smgk
  "dtype": Argument("model.dtype", one_of("float32", "bfloat16")),  # of the computation
  "implementation": Argument("model.implementation", one_of(*(name for name in choices.IMPLEMENTATIONS if name))),
  "remat": Argument("model.remat", flag()),  # compute activations again in the backward pass
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


def paper(task: str, *, length: int) -> ml_collections.ConfigDict:
  """What the paper's experiments have in common, with every setting that there is; a task's file adds its own.

  The paper follows the Nyströmformer's configuration: two layers, 64 wide, heads of 32. There are two heads unless
  said otherwise, as there; the paper's tables have one, two and four, and eight of the baselines.

  b1 is what the authors' one-cycle schedule makes of it, 0.95 at both ends and 0.85 at the peak, although they give
  AdamW 0.9; `b1=0.9,b1_peak=0.9` keeps it there.
  """
  return ml_collections.ConfigDict(
    {
      "task": task,
      "seed": 0,
      "num_steps": 5_000,
      "batch_size": 32,
      "accumulation_steps": 1,
      "eval_every": 50,
      "checkpoint_every": 100,
      "log_every": 10,
      "data": {"length": length, "pad_to": 0, "protocol": "lra"},
      "model": {
        "attention": DEFAULT_ATTENTION,
        "num_layers": 2,
        "emb_dim": 64,
        "mlp_dim": 128,
        "num_heads": 2,
        "head_dim": 32,
        "num_components": 2,
        "estep": "soft",
        "prior": "sgd",
        "prior_scope": "head",
        "variance": config_dict.placeholder(float),  # None: √head_dim
        "learn_variance": False,
        "feature_map": choices.DEFAULT_FEATURE_MAP,
        "shift_init": "paper",
        "pooling": "mean",
        "classifier_dim": 128,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        "dtype": "float32",
        "implementation": config_dict.placeholder(str),  # None: the best one
        "remat": False,
      },
      "optimizer": {
        "schedule": "one_cycle",
        "learning_rate": 1e-4,
        "warmup_steps": 1_000,
        "b1": 0.95,
        "b1_peak": 0.85,
        "b2": 0.999,
        "eps": 1e-6,
        "weight_decay": 0.0,
        "clip_norm": 0.0,
      },
      "mesh": {"data": -1, "model": 1},
    }
  )


def generated_data() -> dict[str, Any]:
  """The settings of ListOps data, with the Long Range Arena's distribution and numbers."""
  return {
    "source": "generated",
    "generator": {
      "seed": 0,
      "num_train": 96_000,
      "num_valid": 2_000,
      "num_test": 2_000,
      "min_length": 500,
      "max_length": 2_000,
      "max_depth": 10,
      "max_args": 10,
    },
  }


def finish(
  config: ml_collections.ConfigDict, arg: str, *, protocols: Sequence[str] = ("lra",)
) -> ml_collections.ConfigDict:
  """Applies the arguments behind the config's name, and leaves out of the config what has no effect.

  Raises:
    ValueError: an argument that is not known here, of the wrong type, without an effect beside the others, or not
      possible with them. The message says what is.
  """
  attention, texts = arguments.split(arg, words=names.VARIANTS, default=DEFAULT_ATTENTION)
  config.model.attention = attention
  table = {name: argument for name, argument in ARGUMENTS.items() if _has(config, argument.path)}
  table["protocol"] = Argument("data.protocol", one_of(*protocols))
  for name, value in arguments.read(texts, table, of=config.task).items():
    _set(config, table[name].path, value)
  settle(config, {table[name].path: f"{name}={text}" for name, text in texts.items()})
  return config


def settle(config: ml_collections.ConfigDict, chosen: Mapping[str, str]) -> None:
  """Takes out of a config what has no effect beside the rest, and checks what goes together.

  Args:
    config: to be changed.
    chosen: what the user chose, by its path, as the user wrote it.

  Raises:
    ValueError: the user chose a setting that has no effect, or settings that are not possible together.
  """
  checks.one_of("model.attention", config.model.attention, names.VARIANTS)
  idle = effects.idle(config)
  for path, written in chosen.items():
    if path in idle:
      used = sorted(name for name, arg in ARGUMENTS.items() if arg.path not in idle and _has(config, arg.path))
      whose = f"{config.task} with {config.model.attention}"
      raise ValueError(f"{written} has no effect: {idle[path]}; {whose} takes {', '.join(used)}")
  with config.unlocked():
    for path in idle:
      _remove(config, path)
  _check(config)


def _check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for settings that are not possible together."""
  # The numbers of tokens and classes are the task's; any will do here.
  mgk_jax.ClassifierConfig(vocab_size=2, num_classes=2, max_len=config.data.length, **config.model)
  if config.data.pad_to > config.data.length:
    raise ValueError(f"pad_to: expected at most length={config.data.length}, got {config.data.pad_to}")
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
