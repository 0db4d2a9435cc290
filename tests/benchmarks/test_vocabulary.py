"""The benchmark of the vocabulary at a small size, and the frequencies from which it draws words."""

import tarfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from benchmarks import timing, vocabulary
from lm import datasets

WIKITEXT2 = Path(__file__).parents[3] / "shared" / "data" / "wt2.tar.xz"


def test_profile():
  """Through the anchors, with straight lines in logarithms between them."""
  shares = vocabulary.profile({1: 0.5, 4: 0.125, 16: 0.125 / 16}, 16)
  assert shares.sum() == pytest.approx(1)
  np.testing.assert_allclose(shares[[1, 3, 7, 15]] / shares[0], [0.5, 0.25, 0.0625, 0.015625])


def test_shares_of_wikitext103():
  """Most words are in the first cluster, and the rarest one comes about three times in the corpus."""
  dataset = datasets.get("wikitext103")
  shares = vocabulary.profile(vocabulary.ANCHORS, dataset.vocab_size)
  assert np.all(np.diff(shares) <= 0)
  assert 0.9 < shares[:20_000].sum() < 0.97
  assert 2 < shares[-1] * dataset.num_tokens["train"] < 4


@pytest.mark.skipif(not WIKITEXT2.exists(), reason="needs WikiText-2")
def test_anchors_are_those_of_the_text():
  with tarfile.open(WIKITEXT2) as archive:
    name = next(name for name in archive.getnames() if "train" in name)
    text = archive.extractfile(name).read()
  counts = Counter(text.replace(b"\n", b" <eos> ").split())
  ranked = sorted(counts.values(), reverse=True)
  for rank, share in list(vocabulary.ANCHORS.items())[:-1]:
    assert share == pytest.approx(ranked[rank - 1] / len(text.split() + text.split(b"\n")[1:]), rel=1e-2)


def test_small():
  """All contenders run and the adaptive one has fewer products; with the same loss as a plain one without cutoffs."""
  shares = vocabulary.profile({1: 0.1, 300: 1e-4}, 300)
  contenders = vocabulary.contenders(shares, (50, 100), 8, 40)
  table = timing.table(timing.measure(contenders, 1), [vocabulary.DENSE])
  assert [line.split(" | ")[0] for line in table.splitlines()[2:]] == [
    "| adaptive softmax", "| dense softmax, in chunks", "| dense softmax",
  ]  # fmt: skip
  adaptive, _, dense = (contender.flops for contender in contenders)
  assert dense == 3 * 2 * 8 * 40 * 300 and adaptive < dense


def test_the_command(capsys):
  sizes = ["--vocab_size=200", "--cutoffs", "20", "60", "--features=8", "--batch=2", "--length=8", "--repeats=1"]
  vocabulary.main([*sizes, "--no-dense"])
  shown = capsys.readouterr().out
  assert "2 × 8 words, 200 words in the vocabulary" in shown and "| adaptive softmax |" in shown
