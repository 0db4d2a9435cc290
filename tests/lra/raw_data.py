"""Small files in exactly the formats in which the raw data of the tasks are published.

Every function writes below `root` what unpacking the official archive there would write, only less of it, and returns
the examples that a reader should find, by split: a list of (sequences, label).
"""

import pickle
import random
import tarfile
from pathlib import Path

import numpy as np
import PIL.Image

from lra import expressions

RELEASE = Path("lra_release/lra_release")  # where the archive of the Long Range Arena keeps its folders


def write(task, root, size=16):
  """Raw data of a task: `size` examples to train on (times five for images, which come in files of one size)."""
  return WRITERS[task](Path(root), size)


def write_listops(root, size=16):
  folder = root / RELEASE / "listops-1000"
  folder.mkdir(parents=True)
  stream = expressions.generate(1, min_length=5, max_length=40, max_depth=4, max_args=4)
  found = {}
  for split, name, number in (("train", "train", size), ("validation", "val", size // 2), ("test", "test", size // 2)):
    examples = [next(stream) for _ in range(number)]
    rows = [f"{_with_parentheses(expressions.decode(x.tokens))}\t{x.label}" for x in examples]
    (folder / f"basic_{name}.tsv").write_text("\r\n".join(["Source\tTarget", *rows, ""]), newline="")
    found[split] = [((x.tokens.tobytes(),), x.label) for x in examples]
  return found


def _with_parentheses(text):
  """`[MAX 2 9 ]` as `( ( ( [MAX 2 ) 9 ) ] )`, the binary trees of the original files."""

  def read(tokens):
    token = tokens.pop(0)
    if not token.startswith("["):
      return token
    tree = token
    while tokens[0] != "]":
      tree = f"( {tree} {read(tokens)} )"
    return f"( {tree} {tokens.pop(0)} )"

  return read(text.split())


def write_text(root, size=16):
  rng = random.Random(2)
  found = {}
  for split in ("train", "test"):
    found[split] = []
    for label, name in enumerate(("neg", "pos")):
      folder = root / "aclImdb" / split / name
      folder.mkdir(parents=True)
      for number in range(size // 2):
        words = rng.choices(
          ("a", "film", "<br /><br />", "naïve", "“good”", "bad,", "\x85", "10/10"), k=rng.randint(5, 60)
        )
        review = f"{split} {name} {number}: {' '.join(words)}".encode()
        (folder / f"{number}_{rng.randint(1, 4) + 6 * label}.txt").write_bytes(review)
        found[split].append(((review,), label))
  (root / "aclImdb/train/unsup").mkdir()
  (root / "aclImdb/train/unsup/0_0.txt").write_text("without a label")
  (root / "aclImdb/train/urls_pos.txt").write_text("http://www.imdb.com/title/tt0453418/usercomments\n")
  (root / "aclImdb/README").write_text("Large Movie Review Dataset v1.0")
  return found


def write_retrieval(root, size=16):
  rng = random.Random(3)
  folder = root / RELEASE / "tsv_data"
  folder.mkdir(parents=True)
  found = {}
  for split, name, number in (("train", "train", size), ("validation", "eval", size // 2), ("test", "test", size // 2)):
    found[split], rows = [], []
    for row in range(number):
      texts = [f"{split} {row} {i} \"quoted '{'é' * rng.randint(0, 40)}".encode() + b"\xff\x0b" for i in range(2)]
      rows.append(b"\t".join([b"%d.0" % (row % 2), b"P05-10%02d" % row, b"W04-0%03d" % row, *texts]) + b"\n")
      found[split].append((tuple(texts), row % 2))
    (folder / f"new_aan_pairs.{name}.tsv").write_bytes(b"".join(rows))
  return found


def _pictures(number, seed):
  rng = np.random.default_rng(seed)
  return rng.integers(0, 256, (number, 3072), np.uint8), rng.permutation(np.arange(number) % 10)


def _cifar_files(size):
  return {
    name: _pictures(size, seed) for seed, name in enumerate([*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"])
  }


def write_image(root, size=16):
  """The binary version; the examples hold the planes red, green and blue instead of the grey that a reader makes."""
  folder = root / "cifar-10-batches-bin"
  folder.mkdir(parents=True)
  found = {"train": [], "test": []}
  for name, (pixels, labels) in _cifar_files(size).items():
    records = np.concatenate([labels.astype(np.uint8)[:, None], pixels], axis=1)
    (folder / f"{name}.bin").write_bytes(records.tobytes())
    found["test" if name == "test_batch" else "train"] += [
      ((p.tobytes(),), int(y)) for p, y in zip(pixels, labels, strict=True)
    ]
  (folder / "batches.meta.txt").write_text("airplane\nautomobile\nbird\ncat\ndeer\ndog\nfrog\nhorse\nship\ntruck\n\n")
  return found


def write_image_python(root, size=16):
  """The same pictures as `write_image`, as Python 2 pickled them: keys are bytes, arrays by NumPy's old module name."""
  folder = root / "cifar-10-batches-py"
  folder.mkdir(parents=True)
  for name, (pixels, labels) in _cifar_files(size).items():
    (folder / name).write_bytes(
      python2_pickle(
        {b"batch_label": b"a batch", b"labels": labels.tolist(), b"data": pixels, b"filenames": [b"a.png"] * size}
      )
    )
  (folder / "batches.meta").write_bytes(pickle.dumps({b"num_vis": 3072}, protocol=2))


def python2_pickle(value):
  """What protocol 2 of Python 2 gives for dicts, lists, integers, byte strings and arrays of uint8, written by hand."""

  def string(text):
    return b"T" + len(text).to_bytes(4, "little") + text

  def write(x):
    if isinstance(x, dict):
      return b"}(" + b"".join(write(k) + write(v) for k, v in x.items()) + b"u"
    if isinstance(x, list):
      return b"](" + b"".join(map(write, x)) + b"e"
    if isinstance(x, bytes):
      return string(x)
    if isinstance(x, np.ndarray):
      dtype = b"cnumpy\ndtype\n" + string(b"u1") + write(0) + write(1) + b"\x87R(" + write(3) + string(b"|") + b"NNN"
      dtype += write(-1) + write(-1) + write(0) + b"tb"
      empty = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\n" + write(0) + b"\x85" + string(b"b") + b"\x87R"
      shape = b"(" + b"".join(map(write, x.shape)) + b"t"
      return empty + b"(" + write(1) + shape + dtype + b"\x89" + string(x.tobytes()) + b"tb"
    return b"J" + x.to_bytes(4, "little", signed=True)

  return b"\x80\x02" + write(value) + b"."


def write_pathfinder32(root, size=16):
  """`size` images in each of five folders."""
  rng = np.random.default_rng(4)
  folder = root / RELEASE / "pathfinder32/curv_contour_length_14"
  (folder / "metadata").mkdir(parents=True)
  found = []
  for part in range(5):
    (folder / f"imgs/{part}").mkdir(parents=True)
    lines = []
    for sample in range(size):
      pixels, label = rng.integers(0, 256, (32, 32), np.uint8), int(rng.integers(2))
      PIL.Image.fromarray(pixels).save(folder / f"imgs/{part}/sample_{sample}.png")
      lines.append(f"imgs/{part} sample_{sample}.png {sample} {label} 1 1.5 14 4 5 2 0 0.5 0.8 3\n")
      found.append(((pixels.tobytes(),), label))
    (folder / f"metadata/{part}.npy").write_text("".join(lines))
  return {"images": found}


def pack(folder, archive):
  """A tar archive of what is in a folder, compressed as the ending of its name says."""
  compression = {".gz": "w:gz", ".xz": "w:xz", ".bz2": "w:bz2"}.get(archive.suffix, "w")
  with tarfile.open(archive, compression) as tar:
    for path in sorted(folder.iterdir()):
      tar.add(path, path.name)
  return archive


def read(builder):
  """What a builder has prepared, in the form of the functions above."""
  found = {}
  for split in builder.info.splits:
    source = builder.as_data_source(split=split)
    names = builder.task.sequence_names
    found[split] = [(tuple(x[name].tobytes() for name in names), int(x["label"])) for x in source]
  return found


WRITERS = {
  "listops": write_listops,
  "text": write_text,
  "retrieval": write_retrieval,
  "image": write_image,
  "pathfinder32": write_pathfinder32,
}
