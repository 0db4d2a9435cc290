"""Which settings have no effect beside others in the Long Range Arena."""

from collections.abc import Mapping
from typing import Any

from configs import effects


def idle(config: Mapping[str, Any]) -> dict[str, str]:
  """As `configs.effects.idle`, with the settings of data."""
  reasons = effects.idle(config)
  if config["data"].get("source") == "files":
    generator = ("seed", "num_train", "num_valid", "num_test", "min_length", "max_length", "max_depth", "max_args")
    reasons |= {f"data.generator.{name}": "source=files generates nothing" for name in generator}
  return reasons
