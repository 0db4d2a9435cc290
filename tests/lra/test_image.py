import pickle

import numpy as np
import pytest

from lra import image, prepare
from mgk_jax.data import DataError
from tests.lra import raw_data


@pytest.fixture
def raw(tmp_path, monkeypatch):
  """A directory with raw data that count as complete, and what is in them."""
  monkeypatch.setattr(image, "PICTURES", 16)
  return tmp_path / "raw", raw_data.write("image", tmp_path / "raw")


def builder(tmp_path, **arguments):
  return image.LraImage(data_dir=tmp_path / "prepared", **arguments)


@pytest.mark.parametrize(
  ("colour", "expected"),
  [
    ((0, 0, 0), 0),
    ((255, 255, 255), 255),  # 0.9999 · 255.5 = 255.47
    ((255, 0, 0), 76),  # 0.2989 · 255.5 = 76.37
    ((0, 255, 0), 149),  # 0.5870 · 255.5 = 149.98, which other formulas make 150
    ((0, 0, 255), 29),  # 0.1140 · 255.5 = 29.13
    ((10, 20, 30), 18),  # (2.989 + 11.74 + 3.42) · 255.5 / 255 = 18.18
    ((200, 100, 50), 124),  # (59.78 + 58.7 + 5.7) · 255.5 / 255 = 124.42
    ((1, 1, 1), 1),  # 0.9999 · 255.5 / 255 = 1.0019: not 0, as plain truncation would have it
  ],
)
def test_grey_of_a_colour(colour, expected):
  pixels = np.repeat(np.array(colour, np.uint8), 1024)[None]
  assert (image.grey(pixels) == expected).all()


def test_grey_keeps_the_order_of_pixels():
  pixels = np.zeros((2, 3, 32, 32), np.uint8)
  pixels[0, 1, 3, 7] = 255
  pixels[1, 0, 31, 0] = 255
  grey = image.grey(pixels.reshape(2, -1))
  assert [(picture, place, value) for (picture, place), value in np.ndenumerate(grey) if value] == [
    (0, 3 * 32 + 7, 149),
    (1, 31 * 32, 76),
  ]


@pytest.mark.parametrize("place", [".", "cifar-10-batches-bin"])
def test_what_is_prepared_is_the_grey_of_what_was_written(tmp_path, raw, place):
  root, expected = raw
  got = raw_data.read(prepare.prepare(builder(tmp_path), root / place))
  for split, number in (("train", 80), ("test", 16)):
    planes = np.array([np.frombuffer(pixels, np.uint8) for (pixels,), _ in expected[split]], int).reshape(-1, 3, 1024)
    grey = (2989 * planes[:, 0] + 5870 * planes[:, 1] + 1140 * planes[:, 2]) * 511 // 5_100_000  # exact
    labels = [label for _, label in expected[split]]
    want = sorted((label, pixels.astype(np.uint8).tobytes()) for label, pixels in zip(labels, grey, strict=True))
    have = sorted((label, tokens) for (tokens,), label in got[split])
    assert len(have) == number
    assert [label for label, _ in have] == [label for label, _ in want]
    # The float32 arithmetic differs from the exact one in 237 of the 2^24 colours, by one.
    wrong = sum(a != b for (_, x), (_, y) in zip(have, want, strict=True) for a, b in zip(x, y, strict=True))
    assert wrong <= 5


@pytest.mark.parametrize("version", ["bin.tar.gz", "py.tar.gz", "py"])
def test_all_versions_give_the_same(tmp_path, raw, version):
  root, _ = raw
  from_binary = raw_data.read(prepare.prepare(builder(tmp_path), root))
  if version.startswith("py"):
    root = tmp_path / "python"
    raw_data.write_image_python(root)
  if version.endswith("gz"):
    root = raw_data.pack(root, tmp_path / "cifar-10-binary.tar.gz")
  assert raw_data.read(prepare.prepare(image.LraImage(data_dir=tmp_path / "again"), root)) == from_binary


def test_what_python_3_pickles_is_read_too(tmp_path, raw):
  root, _ = raw
  raw_data.write_image_python(root / "old")
  raw_data.write_image_python(root / "new")
  for path in (root / "new/cifar-10-batches-py").glob("*_batch*"):
    path.write_bytes(pickle.dumps(pickle.loads(path.read_bytes(), encoding="bytes"), protocol=2))
  old, new = (list(builder(tmp_path).find(root / name).splits["train"].read()) for name in ("old", "new"))
  assert [(key, x["label"], x["tokens"].tobytes()) for key, x in old] == [
    (key, x["label"], x["tokens"].tobytes()) for key, x in new
  ]


