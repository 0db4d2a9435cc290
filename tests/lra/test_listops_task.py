import itertools

import numpy as np
import pytest

from lra import expressions, listops, prepare
from mgk_jax.data import DataError
from tests.lra import raw_data

SMALL = {
  "num_train": 40,
  "num_valid": 10,
  "num_test": 12,
  "min_length": 5,
  "max_length": 40,
  "max_depth": 4,
  "max_args": 4,
}
LIMITS = {name: SMALL[name] for name in ("min_length", "max_length", "max_depth", "max_args")}


def builder(tmp_path, **settings):
  partial = settings.pop("partial", False)
  return listops.LraListops(data_dir=tmp_path / "prepared", config=listops.ListopsConfig(**settings), partial=partial)


def test_generated_sets_are_the_stream_of_their_seed_without_overlap(tmp_path):
  got = raw_data.read(prepare.prepare(builder(tmp_path, seed=3, **SMALL)))
  stream = [((x.tokens.tobytes(),), x.label) for x in itertools.islice(expressions.generate(3, **LIMITS), 62)]
  assert sorted(got["test"]) == sorted(stream[:12])
  assert sorted(got["validation"]) == sorted(stream[12:22])
  assert sorted(got["train"]) == sorted(stream[22:])
  assert len({tokens for examples in got.values() for (tokens,), _ in examples}) == 62


def test_labels_are_the_values_of_the_expressions(tmp_path):
  prepared = prepare.prepare(builder(tmp_path, **SMALL))
  for split in ("train", "validation", "test"):
    for example in prepared.as_data_source(split=split):
      assert listops.evaluate(listops.decode(example["tokens"])) == example["label"]
      assert 5 < len(example["tokens"]) < 40
      assert example["tokens"].dtype == np.uint8 and example["tokens"].min() >= 1


def test_the_sets_to_test_on_do_not_depend_on_the_number_to_train_on(tmp_path):
  few, many = (raw_data.read(prepare.prepare(builder(tmp_path, **SMALL | {"num_train": number}))) for number in (5, 40))
  assert few["test"] == many["test"] and few["validation"] == many["validation"]
  assert len(few["train"]) == 5


def test_each_setting_has_data_of_its_own(tmp_path):
  changes = [{}, {"seed": 1}, *({name: value + 1} for name, value in SMALL.items()), {"source": "files"}]
  folders = {str(builder(tmp_path, **SMALL | change).data_path) for change in changes}
  assert len(folders) == len(changes)


def test_the_default_is_the_long_range_arena(tmp_path):
  raw = listops.LraListops(data_dir=tmp_path).find(None)
  assert {name: split.num_examples for name, split in raw.splits.items()} == {
    "train": 96_000,
    "validation": 2_000,
    "test": 2_000,
  }
  _, first = next(iter(raw.splits["test"].read()))
  assert first["tokens"].tolist() == next(expressions.generate(0)).tokens.tolist()


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"source": "web"}, r"source: expected one of \('generated', 'files'\), got 'web'"),
    ({"num_valid": 0}, "num_valid: expected at least 1, got 0"),
    ({"seed": -1}, "seed: expected 0 or more, got -1"),
  ],
)
def test_settings_that_are_not_allowed(settings, message):
  with pytest.raises(ValueError, match=message):
    listops.ListopsConfig(**settings)


def test_limits_that_leave_too_little(tmp_path):
  with pytest.raises(DataError, match="expected limits that leave lengths"):
    builder(tmp_path, **SMALL | {"max_length": 4}).find(None)
  tiny = SMALL | {"min_length": 3, "max_length": 5, "max_args": 2, "num_train": 400}  # an operator and two digits
  with pytest.raises(DataError, match="found 400 different ones"):
    prepare.prepare(builder(tmp_path, **tiny))


@pytest.fixture
def raw(tmp_path, monkeypatch):
  """The folder of the raw data, which count as complete, and what is in them."""
  monkeypatch.setattr(listops, "ROWS", {"train": 16, "validation": 8, "test": 8})
  expected = raw_data.write("listops", tmp_path / "raw")
  return tmp_path / "raw" / raw_data.RELEASE / "listops-1000", expected


@pytest.mark.parametrize("place", [".", "..", "../../.."])
def test_the_files_of_the_long_range_arena(tmp_path, raw, place):
  folder, expected = raw
  got = raw_data.read(prepare.prepare(builder(tmp_path, source="files"), folder / place))
  assert {split: sorted(examples) for split, examples in got.items()} == {
    split: sorted(examples) for split, examples in expected.items()
  }


def test_the_files_in_their_archive(tmp_path, raw):
  _, expected = raw
  archive = raw_data.pack(tmp_path / "raw", tmp_path / "lra_release.gz")
  got = raw_data.read(prepare.prepare(builder(tmp_path, source="files"), archive))
  assert sorted(got["train"]) == sorted(expected["train"])


HEADER, ROW = "Source\tTarget\n", "( ( ( [MAX 2 ) 9 ) ] )\t9\n"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    (HEADER + ROW * 7, "basic_val.tsv: expected 8 rows, found 7"),
    (ROW * 8, r"basic_val.tsv: expected the header 'Source<TAB>Target', got b'\( \( "),
    ("", "basic_val.tsv: found no rows"),
    (None, "basic_val.tsv: there is no such file"),
    (
      HEADER + ROW * 3 + ROW.replace("\t9", "\t8") + ROW * 4,
      "line 5: the expression's value is 9, but the file says 8",
    ),
    (HEADER + ROW.replace("\t9", "") + ROW * 7, "line 2: expected an expression, a tab and a digit"),
    (HEADER + ROW * 7 + ROW.replace(") ] )", ""), "line 9: .*1 without ']'"),
    (HEADER + ROW.replace("MAX", "AVG") + ROW * 7, "line 2: .*got 'AVG'"),
    (HEADER + ROW.replace("MAX", "FIRST") + ROW * 7, r"line 2: .*got '\[FIRST'"),
  ],
)
def test_damage_is_named(tmp_path, raw, text, message):
  folder, _ = raw
  path = folder / "basic_val.tsv"
  path.unlink()
  if text is not None:
    path.write_text(text)
  with pytest.raises(DataError, match=message):
    prepare.prepare(builder(tmp_path, source="files"), folder)
  assert not builder(tmp_path, source="files").is_prepared()


def test_the_official_number_of_rows(tmp_path):
  raw_data.write("listops", tmp_path)
  with pytest.raises(DataError, match=r"(?s)expected 96,000 rows, found 16.*expected 2,000 rows, found 8"):
    builder(tmp_path, source="files").find(tmp_path)
  assert builder(tmp_path, source="files", partial=True).find(tmp_path).splits["train"].num_examples == 16
