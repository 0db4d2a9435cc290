"""Orbax prints tracebacks of errors that it also raises, and what was asked for; here they are kept off the screen."""

import contextlib
import gc
import logging
import sys
import time
import traceback
from collections.abc import Iterator
from typing import Any

import absl.logging

SECONDS_TO_END = 0.5


@contextlib.contextmanager
def without_orbax_errors() -> Iterator[None]:
  """Within it Orbax logs no errors, unless absl's verbosity is that of INFO or more.

  At the first array that cannot be read or written Orbax abandons all others, and each of these complains to Python of
  an event loop that is gone: that is not shown either. An error that leaves the block waits for them to end.
  """
  hook = sys.unraisablehook

  def filtered(unraisable: Any) -> None:
    code = getattr(unraisable.object, "cr_code", None)
    if "Event loop is closed" not in str(unraisable.exc_value) and "orbax" not in getattr(code, "co_filename", ""):
      hook(unraisable)

  def shown(record: logging.LogRecord) -> bool:
    from_orbax = record.name == "asyncio" or "orbax" in record.pathname
    return not from_orbax or record.levelno < logging.ERROR or absl.logging.get_verbosity() >= absl.logging.INFO

  loggers = (absl.logging.get_absl_logger(), logging.getLogger("asyncio"))
  sys.unraisablehook = filtered
  for logger in loggers:
    logger.addFilter(shown)
  try:
    yield
  except Exception as error:
    release(error)
    gc.collect()
    time.sleep(SECONDS_TO_END)
    raise
  finally:
    sys.unraisablehook = hook
    for logger in loggers:
      logger.removeFilter(shown)


@contextlib.contextmanager
def without_read_only_warning() -> Iterator[None]:
  """Within it Orbax does not warn that a directory is only read, where that is what was asked for."""

  def shown(record: logging.LogRecord) -> bool:
    return "directory is read only" not in record.getMessage()

  logger = absl.logging.get_absl_logger()
  logger.addFilter(shown)
  try:
    yield
  finally:
    logger.removeFilter(shown)


def release(error: BaseException | None) -> None:
  """Lets go of what the frames of an error and of its causes hold."""
  while error is not None:
    traceback.clear_frames(error.__traceback__)
    error = error.__cause__ or error.__context__
