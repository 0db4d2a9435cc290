"""Which settings have no effect beside others: they are left out of a config, so that none can be set in vain."""

from collections.abc import Mapping
from typing import Any

from mgk_jax.nn import names

MIXTURE = ("num_components", "estep", "prior", "prior_scope", "variance", "learn_variance", "shift_init")


def idle(config: Mapping[str, Any]) -> dict[str, str]:
  """Settings of any program without an effect, by their paths such as "model.estep", each with the reason.

  A setting may be named whether `config` has it or not. What is not in `config` counts as its default.
  """
  reasons = {f"model.{name}": reason for name, reason in _idle_in_model(config["model"]).items()}
  schedule = config["optimizer"]["schedule"]
  if schedule != "one_cycle":
    reasons["optimizer.b1_peak"] = f"schedule={schedule} keeps b1 constant"
  return reasons


def _idle_in_model(model: Mapping[str, Any]) -> dict[str, str]:
  attention = model["attention"]
  kernel, keys = (names.VARIANTS[attention][name] for name in ("kernel", "keys"))
  reasons: dict[str, str] = {}

  def mark(reason: str, *settings: str) -> None:
    for setting in settings:
      reasons.setdefault(setting, reason)

  if attention in ("softmax", "linear"):
    mark(f"{attention} attention has one key per position and no mixture", *MIXTURE)
  if kernel != "gaussian":
    mark("only mgk and smgk have an E step and variances", "estep", "variance", "learn_variance")
  if kernel == "linear":
    mark("linear attention has no attention weights to drop", "attention_dropout_rate")
  else:
    mark("only linear, mlk and smlk have a feature map", "feature_map")
  if keys != "shifted":
    mark("only smgk and smlk have shifts", "shift_init")
  if model.get("num_components", 2) == 1:
    mark("there is no choice among one component", "estep", "prior", "prior_scope")
  prior = model.get("prior", "sgd")
  if model.get("estep", "soft") == "hard":
    mark("the hard E step has no prior per head (Eqn 12)", "prior_scope")
    if prior != "em":
      mark("the hard E step has no prior (Eqn 12); prior=em counts the nearest components beside it", "prior")
  if prior == "em":
    mark("an EM prior is always per head and position", "prior_scope")
  if prior == "fixed":
    mark("a fixed prior is the same everywhere", "prior_scope")
  return reasons
