"""`python -m lm.prepare`: folders, archives, and whatever may be wrong with them."""

import dataclasses
import fcntl
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from lm import corpus as corpora, datasets, prepare, raw
from lm.corpus import Corpus
from mgk_jax.data import DataError
from tests.lm import small

ROOT = Path(__file__).parents[2]
REAL = ROOT.parent / "shared" / "data"
WIKITEXT2 = datasets.get("wikitext2")


def arguments(data_dir, folder, *more, name="wikitext2"):
  return [name, f"--data_dir={data_dir}", f"--prepared_dir={folder / 'prepared'}", *more]


@pytest.fixture
def official(monkeypatch):
  """The small corpus passes for the official WikiText-2."""
  counts = {split: len(small.tokens(content)) for split, content in small.TEXTS.items()}
  vocabulary = len(set(small.tokens(small.TEXTS["train"])))
  dataset = dataclasses.replace(WIKITEXT2, num_tokens=counts, vocab_size=vocabulary)
  monkeypatch.setitem(datasets.DATASETS, "wikitext2", dataset)
  return dataset


def places(folder):
  """The small corpus in all the ways in which one may have it."""
  small.write(folder / "plain")
  small.write(folder / "nested/wikitext-2")
  small.write_zip(folder / "wikitext-2-v1.zip")
  (folder / "with_archive").mkdir()
  small.write_zip(folder / "with_archive/wikitext-2-v1.zip")
  small.write(folder / "renamed")
  (folder / "renamed/wiki.train.tokens").rename(folder / "renamed/wiki.train.shuffled-articles.tokens")
  return ["plain", "nested", "wikitext-2-v1.zip", "with_archive", "renamed"]


def test_from_folders_and_archives(tmp_path, official, capsys):
  expected = {}
  for place in places(tmp_path):
    folder = tmp_path / f"out_{place}"
    assert prepare.main(arguments(tmp_path / place, folder)) == 0, capsys.readouterr().err
    shown, progress = capsys.readouterr()
    assert f"wikitext2 is prepared in {folder}/prepared/lm_wikitext2/1" in shown
    assert f"train: {official.num_tokens['train']:,} words" in shown and "wikitext2 train: counting: MB 1/1" in progress
    assert ("note: train is read from wiki.train.shuffled-articles.tokens" in shown) == (place == "renamed")
    written = folder / "prepared/lm_wikitext2/1"
    files = {path.name: path.read_bytes() for path in written.iterdir() if path.name != "metadata.json"}
    expected = expected or files
    assert files == expected  # the same bytes, wherever they come from
    assert [path.name for path in written.parent.iterdir()] == ["1"]


def test_nothing_is_overwritten_silently(tmp_path, official, capsys):
  small.write(tmp_path / "raw")
  command = arguments(tmp_path / "raw", tmp_path)
  assert prepare.main(command) == 0
  (tmp_path / "raw/wiki.valid.tokens").write_bytes(small.TEXTS["valid"].replace(b"word1 ", b"word0 "))
  assert prepare.main(command) == 0
  assert "Nothing to do (--overwrite prepares it again): wikitext2 is prepared" in capsys.readouterr().out
  path = tmp_path / "prepared/lm_wikitext2/1"
  before = Corpus(path).valid.tolist()
  assert prepare.main([*command, "--overwrite"]) == 0
  assert Corpus(path).valid.tolist() != before
  capsys.readouterr()
  (tmp_path / "raw/wiki.valid.tokens").unlink()
  assert prepare.main([*command, "--overwrite"]) == 1  # what was prepared stays
  assert "expected wiki.valid.tokens" in capsys.readouterr().err and len(Corpus(path).valid)


def test_check_only_writes_nothing(tmp_path, official, capsys):
  small.write(tmp_path / "raw")
  assert prepare.main(arguments(tmp_path / "raw", tmp_path, "--check_only")) == 0
  assert "wikitext2 can be prepared; nothing was written" in capsys.readouterr().out
  assert not (tmp_path / "prepared").exists()


def test_files_of_one_s_own(tmp_path, capsys):
  (tmp_path / "my.txt").write_text("a b a\n" * 5)
  small.write(tmp_path, dict.fromkeys(("valid", "test"), b" a c \n"))
  command = arguments(tmp_path, tmp_path, "--train_file=my.txt")
  assert prepare.main(command) == 1
  assert "my.txt: expected 2,088,628 words and line ends, found 20" in capsys.readouterr().err
  assert prepare.main([*command, "--partial"]) == 0
  shown = capsys.readouterr().out
  assert "train is read from my.txt" in shown and "not the official corpus: " in shown
  assert "1 words of valid are not in the vocabulary" in shown
  assert prepare.main(command[:2] + command[2:3]) == 1  # prepared, but not the official corpus
  assert "Use --overwrite to prepare it again, or --partial to keep it" in capsys.readouterr().err
  with pytest.raises(SystemExit):
    prepare.main(["enwik8", "--train_file=x"])
  with pytest.raises(SystemExit):
    prepare.main(["wikitext3"])


