"""Archives on the web, and how to get them: in parts if need be, and checked."""

import dataclasses
import hashlib
import http
import http.client
import re
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path

from mgk_jax.data.errors import DataError
from mgk_jax.training.progress import Progress

_CHUNK = 1_000_000
_TIMEOUT = 60.0  # seconds without a byte
_MAGIC = (("gz", "gzip", b"\x1f\x8b"), ("zip", "zip", b"PK"))  # how files with such names begin
_AGENT = "mgk_jax"  # some servers refuse Python's own name
_PAUSES = (1.0, 5.0, 15.0)  # seconds before each further try of a broken connection


@dataclasses.dataclass(frozen=True, kw_only=True)
class Archive:
  """An archive on the web.

  Attributes:
    url: where it is.
    name: of the file that is written.
    size: in bytes; None where only `about` is known.
    about: the size as people say it.
    sha256: None where it is not known; the archive's own check sums then show damage when it is read.
  """

  url: str
  name: str
  size: int | None
  about: str
  sha256: str | None


def advice(archive: Archive, command: str) -> str:
  """Where an archive is to be had, and what fetches and prepares it; `command` is that of the preparing program."""
  checksum = f"sha256 {archive.sha256}" if archive.sha256 else "its checksum is not published"
  return (
    f"The raw data are in {archive.url} ({archive.about}; {checksum}).\n"
    f"Fetch and prepare them: {command} --download\n"
    f"Or prepare what you have: {command} --data_dir=FOLDER_OR_ARCHIVE"
  )


class _Broken(Exception):
  """The connection ended before the file did."""


def fetch(archive: Archive, folder: Path, *, pauses: Sequence[float] = _PAUSES) -> Path:
  """Downloads an archive into a folder unless it is there; what a broken download left behind is continued.

  The file is written as `<name>.part` and gets its name once its length and its checksum are right.

  Args:
    archive: what to download.
    folder: is made if there is none.
    pauses: seconds to wait before each further try after a broken connection.

  Raises:
    DataError: the server does not have the file, the connection breaks too often, the disk has no room, or what came
      is not what is expected. The message says which, and what to do.
  """
  target, part = folder / archive.name, folder / f"{archive.name}.part"
  try:
    folder.mkdir(parents=True, exist_ok=True)
    if not target.exists():
      _fetch_part(archive, part, pauses)
      _verify(archive, part)
      part.rename(target)
    _verify(archive, target)
    return target
  except OSError as error:
    raise DataError(f"{part}: cannot be written: {error.strerror or error}") from error


def _fetch_part(archive: Archive, part: Path, pauses: Sequence[float]) -> None:
  for pause in (*pauses, None):
    try:
      return _fetch_rest(archive, part)
    except _Broken as error:
      if pause is None:
        done = part.stat().st_size if part.exists() else 0
        raise DataError(
          f"{archive.url}: the connection broke ({error}); {done:,} bytes are kept in {part}: run the same command "
          "again to continue, or download the file by other means and name it with --data_dir"
        ) from error
      time.sleep(pause)


def _fetch_rest(archive: Archive, part: Path) -> None:
  """Appends to `part` what is missing of the archive, or starts again if the server sends all of it."""
  done = part.stat().st_size if part.exists() else 0
  if archive.size is not None and done >= archive.size:
    return  # the check that follows tells whether it is right
  response = _open(archive.url, done)
  if response is None:
    return
  with response:
    start, total = _range(response.headers.get("Content-Range"))
    if response.status != http.HTTPStatus.PARTIAL_CONTENT or start != done:
      if response.status == http.HTTPStatus.PARTIAL_CONTENT:
        raise _Broken(f"asked for bytes from {done:,} on, the server sends those from {start:,} on")
      done, total = 0, int(response.headers.get("Content-Length") or 0)
    if archive.size is not None and total not in (0, archive.size):
      raise DataError(f"{archive.url}: expected {archive.size:,} bytes, the server offers {total:,}; not downloaded")
    free = shutil.disk_usage(part.parent).free
    if total - done > free:
      raise DataError(f"{part.parent}: expected room for {total - done:,} bytes, got {free:,}; see --download_dir")
    with (
      part.open("ab" if done else "wb") as file,
      Progress(archive.name, total=total // _CHUNK, done=done // _CHUNK, unit="MB") as progress,
    ):
      while chunk := _read(response):
        file.write(chunk)
        done += len(chunk)
        progress.advance(steps=done // _CHUNK - progress.done)
  if done < total:
    raise _Broken(f"{done:,} of {total:,} bytes came")


def _open(url: str, done: int) -> http.client.HTTPResponse | None:
  """The server's answer, from byte `done` on if it can do that; None if there is nothing after that byte."""
  try:
    headers = {"User-Agent": _AGENT} | ({"Range": f"bytes={done}-"} if done else {})
    response: http.client.HTTPResponse = urllib.request.urlopen(
      urllib.request.Request(url, headers=headers), timeout=_TIMEOUT
    )
    return response
  except urllib.error.HTTPError as error:
    with error:
      if error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
        if _range(error.headers.get("Content-Range"))[1] == done:
          return None
        return _open(url, 0)
      if error.code >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        raise _Broken(f"the server answers {error.code} {error.reason}") from error
      raise DataError(
        f"{url}: the server answers {error.code} {error.reason}; the file may have moved: download it by other means "
        "and name it with --data_dir"
      ) from error
  except (http.client.HTTPException, OSError) as error:
    raise _Broken(str(getattr(error, "reason", error)) or type(error).__name__) from error


def _read(response: http.client.HTTPResponse) -> bytes:
  try:
    return response.read(_CHUNK)
  except (http.client.HTTPException, OSError) as error:
    raise _Broken(str(error) or type(error).__name__) from error


def _range(header: str | None) -> tuple[int, int]:
  """The first byte and the length of the whole file by a header such as `bytes 100-199/1000`; 0 for what is unsaid."""
  match = re.fullmatch(r"bytes (?:(\d+)-\d+|\*)/(\d+|\*)", header or "")
  first, total = match.groups() if match else (None, None)
  return int(first or 0), int(total) if total and total != "*" else 0


def _verify(archive: Archive, path: Path) -> None:
  """Raises DataError, and removes a partial file, unless length and checksum are those of the archive."""
  size = path.stat().st_size
  problem = ""
  if archive.size is not None and size != archive.size:
    problem = f"expected {archive.size:,} bytes, got {size:,}"
  elif archive.sha256 is not None:
    with path.open("rb") as file:
      digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != archive.sha256:
      problem = f"expected sha256 {archive.sha256}, got {digest}"
  else:
    kind, magic = next(((kind, magic) for end, kind, magic in _MAGIC if archive.name.endswith(end)), ("", b""))
    with path.open("rb") as file:
      if file.read(len(magic)) != magic:
        problem = f"expected a {kind} file, got another one (a page with a message, perhaps)"
  if problem and path.suffix == ".part":
    path.unlink()
    raise DataError(f"{archive.url}: {problem}; what came was removed, try again or download it by other means")
  if problem:
    raise DataError(f"{path}: {problem}; it is damaged or another file: remove it and run the command again")
