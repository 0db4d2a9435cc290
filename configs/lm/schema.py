"""All settings of a run: their values in the paper, and the arguments that change them."""

from collections.abc import Mapping

import ml_collections

import mgk_jax
from configs import schema
from configs.arguments import Argument, Kind, flag, whole
from configs.lm import effects

DEFAULT_ATTENTION = "mgk"


def _ascending(text: str) -> list[int]:
  values = [whole().read(part) for part in text.split("/")] if text != "none" else []
  if values != sorted(set(values)):
    raise ValueError(text)
  return values


_CUTOFFS = Kind("ascending numbers such as 20000/40000/200000, or none", _ascending)

ARGUMENTS: Mapping[str, Argument] = {
  **schema.RUN,  # `steps` is the most there may be, `epochs` as well: whichever ends first
  "epochs": Argument("num_epochs", whole(0)),  # 0: as many as `steps` allow
  "length": Argument("data.length", whole()),  # words of a segment, all that attention sees in training
  "carry_state": Argument("data.carry_state", flag()),  # from segment to segment: linear, mlk, smlk
  **schema.MODEL,
  "attention_bias": Argument("model.attention_bias", flag()),  # of the projections in attention
  "cutoffs": Argument("model.cutoffs", _CUTOFFS),  # of the adaptive softmax, by words' frequency
  "div_val": Argument("model.div_val", whole()),  # by what word vectors get narrower from cluster to cluster
  "tie_embeddings": Argument("model.tie_embeddings", flag()),  # one table for inputs and outputs
  "tie_projections": Argument("model.tie_projections", flag()),  # the same of projections, with div_val > 1
  **schema.OPTIMIZER,
}


def paper(dataset: str, *, length: int = 256) -> ml_collections.ConfigDict:
  """The paper's setting (Section 3.2 and Appendix A.1.2), with every setting that there is; a corpus adds its own.

  It is the small configuration of Schlag et al. (2021), whom the paper follows: 16 layers, 128 wide, 8 heads of 16
  whatever their number, Adam with a cosine schedule.
  """
  return ml_collections.ConfigDict(
    {
      "dataset": dataset,
      "seed": 0,
      "num_epochs": 120,
      "num_steps": 500_000,
      "batch_size": 96,
      "accumulation_steps": 1,
      "eval_every": 4_000,
      "checkpoint_every": 1_000,
      "log_every": 100,
      "data": {"length": length, "carry_state": False},
      "model": {
        "attention": DEFAULT_ATTENTION,
        "num_layers": 16,
        "emb_dim": 128,
        "mlp_dim": 2_048,
        "num_heads": 8,
        "head_dim": 16,
        **schema.mixture(),
        "attention_bias": False,
        "cutoffs": [20_000, 40_000, 200_000],
        "div_val": 1,
        "tie_embeddings": True,
        "tie_projections": True,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.0,
        **schema.computation(),
      },
      "optimizer": {
        "schedule": "cosine",
        "learning_rate": 2.5e-4,
        "warmup_steps": 2_000,
        "b1": 0.9,
        "b1_peak": 0.85,
        "b2": 0.999,
        "eps": 1e-8,
        "weight_decay": 0.0,
        "clip_norm": 0.25,
      },
      "mesh": {"data": -1, "model": 1},
    }
  )


def _check(config: ml_collections.ConfigDict) -> None:
  """Raises ValueError for settings that are not possible together."""
  # The number of words is the corpus's; any that is large enough will do here.
  mgk_jax.LanguageModelConfig(vocab_size=2**31, max_len=config.data.length, **config.model)
  if config.num_epochs < 0:
    raise ValueError(f"epochs: expected at least 0, got {config.num_epochs}")
  if config.data.get("carry_state") and config.accumulation_steps > 1:
    raise ValueError(
      f"carry_state: expected accumulation=1, as a state belongs to a row, got {config.accumulation_steps}"
    )


SCHEMA = schema.Schema(ARGUMENTS, "dataset", DEFAULT_ATTENTION, effects.idle, _check)
finish, settle = SCHEMA.finish, SCHEMA.settle
