"""The raw files of a corpus: found in a folder or an archive, and read as words or bytes, a piece at a time."""

import codecs
import dataclasses
import fnmatch
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath

from lm.datasets import SPLITS, Dataset
from mgk_jax.data import DataError, archives, places
from mgk_jax.training.progress import Progress

EOS, UNKNOWN = b"<eos>", b"<unk>"
PIECE = 1 << 20  # bytes that are read at once
_MEGABYTE = 1_000_000
_TEXTS = (".tokens", ".raw", ".txt")


@dataclasses.dataclass(frozen=True)
class Text:
  """A split's raw bytes: how many there are, and how to read them, `name` for messages."""

  name: str
  size: int
  read: Callable[[], Iterator[bytes]]

  def pieces(self, what: str) -> Iterator[bytes]:
    """All bytes, with a progress bar that says `what` is done."""
    done = 0
    with Progress(what, total=max(self.size // _MEGABYTE, 1), unit="MB") as progress:
      for piece in self.read():
        yield piece
        done += len(piece)
        progress.advance(steps=min(done // _MEGABYTE, progress.total) - progress.done)
      progress.advance(steps=progress.total - progress.done)


@dataclasses.dataclass(frozen=True)
class Raw:
  """Raw files that were found: where, those of each split, and what to know of them."""

  origin: str
  texts: Mapping[str, Text]
  notes: tuple[str, ...] = ()


def find(dataset: Dataset, data_dir: Path | None, files: Mapping[str, str] | None = None) -> Raw:
  """Finds the files of a corpus.

  Args:
    dataset: which.
    data_dir: a folder with the files, one above it, the archive, or a folder with the archive.
    files: other names than the official ones, by split, relative to the folder or in the archive.

  Raises:
    DataError: they are not there; the message says what was expected, what is there, and where to get it.
  """
  files = files or {}
  if data_dir is None:
    raise DataError(f"{dataset.name}: expected --data_dir with {dataset.looking_for}, got none\n{dataset.advice()}")
  if not data_dir.exists():
    raise DataError(f"{dataset.name}: {data_dir} does not exist\n{dataset.advice()}")
  if dataset.unit == "byte":
    return _bytes(dataset, data_dir)
  place, found = _locate(dataset, data_dir, files)
  names: dict[str, str] = {}
  for split in SPLITS:
    wanted = files.get(split, f"wiki.{split}.tokens")
    names[split] = _choose(dataset, place, wanted, list(found), given=split in files)
  texts = {split: Text(f"{place}: {name}", *found[name]) for split, name in names.items()}
  other = {split: name for split, name in names.items() if PurePosixPath(name).name != f"wiki.{split}.tokens"}
  notes = tuple(f"{split} is read from {name}" for split, name in other.items())
  return Raw(f"{dataset.folder} in {place}", texts, notes)


def _locate(
  dataset: Dataset, data_dir: Path, files: Mapping[str, str]
) -> tuple[Path, Mapping[str, tuple[int, Callable[[], Iterator[bytes]]]]]:
  """The folder or archive with files of text, and the files: size and reader by name."""
  if data_dir.is_file() and data_dir.suffix in _TEXTS:
    raise DataError(
      f"{dataset.name}: expected the folder with {dataset.looking_for}, got a file of it; "
      f"say --data_dir={data_dir.parent}"
    )
  if data_dir.is_file():
    return data_dir, _in_archive(data_dir)
  for place in (data_dir, data_dir / dataset.folder):
    texts = {path.name: path for path in place.glob("wiki.*") if path.is_file()} if place.is_dir() else {}
    texts |= {name: place / name for name in files.values() if (place / name).is_file()}
    if texts:
      return place, {name: (path.stat().st_size, _reader(path)) for name, path in texts.items()}
  for archive in (data_dir / dataset.archive.name, data_dir / f"{dataset.folder}.tar.gz"):
    if archive.is_file():
      return archive, _in_archive(archive)
  raise DataError(
    f"{dataset.name}: expected {dataset.looking_for} in {data_dir}, found {places.contents(data_dir)}\n"
    f"{dataset.advice()}"
  )


def _choose(dataset: Dataset, place: Path, wanted: str, found: list[str], *, given: bool) -> str:
  """The name of a file: the wanted one, or else the only one that goes by a longer name, as wiki.train.part1.tokens."""
  for pattern in (wanted, f"*/{wanted}", *(() if given else (f"*{wanted.removesuffix('.tokens')}.*.tokens",))):
    matches = fnmatch.filter(found, pattern)
    if len(matches) == 1:
      return matches[0]
    if matches:
      raise DataError(
        f"{dataset.name}: expected one file {wanted} in {place}, found {', '.join(matches)}; say which with "
        "--train_file, --valid_file and --test_file"
      )
  raw = fnmatch.filter(found, f"*{wanted.removesuffix('.tokens')}.raw")
  hint = f" ({raw[0]} is of the raw version, in which rare words are not replaced: another corpus)" if raw else ""
  there = ", ".join(sorted(found)[:8]) or "no such file at all"
  raise DataError(f"{dataset.name}: expected {wanted} in {place}, found {there}{hint}\n{dataset.advice()}")


def _in_archive(archive: Path) -> dict[str, tuple[int, Callable[[], Iterator[bytes]]]]:
  """The files of text in an archive."""

  def wanted(path: PurePosixPath) -> bool:
    return not path.name.startswith(".") and path.suffix in (*_TEXTS, "")

  sizes = {str(path): member.size for path, member in archives.members(archive, wanted, show=False)}
  return {name: (size, _member_reader(archive, name)) for name, size in sizes.items()}


def _reader(path: Path) -> Callable[[], Iterator[bytes]]:
  def read() -> Iterator[bytes]:
    try:
      with path.open("rb") as file:
        while piece := file.read(PIECE):
          yield piece
    except OSError as error:
      raise DataError(f"{path}: cannot be read: {error.strerror or error}") from error

  return read


def _member_reader(archive: Path, name: str) -> Callable[[], Iterator[bytes]]:
  def read() -> Iterator[bytes]:
    for _, member in archives.members(archive, lambda path: str(path) == name, show=False):
      while piece := member.read(PIECE):
        yield piece

  return read


def _bytes(dataset: Dataset, data_dir: Path) -> Raw:
  """The one file of a corpus of bytes, cut into splits."""
  if data_dir.is_dir():
    names = (dataset.name, f"{dataset.folder}/{dataset.name}", dataset.archive.name)
    place = next((data_dir / name for name in names if (data_dir / name).is_file()), None)
    if place is None:
      raise DataError(
        f"{dataset.name}: expected {dataset.name} or {dataset.archive.name} in {data_dir}, "
        f"found {places.contents(data_dir)}\n{dataset.advice()}"
      )
  else:
    place = data_dir
  if place.suffix:
    found = _in_archive(place)
    if dataset.name not in found:
      there = ", ".join(sorted(found)[:8]) or "nothing"
      raise DataError(f"{dataset.name}: expected {dataset.name} in {place}, found {there}\n{dataset.advice()}")
    size, read = found[dataset.name]
  else:
    size, read = place.stat().st_size, _reader(place)
  total = sum(dataset.num_tokens.values())
  texts, start = {}, 0
  for split in SPLITS:
    end = start + size * dataset.num_tokens[split] // total  # of a part of the corpus, the same parts
    texts[split] = Text(f"{place}: bytes {start:,} to {end:,}", end - start, _part(read, start, end))
    start = end
  return Raw(f"{dataset.name} in {place}", texts)


def _part(read: Callable[[], Iterator[bytes]], start: int, end: int) -> Callable[[], Iterator[bytes]]:
  def part() -> Iterator[bytes]:
    position = 0
    for piece in read():
      inside = piece[max(start - position, 0) : max(end - position, 0)]
      position += len(piece)
      if inside:
        yield inside
      if position >= end:
        return

  return part


def words(text: Text, what: str) -> Iterator[list[bytes]]:
  """The words of a text, a piece at a time, with `<eos>` after each line; a last line may lack its end.

  Raises:
    DataError: while iterating, if it is not UTF-8 text with lines that end in a line feed.
  """
  rest, last = b"", b"\n"
  for piece in _checked(text, what):
    joined = rest + piece
    cut = max(joined.rfind(b" "), joined.rfind(b"\n")) + 1  # a word may go on in the next piece
    yield joined[:cut].replace(b"\n", b" <eos> ").split()
    rest, last = joined[cut:], piece[-1:]
  if last != b"\n":
    yield [*rest.split(), EOS]


def _checked(text: Text, what: str) -> Iterator[bytes]:
  """The pieces of a text; DataError for one that is wrongly encoded."""
  decoder = codecs.getincrementaldecoder("utf-8")()
  position, before = 0, b""
  for piece in text.pieces(what):
    if position == 0 and piece.startswith(codecs.BOM_UTF8):
      raise _wrong(text, "a byte order mark", 0)
    if position == 0 and piece.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
      raise _wrong(text, "UTF-16", 0)
    if (at := piece.find(b"\0")) >= 0:
      raise _wrong(text, "a zero byte, as in UTF-16 or in a file that is no text", position + at)
    if (at := (before + piece).find(b"\r\n")) >= 0:
      raise _wrong(text, "line ends CR LF, as Windows programs write them", position + at)
    try:
      decoder.decode(piece)
    except UnicodeDecodeError as error:
      raise _wrong(text, f"bytes that are no UTF-8 ({error.reason})", position + error.start) from error
    yield piece
    position, before = position + len(piece), piece[-1:]
  try:
    decoder.decode(b"", final=True)
  except UnicodeDecodeError as error:
    raise _wrong(text, "an end in the middle of a letter: the file is cut short", position) from error


def _wrong(text: Text, got: str, position: int) -> DataError:
  return DataError(
    f"{text.name}: expected text in UTF-8 with line ends LF, as it is published, got {got} at byte {position:,}; "
    "get the file again, and do not open it in an editor that converts it"
  )
