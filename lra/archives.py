"""Reading the members of tar archives as a stream, however they are compressed."""

import bz2
import contextlib
import gzip
import io
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from lra.task import DataError
from mgk_jax.training.progress import Progress

_CHUNK = 1_000_000
_OPENERS: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
  b"\x1f\x8b": lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file)),
  b"\xfd7zXZ\x00": lambda file: cast(IO[bytes], lzma.LZMAFile(file)),
  b"BZh": lambda file: cast(IO[bytes], bz2.BZ2File(file)),
}


class _Counted(io.RawIOBase):
  """A file that shows how far it has been read."""

  def __init__(self, file: IO[bytes], progress: Progress):
    self.file, self.progress, self.done = file, progress, 0

  def readable(self) -> bool:
    return True

  def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
    chunk = self.file.read(len(buffer))
    buffer[: len(chunk)] = chunk
    self.done += len(chunk)
    self.progress.advance(steps=self.done // _CHUNK - self.progress.done)
    return len(chunk)


@contextlib.contextmanager
def _reading(archive: Path) -> Iterator[None]:
  """Says of errors that they are the archive's."""
  try:
    yield
  except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
    raise DataError(f"{archive}: not a tar archive, or damaged or cut short ({error}); get it again") from error
  except OSError as error:
    raise DataError(f"{archive}: cannot be read: {error.strerror or error}") from error


class Member:
  """A file in an archive, to be read before the next one is asked for."""

  def __init__(self, archive: Path, file: IO[bytes]):
    self._archive, self._file = archive, file

  def read(self, size: int = -1) -> bytes:
    """The next bytes, or all; DataError if the archive is damaged."""
    with _reading(self._archive):
      return self._file.read(size)


def members(archive: Path, wanted: Callable[[PurePosixPath], bool]) -> Iterator[tuple[PurePosixPath, Member]]:
  """The regular files of an archive whose path is wanted.

  Links, devices and paths that lead out of the archive are passed over.

  Raises:
    DataError: while iterating, if it is not a tar archive, or damaged, or cut short.
  """
  with contextlib.ExitStack() as stack:
    with _reading(archive):
      file = stack.enter_context(archive.open("rb"))
      start = file.read(6)
      file.seek(0)
      progress = Progress(f"reading {archive.name}", total=archive.stat().st_size // _CHUNK, unit="MB")
      raw = io.BufferedReader(_Counted(file, stack.enter_context(progress)), _CHUNK)
      opener = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
      stream = stack.enter_context(opener(raw)) if opener else raw
      tar = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
    while (member := _next(archive, tar)) is not None:
      path = PurePosixPath(member.name)
      if member.isfile() and not path.is_absolute() and ".." not in path.parts and wanted(path):
        yield path, Member(archive, cast(IO[bytes], tar.extractfile(member)))
      tar.members = []  # type: ignore[attr-defined]  # else it remembers all of them, which may be millions
    with _reading(archive):
      while stream.read(_CHUNK):  # to the end, where the compressed file has its checksum
        pass


def _next(archive: Path, tar: tarfile.TarFile) -> tarfile.TarInfo | None:
  with _reading(archive):
    return tar.next()


def unpack(archive: Path, wanted: Callable[[PurePosixPath], bool], folder: Path) -> None:
  """Writes the wanted files of an archive into a folder, which comes into being only once all are there.

  Raises:
    DataError: the archive cannot be read, the files cannot be written, or there are none.
  """
  unfinished = folder.with_name(f"{folder.name}.unfinished")
  number = 0
  try:
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for path, file in members(archive, wanted):
      target = unfinished / path
      target.parent.mkdir(parents=True, exist_ok=True)
      with target.open("wb") as out:
        while chunk := file.read(_CHUNK):
          out.write(chunk)
      number += 1
    if number:
      unfinished.rename(folder)
  except OSError as error:
    raise DataError(
      f"{archive}: cannot be unpacked to {unfinished}: {error.strerror or error}; "
      "unpack it elsewhere and name that folder with --data_dir"
    ) from error
  finally:
    shutil.rmtree(unfinished, ignore_errors=True)
  if not number:
    raise DataError(f"{archive}: none of the expected files is in this archive")
