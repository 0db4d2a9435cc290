"""SIGTERM and Ctrl-C as a wish that the training loop grants at its next step."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType


class StopRequest:
  """Whether somebody asked to stop, and by which signal."""

  def __init__(self) -> None:
    self.signal: signal.Signals | None = None

  def __bool__(self) -> bool:
    return self.signal is not None

  @property
  def exit_code(self) -> int:
    """128 + the number of the signal, as shells count."""
    return 128 + self.signal if self.signal else 0


@contextlib.contextmanager
def listen() -> Iterator[StopRequest]:
  """Turns the first SIGTERM or SIGINT within the block into a `StopRequest`; a second one acts as it always does."""
  request = StopRequest()
  if threading.current_thread() is not threading.main_thread():
    yield request  # only the main thread can take signals; the run then ends as its thread does
    return
  previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

  def restore() -> None:
    for number, handler in previous.items():
      signal.signal(number, handler)

  def handle(number: int, _: FrameType | None) -> None:
    request.signal = signal.Signals(number)
    restore()
    print(f"\n{request.signal.name}: saving and stopping after this step …", file=sys.stderr, flush=True)

  for number in previous:
    signal.signal(number, handle)
  try:
    yield request
  finally:
    restore()
