"""All settings of a run: their values in the paper, and the arguments that change them."""

from collections.abc import Mapping, Sequence
from typing import Any

import ml_collections

import mgk_jax
from configs import schema
from configs.arguments import Argument, one_of, whole
from configs.lra import effects
from mgk_jax.nn import config as nn_config

DEFAULT_ATTENTION = "smgk"

ARGUMENTS: Mapping[str, Argument] = {
  **schema.RUN,
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
  **schema.MODEL,
  "pooling": Argument("model.pooling", one_of(*nn_config.POOLINGS)),
  "classifier_dim": Argument("model.classifier_dim", whole()),
  **schema.OPTIMIZER,
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
        **schema.mixture(),
        "pooling": "mean",
        "classifier_dim": 128,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.1,
        **schema.computation(),
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
  return SCHEMA.finish(config, arg, protocol=Argument("data.protocol", one_of(*protocols)))


def _check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for settings that are not possible together."""
  # The numbers of tokens and classes are the task's; any will do here.
  mgk_jax.ClassifierConfig(vocab_size=2, num_classes=2, max_len=config.data.length, **config.model)
  if config.data.pad_to > config.data.length:
    raise ValueError(f"pad_to: expected at most length={config.data.length}, got {config.data.pad_to}")


SCHEMA = schema.Schema(ARGUMENTS, "task", DEFAULT_ATTENTION, effects.idle, _check)
settle = SCHEMA.settle
