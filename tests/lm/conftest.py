"""What several tests of the program share."""

import pytest

from lm import train
from tests.lm import small


@pytest.fixture(scope="session")
def run(tmp_path_factory):
  """A folder with a prepared corpus and, in `run`, a finished run on it."""
  folder = tmp_path_factory.mktemp("runs")
  small.prepared(folder)
  train.train(small.get_config("smgk,prior=em"), folder / "run", prepared_dir=folder)
  return folder
