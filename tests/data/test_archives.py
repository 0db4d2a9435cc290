import io
import os
import tarfile
import zipfile

import pytest

from mgk_jax.data import DataError, archives
from tests.lra import raw_data


def pack(folder, archive):
  if archive.suffix != ".zip":
    return raw_data.pack(folder, archive)
  with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
    for path in sorted(folder.rglob("*")):
      packed.write(path, path.relative_to(folder))
  return archive


@pytest.fixture
def folder(tmp_path):
  (tmp_path / "files/inner").mkdir(parents=True)
  (tmp_path / "files/one.txt").write_bytes(b"first")
  (tmp_path / "files/inner/two.txt").write_bytes(os.urandom(300_000))
  (tmp_path / "files/three.md").write_bytes(b"")
  return tmp_path / "files"


def read(archive):
  return {str(path): file.read() for path, file in archives.members(archive, lambda path: path.suffix == ".txt")}


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "gz", "tar.xz", "tar.bz2", "zip"])
def test_members_of_any_compression(tmp_path, folder, ending):
  archive = pack(folder, tmp_path / f"files.{ending}")
  assert read(archive) == {"one.txt": b"first", "inner/two.txt": (folder / "inner/two.txt").read_bytes()}


@pytest.mark.parametrize("ending", ["tar", "tar.gz", "tar.xz", "tar.bz2", "zip"])
@pytest.mark.parametrize("part", [0.0, 0.5, 0.9])
def test_an_archive_that_is_cut_short(tmp_path, folder, ending, part):
  archive = pack(folder, tmp_path / f"files.{ending}")
  archive.write_bytes(archive.read_bytes()[: int(part * archive.stat().st_size)])
  with pytest.raises(DataError, match=f"files.{ending}: not a {ending.split('.')[0]} archive, or damaged or cut short"):
    read(archive)


@pytest.mark.parametrize("ending", ["tar.gz", "tar.xz", "zip"])
def test_a_byte_that_is_wrong(tmp_path, folder, ending):
  archive = pack(folder, tmp_path / f"files.{ending}")
  content = bytearray(archive.read_bytes())
  content[len(content) // 2] ^= 1
  archive.write_bytes(content)
  with pytest.raises(DataError, match="damaged"):
    read(archive)


def test_nothing_is_written_outside_the_folder(tmp_path):
  archive = tmp_path / "bad.tar"
  with tarfile.open(archive, "w") as tar:
    for name in ("../escaped.txt", str(tmp_path / "absolute.txt"), "good/../../worse.txt", "fine.txt"):
      member = tarfile.TarInfo(name)
      member.size = 4
      tar.addfile(member, io.BytesIO(b"text"))
    link = tarfile.TarInfo("link.txt")
    link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
    tar.addfile(link)
  archives.unpack(archive, lambda path: True, tmp_path / "inner/unpacked")
  assert [path.name for path in tmp_path.rglob("*.txt")] == ["fine.txt"]


def test_a_failure_leaves_no_folder(tmp_path, folder):
  archive = pack(folder, tmp_path / "files.tar.gz")
  with pytest.raises(DataError, match="none of the expected files"):
    archives.unpack(archive, lambda path: path.suffix == ".png", tmp_path / "unpacked")
  archive.write_bytes(archive.read_bytes()[:-2000])
  with pytest.raises(DataError, match="cut short"):
    archives.unpack(archive, lambda path: True, tmp_path / "unpacked")
  assert sorted(path.name for path in tmp_path.iterdir()) == ["files", "files.tar.gz"]


def test_a_place_that_cannot_be_written(tmp_path, folder):
  archive = pack(folder, tmp_path / "files.tar.gz")
  (tmp_path / "a file").write_text("in the way")
  with pytest.raises(DataError, match=r"cannot be unpacked to .*; unpack it elsewhere"):
    archives.unpack(archive, lambda path: True, tmp_path / "a file" / "unpacked")


def test_the_size_of_a_member_is_known_before_it_is_read(tmp_path, folder):
  for ending in ("tar.gz", "zip"):
    found = archives.members(pack(folder, tmp_path / f"files.{ending}"), lambda path: True, show=False)
    sizes = {path.name: (file.size, len(file.read(10) + file.read())) for path, file in found}
    assert sizes == {"one.txt": (5, 5), "two.txt": (300_000, 300_000), "three.md": (0, 0)}


def test_a_zip_archive_that_leads_elsewhere(tmp_path):
  with zipfile.ZipFile(tmp_path / "bad.zip", "w") as packed:
    for name in ("../escaped.txt", "/absolute.txt", "fine.txt"):
      packed.writestr(name, b"text")
  assert list(read(tmp_path / "bad.zip")) == ["fine.txt"]
