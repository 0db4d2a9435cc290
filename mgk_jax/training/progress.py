"""How a run shows where it is: a bar on a terminal, plain lines elsewhere."""

import os
import sys
import time
from collections.abc import Mapping
from typing import Any, TextIO

import tqdm

SECONDS_BETWEEN_LINES = 30.0
COLUMNS, ROWS = 120, 24  # of a terminal that says it has none, where tqdm would show nothing


class Progress:
  """Steps done, the latest metrics, speed and the time that is left."""

  def __init__(
    self,
    name: str,
    *,
    total: int,
    done: int = 0,
    unit: str = "step",
    leave: bool = True,
    enabled: bool = True,
    stream: TextIO | None = None,
  ):
    """Starts at `done` of `total`; with `leave=False` nothing stays to be seen when it has been quick.

    With `enabled=False`, as in all processes but the first, nothing is shown at all.
    """
    self.enabled = enabled
    self.stream = sys.stderr if stream is None else stream
    self.name, self.unit, self.total, self.done = name, unit, total, done
    self.is_terminal, self.leave = enabled and self.stream.isatty(), leave
    self._first = done
    self._clock: tuple[float, int] | None = None  # when the first step was done, which may have taken long to compile
    self._last_line = time.monotonic()
    self._shown: dict[str, str] = {}
    self._bar = None
    if self.is_terminal:
      known = _columns(self.stream) > 0
      size: dict[str, Any] = {"dynamic_ncols": True} if known else {"ncols": COLUMNS, "nrows": ROWS}
      self._bar = tqdm.tqdm(total=total, initial=done, desc=name, unit=unit, file=self.stream, leave=leave, **size)

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
    self._clock = self._clock or (time.monotonic(), self.done)
    if metrics:
      self._shown = {name: value if isinstance(value, str) else f"{value:.3f}" for name, value in metrics.items()}
    if self._bar is not None:
      self._bar.update(steps)
      self._bar.set_postfix(self._shown, refresh=False)
    elif time.monotonic() - self._last_line >= SECONDS_BETWEEN_LINES:
      self._line()

  def say(self, message: str) -> None:
    """A line of its own, above the bar."""
    if self.enabled:
      tqdm.tqdm.write(message, file=self.stream)
      self.stream.flush()

  def _line(self) -> None:
    if not self.enabled:
      return
    self._last_line = time.monotonic()
    started, first = self._clock or (self._last_line, self.done)
    seconds, steps = self._last_line - started, self.done - first
    parts = [f"{self.name}: {self.unit} {self.done}/{self.total}"]
    parts += [f"{name} {value}" for name, value in self._shown.items()]
    if steps and seconds > 0:
      speed = f"{self.unit}{'es' if self.unit.endswith('ch') else 's'}/s"
      parts += [] if speed in self._shown else [f"{speed} {steps / seconds:.3f}"]
      parts.append(f"{(self.total - self.done) * seconds / steps / 60:.1f} min left")
    print(", ".join(parts), file=self.stream, flush=True)


def _columns(terminal: TextIO) -> int:
  try:
    return os.get_terminal_size(terminal.fileno()).columns
  except (OSError, ValueError):
    return 0
