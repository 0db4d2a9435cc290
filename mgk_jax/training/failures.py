"""The ways in which a run ends before its last step, and how a command reports them."""

import contextlib
import signal
import sys
import threading
from collections.abc import Iterator
from typing import NoReturn


class TrainingStopped(Exception):
  """A run that cannot go on; the message says why, what is kept, and what to do."""


class Interrupted(Exception):
  """A run that was asked to stop; it is saved, and `exit_code` is what a shell expects after that signal."""

  def __init__(self, message: str, exit_code: int):
    super().__init__(message)
    self.exit_code = exit_code


@contextlib.contextmanager
def reported(*expected: type[Exception]) -> Iterator[None]:
  """Ends a command with a message instead of a traceback: for the above and for other `expected` kinds of errors.

  SIGTERM and Ctrl-C end it in the same way while there is no training to be saved, as when data are prepared.
  """

  def terminate(number: int, _: object = None) -> NoReturn:
    print(f"\n{signal.Signals(number).name}: stopped. Start again with the same command.", file=sys.stderr, flush=True)
    sys.exit(128 + number)

  free = threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
  if free:
    signal.signal(signal.SIGTERM, terminate)
  try:
    yield
  except KeyboardInterrupt:
    terminate(signal.SIGINT)
  except Interrupted as interruption:
    print(interruption, file=sys.stderr, flush=True)
    sys.exit(interruption.exit_code)
  except Exception as error:
    if not isinstance(error, (TrainingStopped, *expected)):
      raise
    sys.exit(f"{error}")
  finally:
    if free:
      signal.signal(signal.SIGTERM, signal.SIG_DFL)
