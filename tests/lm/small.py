"""Small corpora in exactly the formats in which the real ones are published."""

import importlib
import random
import zipfile
from pathlib import Path

from lm import datasets, prepare

WORDS = [f"word{number}" for number in range(30)] + ["<unk>", "Ω", "@-@", ","]


def text(num_lines, seed):
  """Lines as in WikiText: a space at either end, every second one empty, and a heading."""
  rng = random.Random(seed)
  lines = [" \n", " = Heading = \n"]
  while len(lines) < num_lines:
    words = rng.choices(WORDS, weights=range(len(WORDS), 0, -1), k=rng.randint(3, 40))
    lines.append(f" {' '.join(words)} \n" if len(lines) % 2 else " \n")
  return "".join(lines).encode()


TEXTS = {"train": text(60, 0), "valid": text(9, 1), "test": text(12, 2)}


def write(folder, texts=None):
  """wiki.{train,valid,test}.tokens."""
  folder = Path(folder)
  folder.mkdir(parents=True, exist_ok=True)
  for split, content in (texts or TEXTS).items():
    (folder / f"wiki.{split}.tokens").write_bytes(content)
  return folder


def write_zip(path, texts=None):
  """An archive as that of WikiText-2, with its folder and the folder's own entry."""
  with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
    archive.writestr("wikitext-2/", b"")
    for split, content in (texts or TEXTS).items():
      archive.writestr(f"wikitext-2/wiki.{split}.tokens", content)
  return path


def prepared(folder, name="wikitext2"):
  """A small corpus, prepared below `folder`, which is to be given as --prepared_dir."""
  if name == "enwik8":
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "enwik8").write_bytes(TEXTS["train"] * 4)
    raw = folder / "enwik8"
  else:
    raw = write(folder / "raw")
  return prepare.prepare(datasets.get(name), raw, folder, partial=True)


def tokens(content):
  """Words of a text and the ends of its lines, by the definition."""
  return [word for line in content.decode().splitlines() for word in [*line.split(" "), "<eos>"] if word]


MODEL = "layers=1,emb_dim=8,mlp_dim=8,heads=2,head_dim=4,cutoffs=8/20"
RUN = "batch=4,length=8,steps=6,warmup=2,eval_every=3,log_every=2,lr=1e-2"


def argument(arg, sizes=(MODEL, RUN)):
  """What stands behind the colon: `arg`, and small sizes for all that it does not set."""
  given = {part.partition("=")[0] for part in arg.split(",")}
  rest = [part for size in sizes for part in size.split(",") if part.partition("=")[0] not in given]
  return ",".join([arg, *rest])


def get_config(arg, name="wikitext2_small"):
  """A shipped config, small but for what `arg` sets."""
  return importlib.import_module(f"configs.lm.{name}").get_config(argument(arg))
