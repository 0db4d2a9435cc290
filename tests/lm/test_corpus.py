"""Prepared corpora hold exactly the words of their files, numbered by frequency."""

import collections
import json

import numpy as np
import pytest

from lm import corpus as corpora, datasets, raw
from lm.corpus import Corpus
from mgk_jax.data import DataError
from tests.lm import small


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
  return small.prepared(tmp_path_factory.mktemp("corpus"))


def test_words_are_those_of_the_files(corpus):
  for split, content in small.TEXTS.items():
    ids = getattr(corpus, split)
    assert isinstance(ids, np.memmap) and ids.dtype == np.int32 and not ids.flags.writeable
    assert [corpus.vocabulary[number] for number in ids] == small.tokens(content)


def test_numbers_are_ranks(corpus):
  """By the training split alone; equally frequent words in the order of their bytes."""
  counts = collections.Counter(small.tokens(small.TEXTS["train"]))
  expected = sorted(counts, key=lambda word: (-counts[word], word.encode()))
  assert corpus.vocabulary == expected and corpus.vocab_size == len(expected)
  assert corpus.counts.tolist() == [counts[word] for word in expected]
  shuffled = list(counts.items())[::-1]
  again = corpora.vocabulary({word.encode(): number for word, number in shuffled}, "word")
  assert [word.decode() for word in again] == expected  # whatever the order of the articles


def test_unknown_words_are_counted_and_said(tmp_path):
  texts = small.TEXTS | {"valid": b" a b word1 \n a \n"}
  small.write(tmp_path, texts)
  (tmp_path / "wiki.train.tokens").write_bytes(b"x y word1\n x\n")
  dataset = datasets.get("wikitext2")
  counted = corpora.count(dataset, raw.find(dataset, tmp_path), partial=True)
  assert counted.num_unknown("train") == 0 and counted.num_unknown("valid") == 3
  assert counted.vocabulary == [b"<eos>", b"x", b"word1", b"y", b"<unk>"]  # last, as it does not occur
  (tmp_path / "prepared").mkdir()
  corpora.write(dataset, counted, tmp_path / "prepared")
  corpus = Corpus(tmp_path / "prepared")
  assert corpus.valid.tolist() == [4, 4, 2, 0, 4, 0]
  assert "3 words of valid are not in the vocabulary and read as <unk>" in corpus.notes


@pytest.mark.parametrize("piece", [1, 2, 7, 1 << 20])
def test_pieces_do_not_matter(monkeypatch, tmp_path, piece):
  """Words and letters that go over the border of two pieces, and a last line without an end."""
  monkeypatch.setattr(raw, "PIECE", piece)
  content = " αβγ word \n\n  Ω @-@\tx \nlast".encode()
  path = tmp_path / "text"
  path.write_bytes(content)
  text = raw.Text("text", len(content), raw._reader(path))
  found = [word.decode() for words in raw.words(text, "reading") for word in words]
  assert found == ["αβγ", "word", "<eos>", "<eos>", "Ω", "@-@", "x", "<eos>", "last", "<eos>"]


def test_text_and_back(corpus):
  ids = corpus.encode("word1 , word2 nonsense\n\nΩ <unk>")
  words = [corpus.vocabulary[number] for number in ids]
  assert words == ["word1", ",", "word2", "<unk>", "<eos>", "<eos>", "Ω", "<unk>"] and ids.dtype == np.int32
  assert corpus.decode(ids) == "word1 , word2 <unk>\n\nΩ <unk>"
  assert corpus.vocabulary[corpus.eos] == "<eos>"
  assert corpus.encode("").tolist() == [] and corpus.decode([]) == ""


def test_bytes(tmp_path):
  """The file is cut into 90, 5 and 5 hundredths, in order; all 256 bytes have a number, frequent ones first."""
  corpus = small.prepared(tmp_path, "enwik8")
  content = (tmp_path / "enwik8").read_bytes()
  parts = [bytes(corpus.vocabulary[number][0] for number in getattr(corpus, split)) for split in datasets.SPLITS]
  assert b"".join(parts) == content[: len(b"".join(parts))] and len(content) - len(b"".join(parts)) < 3
  assert len(parts[0]) == len(content) * 90 // 100
  assert corpus.vocab_size == 256 == len(set(corpus.vocabulary)) and corpus.eos is None
  counts = collections.Counter(parts[0])
  assert corpus.counts.tolist() == sorted((counts[value] for value in range(256)), reverse=True)
  assert corpus.decode(corpus.encode("Ωx\n")) == "Ωx\n"


def test_damage_is_noticed(tmp_path):
  corpus = small.prepared(tmp_path)
  path = corpus.path / "valid.npy"
  content = bytearray(path.read_bytes())
  content[-1] ^= 1
  path.write_bytes(content)
  damaged = Corpus(corpus.path)
  assert len(damaged.train)
  with pytest.raises(DataError, match=r"valid.npy: expected the checksum \d+, got \d+: it is damaged; prepare"):
    _ = damaged.valid
  path.write_bytes(content[:-4])
  with pytest.raises(DataError, match=r"valid.npy: expected [\d,]+ bytes, got [\d,]+; prepare the data again"):
    Corpus(corpus.path)
  path.unlink()
  with pytest.raises(DataError, match=r"valid.npy: expected [\d,]+ bytes, got 0; prepare"):
    Corpus(corpus.path)
  metadata = corpus.path / "metadata.json"
  metadata.write_text(json.dumps(corpus.metadata | {"format": 99}))
  with pytest.raises(DataError, match="expected prepared data of format 1, got format 99; prepare"):
    Corpus(corpus.path)
  for wrong in ("{", "[]", "{}"):
    metadata.write_text(wrong)
    with pytest.raises(DataError, match=r"metadata.json: cannot be read"):
      Corpus(corpus.path)
