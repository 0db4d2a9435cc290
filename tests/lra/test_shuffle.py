import hashlib
import random

import pytest
from tensorflow_datasets.core import shuffle as tfds_shuffle

from lra.shuffle import Shuffled
from mgk_jax.data import DataError


def records(number):
  rng = random.Random(0)
  return [(f"key {i}", rng.randbytes(rng.randint(0, 200))) for i in range(number)]


@pytest.mark.parametrize("memory", [1 << 20, 1000, 0])
def test_order_is_that_of_tfds_however_little_fits_into_memory(tmp_path, memory):
  shuffled = Shuffled(tmp_path, "train", memory=memory)
  expected = tfds_shuffle.Shuffler(tmp_path, "train")
  for key, record in records(500):
    shuffled.add(key, record)
    expected.add(key, record)
  assert list(shuffled) == [record for _, record in expected]
  assert (shuffled.num_records, shuffled.num_bytes) == (500, sum(len(record) for _, record in records(500)))
  assert bool(list(tmp_path.iterdir())) == (memory < 1 << 20)
  shuffled.close()
  assert not list(tmp_path.iterdir())


def test_order_is_that_of_the_hashes(tmp_path):
  shuffled = Shuffled(tmp_path, "salt")
  for number in range(50):
    shuffled.add(str(number), b"%d" % number)
  by_hash = sorted(range(50), key=lambda number: hashlib.md5(b"salt%d" % number).hexdigest())
  assert [int(record) for record in shuffled] == by_hash


@pytest.mark.parametrize("memory", [1 << 20, 0])
def test_a_key_that_comes_twice_is_an_error(tmp_path, memory):
  shuffled = Shuffled(tmp_path, "train", memory=memory)
  for key in ("a", "b", "a"):
    shuffled.add(key, b"record")
  with pytest.raises(DataError, match="two examples with the same one"):
    list(shuffled)
  shuffled.close()
