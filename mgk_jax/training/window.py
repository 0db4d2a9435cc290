"""Means of the metrics between two records, and the time that a run takes."""

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Mapping
from typing import Any

NOT_METRICS = ("count", "tokens")
SPEED_OVER = 20  # steps over which a speed is taken


def means(sums: Mapping[str, float]) -> dict[str, float]:
  """Sums over examples as means; "grad_norm", which is one number a step, stays."""
  count = sums["count"]
  return {
    name: value if name == "grad_norm" else value / count for name, value in sums.items() if name not in NOT_METRICS
  }


@dataclasses.dataclass
class Window:
  """Metrics since the last record."""

  steps: int = 0
  sums: dict[str, float] = dataclasses.field(default_factory=dict)

  def add(self, sums: Mapping[str, float]) -> None:
    """Adds a step."""
    self.steps += 1
    self.sums = {name: self.sums.get(name, 0.0) + value for name, value in sums.items()}

  def close(self) -> dict[str, float]:
    """Means over the window, which is then empty."""
    sums = self.sums | ({"grad_norm": self.sums["grad_norm"] / self.steps} if "grad_norm" in self.sums else {})
    self.steps, self.sums = 0, {}
    return means(sums)


class Stopwatch:
  """Time since the run began, all its parts together, and what of it went into evaluations."""

  def __init__(self, seconds: float = 0.0, eval_seconds: float = 0.0):
    self._before, self._eval = seconds, eval_seconds
    self._started = time.monotonic()
    self._recent: list[tuple[float, float]] = []  # moments of the last steps, evaluations left out, and their tokens

  @property
  def seconds(self) -> float:
    """In all."""
    return self._before + time.monotonic() - self._started

  @property
  def train_seconds(self) -> float:
    """Without evaluations."""
    return self.seconds - self._eval

  @contextlib.contextmanager
  def evaluating(self) -> Iterator[None]:
    """Counts a block as evaluation."""
    started = time.monotonic()
    try:
      yield
    finally:
      self._eval += time.monotonic() - started

  def speeds(self, sums: Mapping[str, float] | None = None) -> dict[str, float]:
    """Steps and tokens a second over the last steps; with `sums`, counts one more."""
    if sums is not None:
      self._recent = [*self._recent[-SPEED_OVER:], (self.train_seconds, sums.get("tokens", 0.0))]
    if len(self._recent) < 2:
      return {}
    span = self._recent[-1][0] - self._recent[0][0]
    tokens = sum(number for _, number in self._recent[1:])
    return {"steps/s": (len(self._recent) - 1) / span, **({"tokens/s": tokens / span} if tokens else {})}

  def so_far(self) -> dict[str, Any]:
    """What a checkpoint keeps."""
    return {"seconds": self.seconds, "eval_seconds": self._eval}
