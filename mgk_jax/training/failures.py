"""The ways in which a run ends before its last step, and how a command reports them."""

import contextlib
import sys
from collections.abc import Iterator


class TrainingStopped(Exception):
  """A run that cannot go on; the message says why, what is kept, and what to do."""


class Interrupted(Exception):
  """A run that was asked to stop; it is saved, and `exit_code` is what a shell expects after that signal."""

  def __init__(self, message: str, exit_code: int):
    super().__init__(message)
    self.exit_code = exit_code


@contextlib.contextmanager
def reported(*expected: type[Exception]) -> Iterator[None]:
  """Ends a command with a message instead of a traceback: for the above and for other `expected` kinds of errors."""
  try:
    yield
  except Interrupted as interruption:
    print(interruption, file=sys.stderr, flush=True)
    sys.exit(interruption.exit_code)
  except Exception as error:
    if not isinstance(error, (TrainingStopped, *expected)):
      raise
    sys.exit(f"{error}")
