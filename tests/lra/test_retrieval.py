import pytest

from lra import prepare, retrieval
from mgk_jax.data import DataError
from tests.lra import raw_data


@pytest.fixture
def raw(tmp_path, monkeypatch):
  """The folder of the raw data, which count as complete, and what is in them."""
  monkeypatch.setattr(retrieval, "ROWS", {"train": 16, "validation": 8, "test": 8})
  expected = raw_data.write("retrieval", tmp_path / "raw")
  return tmp_path / "raw" / raw_data.RELEASE / "tsv_data", expected


def builder(tmp_path, **arguments):
  return retrieval.LraRetrieval(data_dir=tmp_path / "prepared", **arguments)


@pytest.mark.parametrize("place", [".", "..", "../..", "../../.."])
def test_what_is_prepared_is_what_was_written(tmp_path, raw, place):
  folder, expected = raw
  got = raw_data.read(prepare.prepare(builder(tmp_path), folder / place))
  assert {split: sorted(examples) for split, examples in got.items()} == {
    split: sorted(examples) for split, examples in expected.items()
  }
  protocol = retrieval.TASK.protocol("lra")
  assert (protocol.train, protocol.valid, protocol.test) == ("train", "validation", "test")


def test_the_archive_is_unpacked_beside_it_once(tmp_path, raw):
  folder, _ = raw
  from_folder = raw_data.read(prepare.prepare(builder(tmp_path), folder))
  (tmp_path / "raw/lra_release/lra_release/README").write_text("not needed")
  archive = raw_data.pack(tmp_path / "raw", tmp_path / "lra_release.gz")
  again = prepare.prepare(retrieval.LraRetrieval(data_dir=tmp_path / "again"), archive)
  assert raw_data.read(again) == from_folder
  unpacked = tmp_path / "lra_release-retrieval"
  assert sorted(path.name for path in unpacked.rglob("*") if path.is_file()) == sorted(retrieval.FILES.values())
  archive.write_bytes(b"no longer read")
  assert builder(tmp_path).find(archive).splits["train"].num_examples == 16


@pytest.mark.parametrize("label", [b"0", b"0.0", b"1", b"1.0"])
def test_spellings_of_a_label(tmp_path, raw, label):
  folder, _ = raw
  (folder / "new_aan_pairs.test.tsv").write_bytes(b"\t".join([label, b"a", b"b", b"one", b"two"]) + b"\n")
  ((key, example),) = builder(tmp_path, partial=True).find(folder).splits["test"].read()
  assert (key, example["label"]) == ("1", int(float(label)))
  assert (bytes(example["tokens1"]), bytes(example["tokens2"])) == (b"one", b"two")


ROW = b"0.0\ta\tb\tone\ttwo\n"


@pytest.mark.parametrize(
  ("rows", "message"),
  [
    (ROW * 7, "new_aan_pairs.eval.tsv: expected 8 rows, found 7"),
    (ROW * 7 + b"0.0\ta\tb\tone", r"row 8: expected 5 columns \(label, id1, id2, text1, text2\), got 4"),
    (ROW * 3 + b"0.0\ta\tb\tone\ttwo\tthree\n" + ROW * 4, "row 4: expected 5 columns .*, got 6"),
    (
      b"label\tid1\tid2\ttext1\ttext2\n" + ROW * 7,
      r"row 1: expected a label of \['0', '0.0', '1', '1.0'\], got b'label'",
    ),
    (ROW * 2 + b"2.0" + ROW[3:] + ROW * 5, "row 3: expected a label .* got b'2.0'"),
    (ROW * 2 + b"\n" + ROW * 5, "row 3: expected 5 columns"),
    (b"", "new_aan_pairs.eval.tsv: found no rows"),
    (None, "new_aan_pairs.eval.tsv: there is no such file"),
  ],
)
def test_damage_is_named_with_the_way_out(tmp_path, raw, rows, message):
  folder, _ = raw
  path = folder / "new_aan_pairs.eval.tsv"
  path.unlink()
  if rows is not None:
    path.write_bytes(rows)
  with pytest.raises(DataError, match=message) as error:
    prepare.prepare(builder(tmp_path), folder)
  assert "python -m lra.prepare retrieval --download" in str(error.value)
  assert "lra_release.gz (about 7.7 GB; its checksum is not published)" in str(error.value)
  if "expected 8 rows" not in message:
    with pytest.raises(DataError, match=message):
      builder(tmp_path, partial=True).find(folder)


def test_a_pair_without_a_text_is_left_out_and_named(tmp_path, raw):
  folder, _ = raw
  (folder / "new_aan_pairs.eval.tsv").write_bytes(ROW * 7 + b"1.0\ta\tb\t\ttwo\n")
  prepared = prepare.prepare(builder(tmp_path), folder)
  assert prepared.info.splits["validation"].num_examples == 7
  assert prepared.notes == ["new_aan_pairs.eval.tsv: pairs without one of the texts are left out, rows 8"]


def test_many_pairs_without_a_text_are_an_error(tmp_path, raw):
  folder, _ = raw
  (folder / "new_aan_pairs.train.tsv").write_bytes(ROW * 5 + b"1.0\ta\tb\tone\t\n" * 11)
  with pytest.raises(DataError, match="11 rows lack one, the first is row 6"):
    builder(tmp_path).find(folder)


def test_the_official_number_of_pairs(tmp_path):
  raw_data.write("retrieval", tmp_path)
  with pytest.raises(DataError, match=r"(?s)expected 147,086 rows, found 16.*expected 18,090 .*expected 17,437 "):
    builder(tmp_path).find(tmp_path)
