"""Records in the order of the hashes of their keys: a fixed random order, without all of them in memory.

TFDS's own shuffling gives the same order, but needs TensorFlow for a split of more than a gigabyte.
"""

import hashlib
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from mgk_jax.data import DataError

_NUM_FILES = 64
_HEAD = struct.Struct("<16sQ")  # the hash and the size of a record that waits in a file


class Shuffled:
  """Takes records in any order and gives them back in that of md5(salt + key).

  At most `memory` bytes of records wait in memory. Beyond that all wait in files in `folder`, of which one at a time
  is read and sorted, about a 64th of all records.
  """

  def __init__(self, folder: Path, salt: str, *, memory: int = 1 << 28):
    self.folder, self.memory = folder, memory
    self.num_records = self.num_bytes = 0
    self._hash = hashlib.md5(salt.encode(), usedforsecurity=False)
    self._waiting: list[tuple[bytes, bytes]] = []
    self._files: list[IO[bytes]] = []

  def add(self, key: str, record: bytes) -> None:
    """Takes a record; its key is its own."""
    digest = self._hash.copy()
    digest.update(key.encode())
    self.num_records += 1
    self.num_bytes += len(record)
    self._waiting.append((digest.digest(), record))
    if self.num_bytes > self.memory:
      self._to_files()

  def _to_files(self) -> None:
    if not self._files:
      self._files = [(self.folder / f"shuffle_{number:02}.tmp").open("w+b") for number in range(_NUM_FILES)]
    for digest, record in self._waiting:
      file = self._files[digest[0] * _NUM_FILES // 256]  # the order of the files is that of the hashes in them
      file.write(_HEAD.pack(digest, len(record)))
      file.write(record)
    self._waiting.clear()

  def __iter__(self) -> Iterator[bytes]:
    """Gives all records, once.

    Raises:
      DataError: two of them have the same key.
    """
    previous = b""
    for chunk in map(_read, self._files) if self._files else [self._waiting]:
      for digest, record in sorted(chunk):
        if digest == previous:
          raise DataError("expected keys that are all different, got two examples with the same one")
        previous = digest
        yield record

  def close(self) -> None:
    """Removes the files."""
    for file in self._files:
      file.close()
      Path(file.name).unlink(missing_ok=True)
    self._files.clear()


def _read(file: IO[bytes]) -> list[tuple[bytes, bytes]]:
  file.seek(0)
  records = []
  while head := file.read(_HEAD.size):
    digest, size = _HEAD.unpack(head)
    records.append((digest, file.read(size)))
  return records