def test_a_pickle_cannot_run_code(tmp_path, raw):
  class Call:
    def __reduce__(self):
      return (open, (str(tmp_path / "made by a pickle"), "w"))

  raw_data.write_image_python(tmp_path / "python")
  (tmp_path / "python/cifar-10-batches-py/data_batch_3").write_bytes(pickle.dumps({b"data": Call()}, protocol=2))
  with pytest.raises(DataError, match=r"data_batch_3: cannot be read .*io.open is not admitted"):
    builder(tmp_path).find(tmp_path / "python")
  assert not (tmp_path / "made by a pickle").exists()


def test_protocol_is_disjoint_and_complete(tmp_path, raw):
  root, _ = raw
  prepared = prepare.prepare(builder(tmp_path), root)
  protocol = image.TASK.protocol("lra")
  train, valid, everything = (
    [x["tokens"].tobytes() for x in prepared.as_data_source(split=split)]
    for split in (protocol.train, protocol.valid, "train")
  )
  assert (len(train), len(valid)) == (72, 8)
  assert sorted(train + valid) == sorted(everything)
  assert protocol.test == "test"


def cut_short(folder):
  path = folder / "data_batch_2.bin"
  path.write_bytes(path.read_bytes()[:-100])


def one_record_less(folder):
  path = folder / "test_batch.bin"
  path.write_bytes(path.read_bytes()[:-3073])


def wrong_label(folder):
  path = folder / "data_batch_5.bin"
  content = bytearray(path.read_bytes())
  content[3073 * 7] = 37
  path.write_bytes(content)


@pytest.mark.parametrize(
  ("damage", "message"),
  [
    (
      cut_short,
      "data_batch_2.bin: expected records of 3,073 bytes, got 49,068 bytes, which are 15 records and 2,973 bytes",
    ),
    (one_record_less, "test_batch: expected 16 pictures, found 15"),
    (wrong_label, "data_batch_5.bin, picture 7: expected a label from 0 to 9, got 37"),
    (lambda folder: (folder / "data_batch_4.bin").unlink(), "expected data_batch_4.bin or data_batch_4, found neither"),
    (lambda folder: (folder / "data_batch_1.bin").write_bytes(b""), "data_batch_1.bin: the file is empty"),
  ],
)
def test_damage_is_named_with_the_way_out(tmp_path, raw, damage, message):
  root, _ = raw
  damage(root / "cifar-10-batches-bin")
  with pytest.raises(DataError, match=message) as error:
    prepare.prepare(builder(tmp_path), root)
  assert "python -m lra.prepare image --download" in str(error.value)
  assert "cifar-10-binary.tar.gz (170 MB; sha256 c4a38c50" in str(error.value)


@pytest.mark.parametrize(
  ("batch", "message"),
  [
    ({b"labels": [0, 1]}, "KeyError"),
    ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0]}, "expected data uint8"),
    ({b"data": np.zeros((2, 3000), np.uint8), b"labels": [0, 1]}, "expected data uint8"),
    ({b"data": np.zeros((2, 3072), np.uint8), b"labels": [0, -1]}, "picture 1: expected a label from 0 to 9"),
  ],
)
def test_damaged_pickles(tmp_path, batch, message):
  raw_data.write_image_python(tmp_path)
  path = tmp_path / "cifar-10-batches-py/test_batch"
  path.write_bytes(raw_data.python2_pickle(batch))
  with pytest.raises(DataError, match=f"(?s)test_batch.*{message}"):
    builder(tmp_path, partial=True).find(tmp_path)


def test_a_pickle_that_is_cut_short(tmp_path):
  raw_data.write_image_python(tmp_path)
  path = tmp_path / "cifar-10-batches-py/data_batch_1"
  path.write_bytes(path.read_bytes()[:5000])
  with pytest.raises(DataError, match="data_batch_1: cannot be read as a batch"):
    builder(tmp_path, partial=True).find(tmp_path)


def test_the_official_number_of_pictures(tmp_path):
  raw_data.write("image", tmp_path)
  with pytest.raises(DataError, match="data_batch_5: expected 10,000 pictures, found 16"):
    builder(tmp_path).find(tmp_path)


def test_pictures_in_colour(tmp_path):
  expected = raw_data.write("image", tmp_path / "bin")
  raw_data.write_image_python(tmp_path / "py")
  for split, number in (("train", 80), ("test", 16)):
    pictures, labels = image.pictures(tmp_path / "bin", split)
    assert (pictures.shape, pictures.dtype) == ((number, 32, 32, 3), np.uint8)
    assert labels.tolist() == [label for _, label in expected[split]]
    for picture, ((planes,), _) in zip(pictures, expected[split], strict=True):
      assert [picture[..., colour].tobytes() for colour in range(3)] == [planes[i : i + 1024] for i in (0, 1024, 2048)]
    assert np.array_equal(image.pictures(tmp_path / "py", split)[0], pictures)
