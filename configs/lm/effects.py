"""Which settings have no effect beside others in language models."""

from collections.abc import Mapping
from typing import Any

from configs import effects
from mgk_jax.nn import names


def idle(config: Mapping[str, Any]) -> dict[str, str]:
  """As `configs.effects.idle`, with the settings of data and of the adaptive softmax."""
  reasons = effects.idle(config)
  if names.VARIANTS[config["model"]["attention"]]["kernel"] != "linear":
    reasons["data.carry_state"] = "only linear, mlk and smlk have a state that can be carried along"
  if config["model"].get("div_val", 1) == 1:
    reasons["model.tie_projections"] = "with div_val=1 all word vectors are of one width, without projections"
  return reasons
