import gzip
import hashlib
import http.server
import random
import re
import shutil
import threading

import pytest

from mgk_jax.data import DataError, download

CONTENT = gzip.compress(random.Random(0).randbytes(3_500_000))


class Server(http.server.ThreadingHTTPServer):
  """Serves CONTENT with byte ranges; `breaks` says after how many bytes of each answer the connection ends."""

  daemon_threads = True

  def __init__(self):
    super().__init__(("127.0.0.1", 0), Handler)
    self.breaks, self.ranges, self.has_ranges, self.status, self.content = [], [], True, None, CONTENT


class Handler(http.server.BaseHTTPRequestHandler):
  def do_GET(self):
    server, wanted = self.server, self.headers.get("Range")
    server.ranges.append(wanted)
    if server.status is not None:
      self.send_error(server.status)
      return
    start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and server.has_ranges else 0
    total = len(server.content)
    if start >= total:
      self.send_response(416)
      self.send_header("Content-Range", f"bytes */{total}")
      self.send_header("Content-Length", "0")
      self.end_headers()
      return
    body = server.content[start:]
    self.send_response(206 if start else 200)
    if start:
      self.send_header("Content-Range", f"bytes {start}-{total - 1}/{total}")
    self.send_header("Content-Length", str(len(body)))
    self.end_headers()
    self.wfile.write(body[: server.breaks.pop(0)] if server.breaks else body)

  def log_message(self, *_):
    pass


@pytest.fixture
def server():
  with Server() as server:
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server
    server.shutdown()
    thread.join()


def archive(server, **changes):
  settings = {
    "url": f"http://127.0.0.1:{server.server_address[1]}/file.tar.gz",
    "name": "file.tar.gz",
    "size": len(CONTENT),
    "about": "3.5 MB",
    "sha256": hashlib.sha256(CONTENT).hexdigest(),
  }
  return download.Archive(**settings | changes)


UNKNOWN = {"size": None, "sha256": None}


@pytest.mark.parametrize("known", [{}, UNKNOWN])
def test_download(tmp_path, server, known):
  path = download.fetch(archive(server, **known), tmp_path / "new")
  assert path == tmp_path / "new/file.tar.gz"
  assert path.read_bytes() == CONTENT
  assert list(path.parent.iterdir()) == [path]
  download.fetch(archive(server, **known), tmp_path / "new")
  assert server.ranges == [None], "what is there is not downloaded again"


@pytest.mark.parametrize("known", [{}, UNKNOWN])
def test_a_broken_connection_is_continued(tmp_path, server, known):
  server.breaks = [1_234_567, 1_000_000]
  path = download.fetch(archive(server, **known), tmp_path, pauses=(0, 0))
  assert path.read_bytes() == CONTENT
  assert server.ranges == [None, "bytes=1234567-", "bytes=2234567-"]


def test_what_was_left_behind_is_continued_by_the_next_command(tmp_path, server):
  server.breaks = [1_000_000]
  with pytest.raises(
    DataError, match=r"1,000,000 of 3,5\d\d,\d{3} bytes came.*1,000,000 bytes are kept in .*\.part.* again"
  ):
    download.fetch(archive(server), tmp_path, pauses=())
  assert not (tmp_path / "file.tar.gz").exists()
  assert download.fetch(archive(server), tmp_path).read_bytes() == CONTENT
  assert server.ranges[-1] == "bytes=1000000-"


def test_a_server_without_ranges_sends_all_again(tmp_path, server):
  server.has_ranges, server.breaks = False, [1_000_000]
  assert download.fetch(archive(server), tmp_path, pauses=(0,)).read_bytes() == CONTENT
  assert server.ranges == [None, "bytes=1000000-"]


@pytest.mark.parametrize("known", [{}, UNKNOWN])
def test_a_part_that_is_already_all(tmp_path, server, known):
  (tmp_path / "file.tar.gz.part").write_bytes(CONTENT)
  assert download.fetch(archive(server, **known), tmp_path).read_bytes() == CONTENT


def test_a_part_that_is_longer_than_the_file_is_started_again(tmp_path, server):
  (tmp_path / "file.tar.gz.part").write_bytes(CONTENT + b"more")
  assert download.fetch(archive(server, **UNKNOWN), tmp_path).read_bytes() == CONTENT


def test_a_wrong_checksum(tmp_path, server):
  server.content = CONTENT[:-1] + bytes([CONTENT[-1] ^ 1])
  expected, got = (hashlib.sha256(content).hexdigest() for content in (CONTENT, server.content))
  with pytest.raises(DataError, match=f"expected sha256 {expected}, got {got}; what came was removed"):
    download.fetch(archive(server), tmp_path)
  assert not list(tmp_path.iterdir())


def test_another_length_is_not_downloaded(tmp_path, server):
  with pytest.raises(DataError, match="expected 5 bytes, the server offers 3,5"):
    download.fetch(archive(server, size=5), tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_page_instead_of_the_file(tmp_path, server):
  server.content = b"<html>we have moved</html>"
  for name, kind in (("file.tar.gz", "gzip"), ("file.zip", "zip")):
    with pytest.raises(DataError, match=f"expected a {kind} file"):
      download.fetch(archive(server, **UNKNOWN, name=name), tmp_path)
  assert not list(tmp_path.iterdir())


def test_a_damaged_file_that_is_there_is_kept_and_named(tmp_path, server):
  (tmp_path / "file.tar.gz").write_bytes(CONTENT[:-1])
  with pytest.raises(DataError, match=r"file.tar.gz: expected 3,5\d\d,\d{3} bytes, got .*remove it"):
    download.fetch(archive(server), tmp_path)
  assert (tmp_path / "file.tar.gz").exists()


def test_a_file_that_the_server_does_not_have(tmp_path, server):
  server.status = 404
  with pytest.raises(DataError, match=r"404 Not Found; the file may have moved.*--data_dir"):
    download.fetch(archive(server), tmp_path, pauses=(0, 0))
  assert len(server.ranges) == 1, "another try would not help"


def test_a_server_in_trouble_is_asked_again(tmp_path, server):
  server.status = 503
  with pytest.raises(DataError, match="the server answers 503 Service Unavailable"):
    download.fetch(archive(server), tmp_path, pauses=(0, 0))
  assert len(server.ranges) == 3


def test_no_server(tmp_path, server):
  unreachable = archive(server, url="http://127.0.0.1:1/file.tar.gz")
  with pytest.raises(DataError, match=r"the connection broke .*refused"):
    download.fetch(unreachable, tmp_path, pauses=())


def test_a_disk_without_room(tmp_path, server, monkeypatch):
  usage = type(shutil.disk_usage(tmp_path))
  monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10**9, 10**9 - 1000, 1000))
  with pytest.raises(DataError, match=r"expected room for 3,5\d\d,\d{3} bytes, got 1,000; see --download_dir"):
    download.fetch(archive(server), tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path, server):
  (tmp_path / "file").write_text("")
  with pytest.raises(DataError, match="cannot be written"):
    download.fetch(archive(server), tmp_path / "file" / "folder")
