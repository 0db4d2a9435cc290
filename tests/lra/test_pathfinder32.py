import itertools
import shutil

import numpy as np
import PIL.Image
import pytest

from lra import pathfinder32, prepare
from mgk_jax.data import DataError
from tests.lra import raw_data


@pytest.fixture
def raw(tmp_path, monkeypatch):
  """The folder of the raw data, which count as complete, and what is in them."""
  monkeypatch.setattr(pathfinder32, "IMAGES", 80)
  expected = raw_data.write("pathfinder32", tmp_path / "raw")
  return tmp_path / "raw" / raw_data.RELEASE / "pathfinder32/curv_contour_length_14", expected


def builder(tmp_path, **arguments):
  return pathfinder32.LraPathfinder32(data_dir=tmp_path / "prepared", **arguments)


@pytest.mark.parametrize("place", [".", "..", "../..", "../../.."])
def test_what_is_prepared_is_what_was_written(tmp_path, raw, place):
  folder, expected = raw
  got = raw_data.read(prepare.prepare(builder(tmp_path), folder / place))
  assert {split: sorted(examples) for split, examples in got.items()} == {
    split: sorted(examples) for split, examples in expected.items()
  }


def test_the_archive_is_unpacked_beside_it(tmp_path, raw):
  folder, expected = raw
  shutil.copytree(folder, folder.with_name("curv_baseline"))
  archive = raw_data.pack(tmp_path / "raw", tmp_path / "lra_release.gz")
  prepared = prepare.prepare(builder(tmp_path), archive)
  assert sorted(raw_data.read(prepared)["images"]) == sorted(expected["images"])
  assert not list((tmp_path / "lra_release-pathfinder32").rglob("curv_baseline"))


def test_protocol_is_disjoint_and_complete(tmp_path, raw):
  folder, expected = raw
  prepared = prepare.prepare(builder(tmp_path), folder)
  protocol = pathfinder32.TASK.protocol("lra")
  parts = [
    [x["tokens"].tobytes() for x in prepared.as_data_source(split=split)]
    for split in (protocol.train, protocol.valid, protocol.test)
  ]
  assert [len(part) for part in parts] == [64, 8, 8]
  assert sorted(itertools.chain(*parts)) == sorted(tokens for (tokens,), _ in expected["images"])


def test_the_easier_images_are_not_taken_for_the_hard_ones(tmp_path, raw):
  folder, _ = raw
  folder.rename(folder.with_name("curv_baseline"))
  for place in (folder.parent, folder.with_name("curv_baseline")):
    with pytest.raises(DataError, match="expected pathfinder32/curv_contour_length_14/metadata"):
      builder(tmp_path).find(place)


def test_a_few_empty_files_are_left_out_and_named(tmp_path, raw):
  folder, _ = raw
  (folder / "imgs/0/sample_3.png").write_bytes(b"")
  (folder / "imgs/4/sample_7.png").write_bytes(b"")
  prepared = prepare.prepare(builder(tmp_path), folder)
  assert prepared.info.splits["images"].num_examples == 78
  assert prepared.notes == ["2 images are empty files and left out: imgs/0/sample_3.png, imgs/4/sample_7.png"]


def empty_many(folder):
  for sample in range(11):
    (folder / f"imgs/1/sample_{sample}.png").write_bytes(b"")


def rewrite(folder, change):
  path = folder / "metadata/2.npy"
  path.write_text(change(path.read_text()))


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (empty_many, "11 images are empty files, the first is imgs/1/sample_0.png; expected at most 10"),
    (
      lambda folder: (folder / "imgs/3/sample_5.png").unlink(),
      "1 of the images listed .* missing, .* imgs/3/sample_5.png",
    ),
    (lambda folder: (folder / "metadata/4.npy").unlink(), "metadata: expected 80 images listed, found 64"),
    (lambda folder: (folder / "metadata/4.npy").write_bytes(b""), "metadata/4.npy: the file is empty"),
    (
      lambda folder: rewrite(folder, lambda text: text[:65]),
      "metadata/2.npy, line 2: expected 'imgs/<n> <name>.png <id>",
    ),
    (
      lambda folder: rewrite(folder, lambda text: text.replace(" 3 0 ", " 3 2 ").replace(" 3 1 ", " 3 2 ")),
      "2.npy, line 4",
    ),
    (
      lambda folder: rewrite(folder, lambda text: text.replace("imgs/2", "../../imgs")),
      "2.npy, line 1: expected 'imgs/",
    ),
    (
      lambda folder: rewrite(folder, lambda text: text.replace("sample_9.", "sample_8.")),
      "2.npy, line 10: imgs/2/sample_8.png is listed a second time",
    ),
    (lambda folder: shutil.rmtree(folder / "imgs"), "80 of the images listed in metadata are missing"),
  ],
)
def test_damage_is_named_with_the_way_out(tmp_path, raw, damage, message):
  folder, _ = raw
  damage(folder)
  with pytest.raises(DataError, match=message) as error:
    builder(tmp_path).find(folder)
  assert "python -m lra.prepare pathfinder32 --download" in str(error.value)


def cut_short(path):
  path.write_bytes(path.read_bytes()[:300])


def save(shape):
  return lambda path: PIL.Image.fromarray(np.zeros(shape, np.uint8)).save(path)


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (cut_short, "cannot be read as a PNG image"),
    (lambda path: path.write_text("<html>not found</html>"), "cannot be read as a PNG image"),
    (save((64, 64)), r"expected 32×32 grey pixels, got \(64, 64\) of mode L"),
  ],
)
def test_an_unreadable_image_is_named_and_nothing_is_prepared(tmp_path, raw, damage, message):
  folder, _ = raw
  damage(folder / "imgs/2/sample_11.png")
  with pytest.raises(DataError, match=f"imgs/2/sample_11.png: {message}"):
    prepare.prepare(builder(tmp_path), folder)
  assert not builder(tmp_path).is_prepared()
  assert not list((tmp_path / "prepared").rglob("*.array_record*"))


def test_grey_values_of_a_coloured_file_are_read(tmp_path, raw):
  folder, expected = raw
  path = folder / "imgs/0/sample_0.png"
  with PIL.Image.open(path) as image:
    image.convert("RGB").save(path)
  _, example = next(iter(builder(tmp_path).find(folder).splits["images"].read()))
  assert example["tokens"].tobytes() == expected["images"][0][0][0]


def test_the_official_number_of_images(tmp_path):
  raw_data.write("pathfinder32", tmp_path)
  with pytest.raises(DataError, match="metadata: expected 200,000 images listed, found 80"):
    builder(tmp_path).find(tmp_path)
