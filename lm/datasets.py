"""The corpora: what is in them, and where they are to be had."""

import dataclasses
from collections.abc import Mapping
from typing import Literal

from mgk_jax.data import download
from mgk_jax.data.download import Archive
from mgk_jax.kernels import checks

SPLITS = ("train", "valid", "test")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Dataset:
  """A corpus as it is published.

  Attributes:
    name: as in the configs.
    unit: of which sequences are made: words, and the end of each line as one more, or bytes.
    num_tokens: of each split.
    vocab_size: words of the training split and `<eos>`, or all bytes.
    folder: the name of the directory that the archive unpacks to.
    archive: the official one.
  """

  name: str
  unit: Literal["word", "byte"]
  num_tokens: Mapping[str, int]
  vocab_size: int
  folder: str
  archive: Archive

  @property
  def looking_for(self) -> str:
    """The files, for messages."""
    return "wiki.{train,valid,test}.tokens" if self.unit == "word" else self.name

  def advice(self) -> str:
    """Where to get it, and the commands that prepare it."""
    return download.advice(self.archive, f"python -m lm.prepare {self.name}")


# The archives of WikiText are those of its author; the checksums are those of the files that were published first.
DATASETS = {
  dataset.name: dataset
  for dataset in (
    Dataset(
      name="wikitext103",
      unit="word",
      num_tokens={"train": 103_227_021, "valid": 217_646, "test": 245_569},
      vocab_size=267_735,
      folder="wikitext-103",
      archive=Archive(
        url="https://wikitext.smerity.com/wikitext-103-v1.zip",
        name="wikitext-103-v1.zip",
        size=None,
        about="about 190 MB",
        sha256="242ba0f20b329cfdf1ccc61e9e9e5b59becf189db7f7a81cd2a0e2fc31539590",
      ),
    ),
    Dataset(
      name="wikitext2",
      unit="word",
      num_tokens={"train": 2_088_628, "valid": 217_646, "test": 245_569},
      vocab_size=33_278,
      folder="wikitext-2",
      archive=Archive(
        url="https://wikitext.smerity.com/wikitext-2-v1.zip",
        name="wikitext-2-v1.zip",
        size=None,
        about="about 4.5 MB",
        sha256="92675f1d63015c1c8b51f1656a52d5bdbc33aafa60cc47a218a66e7ee817488c",
      ),
    ),
    Dataset(
      name="enwik8",
      unit="byte",
      num_tokens={"train": 90_000_000, "valid": 5_000_000, "test": 5_000_000},
      vocab_size=256,
      folder="enwik8",
      archive=Archive(
        url="https://mattmahoney.net/dc/enwik8.zip",
        name="enwik8.zip",
        size=36_445_475,
        about="36 MB",
        sha256="547994d9980ebed1288380d652999f38a14fe291a6247c157c3d33d4932534bc",
      ),
    ),
  )
}


def get(name: str) -> Dataset:
  """A corpus by its name.

  Raises:
    ValueError: there is none of that name; the message lists those that there are.
  """
  checks.one_of("dataset", name, DATASETS)
  return DATASETS[name]
