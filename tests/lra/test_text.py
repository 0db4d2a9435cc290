from pathlib import Path

import pytest

from lra import prepare, text
from mgk_jax.data import DataError
from tests.lra import raw_data


@pytest.fixture
def raw(tmp_path, monkeypatch):
  """A directory with raw data that count as complete, and what is in them."""
  monkeypatch.setattr(text, "REVIEWS", 8)
  return tmp_path / "raw", raw_data.write("text", tmp_path / "raw")


def builder(tmp_path, **arguments):
  return text.LraText(data_dir=tmp_path / "prepared", **arguments)


@pytest.mark.parametrize("place", [".", "aclImdb"])
def test_what_is_prepared_is_what_was_written(tmp_path, raw, place):
  root, expected = raw
  got = raw_data.read(prepare.prepare(builder(tmp_path), root / place))
  assert {split: sorted(examples) for split, examples in got.items()} == {
    split: sorted(examples) for split, examples in expected.items()
  }
  assert got["train"] != sorted(got["train"]), "the order is a random one, so that slices are random subsets"


@pytest.mark.parametrize("name", ["aclImdb_v1.tar.gz", "reviews.tar.xz", "reviews.tar"])
def test_an_archive_gives_the_same_as_its_folder(tmp_path, raw, name):
  root, _ = raw
  from_folder = raw_data.read(prepare.prepare(builder(tmp_path), root))
  archive = raw_data.pack(root, tmp_path / name)
  before = sorted(tmp_path.iterdir())
  again = prepare.prepare(text.LraText(data_dir=tmp_path / "prepared"), archive, overwrite=True)
  assert raw_data.read(again) == from_folder
  assert str(archive) in again.info.metadata["origin"]
  assert sorted(tmp_path.iterdir()) == before


def test_the_official_archive_is_found_in_its_folder(tmp_path, raw):
  root, _ = raw
  (tmp_path / "downloads").mkdir()
  raw_data.pack(root, tmp_path / "downloads/aclImdb_v1.tar.gz")
  assert builder(tmp_path).find(tmp_path / "downloads").splits["train"].num_examples == 16


def test_protocols(tmp_path, raw):
  root, expected = raw
  prepared = prepare.prepare(builder(tmp_path), root)

  def read(split):
    return {x["tokens"].tobytes() for x in prepared.as_data_source(split=split)}

  train, test = ({tokens for (tokens,), _ in expected[split]} for split in ("train", "test"))
  lra, holdout = text.TASK.protocol("lra"), text.TASK.protocol("holdout")
  assert (read(lra.train), read(lra.valid), read(lra.test)) == (train, test, test)
  assert "test set" in lra.note and "IMDb has no validation split" in lra.note
  assert read(holdout.test) == test
  assert read(holdout.train) | read(holdout.valid) == train
  assert not read(holdout.train) & read(holdout.valid)
  assert len(read(holdout.valid)) == 2  # of 16
  with pytest.raises(ValueError, match=r"expected one of \('lra', 'holdout'\), got 'mine'"):
    text.TASK.protocol("mine")


def remove_a_review(root):
  next((root / "aclImdb/train/neg").glob("3_*.txt")).unlink()


def empty_a_review(root):
  next((root / "aclImdb/test/pos").glob("5_*.txt")).write_bytes(b"")


def remove_a_folder(root):
  for path in (root / "aclImdb/test/neg").iterdir():
    path.unlink()
  (root / "aclImdb/test/neg").rmdir()


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (remove_a_review, "train/neg: expected 8 files, found 7"),
    (empty_a_review, r"test/pos/5_\d+.txt: the file is empty"),
    (remove_a_folder, "test/neg: found no files"),
  ],
)
def test_damage_is_named_with_the_way_out(tmp_path, raw, damage, message):
  root, _ = raw
  damage(root)
  with pytest.raises(DataError, match=message) as error:
    prepare.prepare(builder(tmp_path), root)
  assert "python -m lra.prepare text --download" in str(error.value)
  assert "aclImdb_v1.tar.gz (84 MB; sha256 c40f74a1" in str(error.value)
  assert not builder(tmp_path).is_prepared()


def test_all_faults_are_named_at_once(tmp_path, raw):
  root, _ = raw
  remove_a_review(root)
  empty_a_review(root)
  with pytest.raises(DataError, match=r"(?s)empty.*train/neg"):
    builder(tmp_path).find(root)


def test_the_official_number_of_reviews(tmp_path):
  raw_data.write("text", tmp_path)
  with pytest.raises(DataError, match="test/pos: expected 12,500 files, found 8"):
    builder(tmp_path).find(tmp_path)


def test_partial_forgives_numbers_and_says_so(tmp_path, raw):
  root, _ = raw
  remove_a_review(root)
  prepared = prepare.prepare(builder(tmp_path, partial=True), root)
  assert prepared.info.splits["train"].num_examples == 15
  assert prepared.notes == ["incomplete raw data: train/neg: expected 8 files, found 7"]
  empty_a_review(root)
  with pytest.raises(DataError, match="is empty"):
    builder(tmp_path, partial=True).find(root)


def test_what_is_no_data(tmp_path):
  (tmp_path / "elsewhere").mkdir()
  (tmp_path / "elsewhere/notes.md").write_text("nothing")
  for place, message in (
    (tmp_path / "elsewhere", "in .*elsewhere, found notes.md"),
    (tmp_path / "nowhere", "nowhere does not exist"),
    (tmp_path / "elsewhere/notes.md", "not a tar archive"),
    (None, "expected --data_dir"),
  ):
    with pytest.raises(DataError, match=message):
      builder(tmp_path).find(place)


IMDB = Path(__file__).parents[3] / "shared/data/imdb.tar.xz"


@pytest.mark.skipif(not IMDB.exists(), reason="the real reviews are not on this machine")
def test_the_real_reviews_are_all_found(tmp_path):
  raw = text.LraText(data_dir=tmp_path).find(IMDB)
  assert {name: split.num_examples for name, split in raw.splits.items()} == {"train": 25_000, "test": 25_000}
  assert raw.incomplete == "" and not raw.notes
