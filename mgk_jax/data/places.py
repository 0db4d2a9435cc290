"""Where prepared data lie, who may write there, and what is in a folder."""

import contextlib
import fcntl
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from mgk_jax.data.errors import DataError


def default_prepared_dir() -> Path:
  """Where prepared data live unless the user says otherwise: $MGK_DATA_DIR, or else ~/.cache/mgk_jax."""
  return Path(os.environ.get("MGK_DATA_DIR") or "~/.cache/mgk_jax").expanduser()


@contextlib.contextmanager
def alone(prepared: Path, root: Path, name: str) -> Iterator[None]:
  """Waits until no other process prepares the same data; a process that was killed does not count.

  Args:
    prepared: where the data are to be, below `root`.
    root: where all prepared data are.
    name: what a message calls them.

  Raises:
    DataError: nothing can be written there.
  """
  lock = root / f".{'-'.join(prepared.relative_to(root).parts)}.lock"
  try:
    root.mkdir(parents=True, exist_ok=True)
    file = lock.open("a")
  except OSError as error:
    raise DataError(f"{root}: cannot be written: {error.strerror or error}; see --prepared_dir") from error
  with file:
    try:
      fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
      print(f"{name}: another process is preparing it; waiting for that one", file=sys.stderr, flush=True)
      fcntl.flock(file, fcntl.LOCK_EX)
    yield


def contents(folder: Path) -> str:
  """The first names in a folder, to tell a user what is there instead of what should be."""
  names = sorted(path.name + "/" * path.is_dir() for path in folder.iterdir())
  more = f" and {len(names) - 8:,} more" if len(names) > 8 else ""
  return ", ".join(names[:8]) + more if names else "nothing"
