"""By which metric the best step of a run is chosen."""

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Measure:
  """A metric, and whether it is better high or low."""

  name: str
  highest: bool

  def better(self, metrics: Mapping[str, float], than: Mapping[str, float]) -> bool:
    """Whether one evaluation is better than another; no, if they are equal."""
    a, b = metrics[self.name], than[self.name]
    return a > b if self.highest else a < b

  def best(self, by_step: Mapping[int, Mapping[str, float]]) -> int:
    """The step with the best evaluation; of equal ones the first."""
    sign = -1 if self.highest else 1
    return min(by_step, key=lambda step: (sign * by_step[step][self.name], step))


ACCURACY = Measure("accuracy", highest=True)
LOSS = Measure("loss", highest=False)
