"""Reading the members of archives as a stream: tar, however it is compressed, and zip."""

import bz2
import contextlib
import gzip
import io
import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import IO, cast

from mgk_jax.data.errors import DataError
from mgk_jax.training.progress import Progress

_CHUNK = 1_000_000
_ZIP = b"PK"
_OPENERS: dict[bytes, Callable[[IO[bytes]], IO[bytes]]] = {
  b"\x1f\x8b": lambda file: cast(IO[bytes], gzip.GzipFile(fileobj=file)),
  b"\xfd7zXZ\x00": lambda file: cast(IO[bytes], lzma.LZMAFile(file)),
  b"BZh": lambda file: cast(IO[bytes], bz2.BZ2File(file)),
}
_DAMAGE = (tarfile.TarError, zipfile.BadZipFile, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile)


class _Counted(io.RawIOBase):
  """A file that shows how far it has been read."""

  def __init__(self, file: IO[bytes], progress: Progress):
    self.file, self.progress, self.done = file, progress, 0

  def readable(self) -> bool:
    return True

  def seekable(self) -> bool:
    return self.file.seekable()

  def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
    return self.file.seek(offset, whence)

  def tell(self) -> int:
    return self.file.tell()

  def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
    chunk = self.file.read(len(buffer))
    buffer[: len(chunk)] = chunk
    self.done += len(chunk)
    self.progress.advance(steps=min(self.done // _CHUNK, self.progress.total) - self.progress.done)
    return len(chunk)


@contextlib.contextmanager
def _reading(archive: Path) -> Iterator[None]:
  """Says of errors that they are the archive's."""
  try:
    yield
  except _DAMAGE as error:
    kind = "zip" if archive.suffix == ".zip" else "tar"
    raise DataError(f"{archive}: not a {kind} archive, or damaged or cut short ({error}); get it again") from error
  except RuntimeError as error:  # a zip archive that is encrypted, or packed in a way that Python does not know
    raise DataError(f"{archive}: cannot be unpacked: {error}; unpack it by other means") from error
  except OSError as error:
    raise DataError(f"{archive}: cannot be read: {error.strerror or error}") from error


class Member:
  """A file in an archive, of `size` bytes, to be read before the next one is asked for."""

  def __init__(self, archive: Path, file: IO[bytes], size: int):
    self._archive, self._file, self.size = archive, file, size

  def read(self, size: int = -1) -> bytes:
    """The next bytes, or all; DataError if the archive is damaged."""
    with _reading(self._archive):
      return self._file.read(size)


def members(
  archive: Path, wanted: Callable[[PurePosixPath], bool], *, show: bool = True
) -> Iterator[tuple[PurePosixPath, Member]]:
  """The regular files of an archive whose path is wanted.

  Links, devices and paths that lead out of the archive are passed over.

  Args:
    archive: a tar archive, compressed or not, or a zip archive.
    wanted: whether to read a member.
    show: how far the archive has been read.

  Raises:
    DataError: while iterating, if it is not an archive, or damaged, or cut short.
  """

  def allowed(path: PurePosixPath) -> bool:
    return not path.is_absolute() and ".." not in path.parts and wanted(path)

  with contextlib.ExitStack() as stack:
    with _reading(archive):
      file = stack.enter_context(archive.open("rb"))
      start = file.read(6)
      file.seek(0)
      size = archive.stat().st_size // _CHUNK
      progress = stack.enter_context(Progress(f"reading {archive.name}", total=size, unit="MB", enabled=show))
      raw = io.BufferedReader(_Counted(file, progress), _CHUNK)
    is_zip = start.startswith(_ZIP) or archive.suffix == ".zip"
    yield from _of_zip(archive, raw, allowed) if is_zip else _of_tar(archive, raw, start, allowed)


def _of_zip(
  archive: Path, raw: IO[bytes], allowed: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, Member]]:
  with contextlib.ExitStack() as stack:
    with _reading(archive):
      opened = stack.enter_context(zipfile.ZipFile(raw))
    for info in opened.infolist():
      path = PurePosixPath(info.filename)
      if not info.is_dir() and allowed(path):
        with _reading(archive):
          file = stack.enter_context(opened.open(info))
        yield path, Member(archive, file, info.file_size)


def _of_tar(
  archive: Path, raw: IO[bytes], start: bytes, allowed: Callable[[PurePosixPath], bool]
) -> Iterator[tuple[PurePosixPath, Member]]:
  with contextlib.ExitStack() as stack:
    with _reading(archive):
      opener = next((opener for magic, opener in _OPENERS.items() if start.startswith(magic)), None)
      stream = stack.enter_context(opener(raw)) if opener else raw
      tar = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
    while (member := _next(archive, tar)) is not None:
      path = PurePosixPath(member.name)
      if member.isfile() and allowed(path):
        yield path, Member(archive, cast(IO[bytes], tar.extractfile(member)), member.size)
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
