"""How a run shows where it is: a bar on a terminal, plain lines elsewhere."""

import sys
import time
from collections.abc import Mapping
from typing import TextIO

import tqdm

SECONDS_BETWEEN_LINES = 30.0


class Progress:
  """Steps done, the latest metrics, speed and the time that is left."""

  def __init__(
    self, name: str, *, total: int, done: int = 0, unit: str = "step", leave: bool = True, stream: TextIO | None = None
  ):
    """Starts at `done` of `total`; with `leave=False` nothing stays to be seen when it has been quick."""
    self.stream = sys.stderr if stream is None else stream
    self.name, self.unit, self.total, self.done = name, unit, total, done
    self.is_terminal, self.leave = self.stream.isatty(), leave
    self._started, self._first = time.monotonic(), done
    self._last_line = self._started
    self._shown: dict[str, str] = {}
    self._bar = (
      tqdm.tqdm(total=total, initial=done, desc=name, unit=unit, file=self.stream, dynamic_ncols=True, leave=leave)
      if self.is_terminal
      else None
    )

  def __enter__(self) -> "Progress":
    return self

  def __exit__(self, *_: object) -> None:
    if self._bar is not None:
      self._bar.close()
    elif self.done > self._first and self.leave:
      self._line()

  def advance(self, metrics: Mapping[str, float | str] | None = None, steps: int = 1) -> None:
    """Counts steps, and shows metrics with them."""
    self.done += steps
    if metrics:
      self._shown = {name: value if isinstance(value, str) else f"{value:.3f}" for name, value in metrics.items()}
    if self._bar is not None:
      self._bar.update(steps)
      self._bar.set_postfix(self._shown, refresh=False)
    elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
      self._line()

  def say(self, message: str) -> None:
    """A line of its own, above the bar."""
    tqdm.tqdm.write(message, file=self.stream)
    self.stream.flush()

  def _line(self) -> None:
    self._last_line = time.monotonic()
    seconds = self._last_line - self._started
    rate = (self.done - self._first) / seconds if seconds > 0 else 0.0
    left = f"{(self.total - self.done) / rate / 60:.1f} min left" if rate else ""
    facts = [f"{name} {value}" for name, value in self._shown.items()]
    parts = [f"{self.name}: {self.unit} {self.done}/{self.total}", *facts, f"{rate:.2f} {self.unit}s/s", left]
    print(", ".join(part for part in parts if part), file=self.stream, flush=True)
