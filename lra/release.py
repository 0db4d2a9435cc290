"""The one archive of the Long Range Arena's authors, `lra_release.gz`, and the folders that it unpacks to."""

from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from lra import sources
from mgk_jax.data import DataError, archives, places

ARCHIVE = sources.ARCHIVES["retrieval"].name
_INSIDE = (".", "lra_release", "lra_release/lra_release")  # the archive has a folder of its own name within itself


def locate(
  data_dir: Path | None,
  task: str,
  *,
  folders: Sequence[str],
  holds: Callable[[Path], bool],
  wanted: Callable[[PurePosixPath], bool],
  looking_for: str,
) -> Path:
  """The folder with the files of a task.

  Args:
    data_dir: the folder itself, one above it, the archive, or a folder with the archive. What is wanted of an archive
      is unpacked beside it, once, to a folder such as `lra_release-retrieval`.
    task: its name.
    folders: relative paths under which the files may lie.
    holds: whether a folder is the right one.
    wanted: whether a member of the archive belongs to the task.
    looking_for: says in an error what was not found.

  Raises:
    DataError: there is no such folder, or the archive cannot be unpacked.
  """
  if data_dir is None:
    raise DataError(f"{task}: expected --data_dir with {looking_for}, got none\n{sources.advice(task)}")
  if not data_dir.exists():
    raise DataError(f"{task}: {data_dir} does not exist\n{sources.advice(task)}")
  if data_dir.is_file():
    root = data_dir.with_name(f"{data_dir.name.split('.')[0]}-{task}")
    if not root.exists():
      archives.unpack(data_dir, wanted, root)
  else:
    root = data_dir
  for place in (root / inside / folder for inside in _INSIDE for folder in folders):
    if holds(place):
      return place
  if root == data_dir and (data_dir / ARCHIVE).is_file():
    return locate(data_dir / ARCHIVE, task, folders=folders, holds=holds, wanted=wanted, looking_for=looking_for)
  raise DataError(f"{task}: expected {looking_for} in {root}, found {places.contents(root)}\n{sources.advice(task)}")
