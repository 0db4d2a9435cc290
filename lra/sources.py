"""The official archives of the tasks' raw data."""

from mgk_jax.data import download
from mgk_jax.data.download import Archive

_RELEASE = Archive(
  url="https://storage.googleapis.com/long-range-arena/lra_release.gz",
  name="lra_release.gz",
  size=None,
  about="about 7.7 GB",
  sha256=None,
)
ARCHIVES = {
  "listops": _RELEASE,
  "text": Archive(
    url="https://ai.stanford.edu/~amaas/data/sentiment/aclImdb_v1.tar.gz",
    name="aclImdb_v1.tar.gz",
    size=84_125_825,
    about="84 MB",
    sha256="c40f74a18d3b61f90feba1e17730e0d38e8b97c05fde7008942e91923d1658fe",
  ),
  "retrieval": _RELEASE,
  "image": Archive(
    url="https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    name="cifar-10-binary.tar.gz",
    size=170_052_171,
    about="170 MB",
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
  ),
  "pathfinder32": _RELEASE,
}


def advice(task: str) -> str:
  """Where the raw data of a task are to be had, and the command that fetches them."""
  return download.advice(ARCHIVES[task], f"python -m lra.prepare {task}")