TEXT = small.TEXTS["valid"]
WRONG = {
  "empty": (b"", r"wiki.valid.tokens: found no words and line ends"),
  "truncated": (TEXT[: len(TEXT) // 2], r"wiki.valid.tokens: expected [\d,]+ words and line ends, found [\d,]+"),
  "cut in a letter": (" Ω".encode()[:-1], "an end in the middle of a letter: the file is cut short"),
  "latin-1": ("naïve \n".encode("latin-1"), r"no UTF-8 \(invalid continuation byte\) at byte 2"),
  "UTF-16": (TEXT.decode().encode("utf-16"), "got UTF-16 at byte 0"),
  "UTF-16 without a mark": (TEXT.decode().encode("utf-16-le"), "got a zero byte, as in UTF-16 .* at byte 1"),
  "a mark": (b"\xef\xbb\xbf" + TEXT, "got a byte order mark at byte 0"),
  "CR LF": (TEXT.replace(b"\n", b"\r\n"), "got line ends CR LF, as Windows programs write them at byte 1;"),
  "binary": (bytes(range(1, 256)), "no UTF-8"),
}


@pytest.mark.parametrize("name", WRONG)
@pytest.mark.parametrize("archived", [False, True])
def test_wrong_files(tmp_path, official, capsys, name, archived):
  content, message = WRONG[name]
  texts = small.TEXTS | {"valid": content}
  place = small.write_zip(tmp_path / "wikitext-2-v1.zip", texts) if archived else small.write(tmp_path / "raw", texts)
  with pytest.raises(DataError, match=message) as error:
    prepare.prepare(official, place, tmp_path / "prepared")
  assert "wiki.valid.tokens" in str(error.value) and "https://wikitext.smerity.com/wikitext-2-v1.zip" in str(
    error.value
  )
  assert not list(tmp_path.rglob("*.npy"))


def test_a_cr_lf_over_the_border_of_two_pieces(tmp_path, monkeypatch, official):
  monkeypatch.setattr(raw, "PIECE", 2)
  small.write(tmp_path, small.TEXTS | {"valid": b"a\r\n"})
  with pytest.raises(DataError, match=r"wiki.valid.tokens: expected text .*CR LF"):
    prepare.prepare(official, tmp_path, tmp_path / "prepared")


def test_missing_files(tmp_path, capsys):
  (tmp_path / "raw").mkdir()
  (tmp_path / "raw/other.txt").write_text("")
  for place, message in (
    (tmp_path / "nowhere", "nowhere does not exist"),
    (tmp_path / "raw", "expected wiki.{train,valid,test}.tokens in "),
  ):
    assert prepare.main(arguments(place, tmp_path)) == 1
    error = capsys.readouterr().err
    assert message in error and "--download" in error and "sha256" in error
  with pytest.raises(DataError, match=r"got a file of it; say --data_dir=.*/raw"):
    prepare.prepare(WIKITEXT2, tmp_path / "raw/other.txt", tmp_path / "prepared")
  small.write(tmp_path / "two", {"train": b"a\n", "valid": b"a\n", "test": b"a\n"})
  for name in ("wiki.train.tokens", "wiki.train.a.tokens", "wiki.train.b.tokens"):
    (tmp_path / "two" / name).write_bytes(b"a\n")
  (tmp_path / "two/wiki.train.tokens").unlink()
  with pytest.raises(DataError, match=r"expected one file wiki.train.tokens .*, found .*; say which with --train_file"):
    prepare.prepare(WIKITEXT2, tmp_path / "two", tmp_path / "prepared")
  for split in datasets.SPLITS:
    (tmp_path / "raw" / f"wiki.{split}.raw").write_bytes(b"a\n")
  with pytest.raises(DataError, match=r"wiki.train.raw is of the raw version"):
    prepare.prepare(WIKITEXT2, tmp_path / "raw", tmp_path / "prepared")
  with pytest.raises(
    DataError, match=r"found none. Prepare them first:\n  python -m lm.prepare wikitext2 --prepared_dir"
  ):
    prepare.require(WIKITEXT2, prepared_dir=tmp_path / "prepared")
  with pytest.raises(DataError, match=r"expected enwik8 or enwik8.zip in .*, found other.txt"):
    prepare.prepare(datasets.get("enwik8"), tmp_path / "raw", tmp_path / "prepared")


@pytest.mark.parametrize("part", [0.0, 0.6, 0.95])
def test_an_archive_that_is_cut_short(tmp_path, part):
  archive = small.write_zip(tmp_path / "wikitext-2-v1.zip")
  archive.write_bytes(archive.read_bytes()[: int(part * archive.stat().st_size)])
  with pytest.raises(DataError, match=r"(?s)not a zip archive, or damaged or cut short .*wikitext.smerity.com"):
    prepare.prepare(WIKITEXT2, archive, tmp_path / "prepared", partial=True)


def test_a_byte_of_an_archive_that_is_wrong(tmp_path):
  archive = small.write_zip(tmp_path / "wikitext-2-v1.zip")
  content = bytearray(archive.read_bytes())
  content[300] ^= 1
  archive.write_bytes(content)
  with pytest.raises(DataError, match="damaged"):
    prepare.prepare(WIKITEXT2, archive, tmp_path / "prepared", partial=True)


def test_files_that_change_while_they_are_read(tmp_path, monkeypatch):
  small.write(tmp_path / "raw")
  count = corpora.count

  def count_and_change(*arguments, **options):
    counted = count(*arguments, **options)
    (tmp_path / "raw/wiki.train.tokens").write_bytes(b"short \n")
    return counted

  monkeypatch.setattr(corpora, "count", count_and_change)
  with pytest.raises(DataError, match="the file has changed"):
    prepare.prepare(WIKITEXT2, tmp_path / "raw", tmp_path / "prepared", partial=True)
  assert list((tmp_path / "prepared/lm_wikitext2").iterdir()) == []


def test_a_place_that_cannot_be_written(tmp_path):
  small.write(tmp_path / "raw")
  (tmp_path / "file").write_text("")
  with pytest.raises(DataError, match=r"cannot be written: .*; see --prepared_dir"):
    prepare.prepare(WIKITEXT2, tmp_path / "raw", tmp_path / "file/prepared", partial=True)


def test_two_processes_prepare_once(tmp_path, capsys):
  """The second waits for the first, which here is a lock that is held."""
  small.write(tmp_path / "raw")
  (tmp_path / "prepared").mkdir()
  with (tmp_path / "prepared/.lm_wikitext2-1.lock").open("a") as lock:
    fcntl.flock(lock, fcntl.LOCK_EX)
    done = []
    waiting = threading.Thread(
      target=lambda: done.append(
        prepare.prepare(WIKITEXT2, tmp_path / "raw", tmp_path / "prepared", partial=True)
      )
    )  # fmt: skip
    waiting.start()
    time.sleep(0.3)
    assert not done and not list(tmp_path.rglob("*.npy"))
  waiting.join(30)
  assert len(done[0].train) and "another process is preparing it" in capsys.readouterr().err


def test_a_termination_leaves_nothing(tmp_path):
  small.write(tmp_path / "raw", small.TEXTS | {"train": small.TEXTS["train"] * 8_000})
  command = [sys.executable, "-m", "lm.prepare", *arguments(tmp_path / "raw", tmp_path, "--partial")]
  with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("incomplete.*")) and time.monotonic() < deadline and process.poll() is None:
      time.sleep(0.01)
    os.kill(process.pid, signal.SIGTERM)
    out, err = process.communicate(timeout=60)
  assert process.returncode == 128 + signal.SIGTERM, (out, err)
  assert list((tmp_path / "prepared/lm_wikitext2").iterdir()) == []


def test_downloads_are_prepared(tmp_path, monkeypatch, official):
  asked = []

  def fetch(archive, folder):
    asked.append((archive, folder))
    return small.write_zip(tmp_path / archive.name)

  monkeypatch.setattr("mgk_jax.data.download.fetch", fetch)
  assert prepare.main(["wikitext2", "--download", f"--prepared_dir={tmp_path / 'prepared'}"]) == 0
  assert asked == [(official.archive, tmp_path / "prepared/downloads")]


@pytest.mark.skipif(not (REAL / "wt2.tar.xz").exists(), reason="the real files are not here")
def test_the_real_wikitext2(tmp_path):
  """From an archive that has its training articles in another order: all numbers are the official ones."""
  corpus = prepare.prepare(WIKITEXT2, REAL / "wt2.tar.xz", tmp_path)
  assert corpus.metadata["num_tokens"] == WIKITEXT2.num_tokens and corpus.vocab_size == 33_278
  assert corpus.metadata["num_unknown"] == {"train": 0, "valid": 0, "test": 0}
  assert corpus.vocabulary[:5] == ["the", ",", ".", "of", "<unk>"]
  assert corpus.decode(corpus.valid[:8]) == "\n= Homarus gammarus =\n\nHomarus"
