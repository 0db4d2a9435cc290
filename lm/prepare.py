"""Prepares a corpus: `python -m lm.prepare wikitext103 --data_dir=wikitext-103-v1.zip`. See `--help` for more."""

import argparse
import functools
import os
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lm import corpus as corpora, datasets, raw
from lm.corpus import Corpus, Counted
from lm.datasets import SPLITS, Dataset
from mgk_jax import console
from mgk_jax.data import DataError, command, places

_HELP = """Finds the raw files of a corpus, checks them, and writes them in the form that training reads.

  python -m lm.prepare wikitext103 --data_dir=wikitext-103-v1.zip    from the archive
  python -m lm.prepare wikitext2 --data_dir=wikitext-2               from a folder with wiki.{train,valid,test}.tokens
  python -m lm.prepare enwik8 --download                             downloads it first, 36 MB
  python -m lm.prepare wikitext2 --data_dir=. --train_file=my.txt --partial
                                                                     texts of one's own: words with spaces between them
WikiText-103 takes two or three minutes, 420 MB of disk and less than 500 MB of memory, most of it for Python.
"""


def prepared_path(dataset: Dataset, prepared_dir: str | Path | None = None) -> Path:
  """Where the prepared corpus is, or is to be."""
  root = places.default_prepared_dir() if prepared_dir is None else Path(prepared_dir).expanduser()
  return root / f"lm_{dataset.name}" / str(corpora.FORMAT)


def prepare(
  dataset: Dataset,
  data_dir: str | Path | None,
  prepared_dir: str | Path | None = None,
  *,
  files: Mapping[str, str] | None = None,
  partial: bool = False,
  overwrite: bool = False,
) -> Corpus:
  """Prepares a corpus from raw files, unless it is prepared, and returns it.

  An interruption leaves nothing that counts as prepared, and of two processes one waits for the other.

  Args:
    dataset: which.
    data_dir: a folder or an archive.
    prepared_dir: where prepared data are to be; None for $MGK_DATA_DIR or ~/.cache/mgk_jax.
    files: other names of the raw files than the official ones, by split.
    partial: accept other numbers of tokens than the official ones.
    overwrite: prepare it again if it is prepared.

  Raises:
    DataError: raw files are missing, incomplete or wrongly encoded, or the prepared ones cannot be written.
  """
  path = prepared_path(dataset, prepared_dir)
  if path.exists() and not overwrite:
    return Corpus(path)
  with places.alone(path, path.parents[1], dataset.name):
    if path.exists() and not overwrite:
      return Corpus(path)  # by the process that this one waited for
    counted = count(dataset, data_dir, files=files, partial=partial)
    for abandoned in path.parent.glob("incomplete.*"):
      shutil.rmtree(abandoned, ignore_errors=True)
    unfinished = path.with_name(f"incomplete.{os.getpid()}")
    try:
      unfinished.mkdir(parents=True)
      corpora.write(dataset, counted, unfinished)
      if path.exists():
        shutil.rmtree(path)
      unfinished.rename(path)
    except OSError as error:
      raise DataError(f"{unfinished}: cannot be written: {error.strerror or error}; see --prepared_dir") from error
    finally:
      shutil.rmtree(unfinished, ignore_errors=True)
    return Corpus(path)


def count(
  dataset: Dataset, data_dir: str | Path | None, *, files: Mapping[str, str] | None = None, partial: bool = False
) -> Counted:
  """Finds the raw files and reads them once.

  Raises:
    DataError: they are missing, incomplete or wrongly encoded; the message says where to get them.
  """
  try:
    found = raw.find(dataset, None if data_dir is None else Path(data_dir).expanduser().resolve(), files)
    return corpora.count(dataset, found, partial=partial)
  except OSError as error:
    raise DataError(f"{error.filename or data_dir}: cannot be read: {error.strerror or error}") from error
  except DataError as error:
    advice = dataset.advice()
    raise (error if advice in str(error) else DataError(f"{error}\n{advice}")) from error


def require(dataset: Dataset, data_dir: str | Path | None = None, prepared_dir: str | Path | None = None) -> Corpus:
  """A corpus that is prepared, if need be now.

  Raises:
    DataError: it is not prepared and cannot be, or is damaged; the message has the command to run.
  """
  path = prepared_path(dataset, prepared_dir)
  if path.exists():
    corpus = Corpus(path)
    if data_dir is not None:
      origin = corpus.metadata["origin"]
      print(f"{dataset.name}: prepared already ({origin}); {data_dir} is not read again", file=sys.stderr)
    return corpus
  if data_dir is None:
    where = "" if prepared_dir is None else f" --prepared_dir={prepared_dir}"
    raise DataError(
      f"{dataset.name}: expected prepared data in {path}, found none. Prepare them first:\n"
      f"  python -m lm.prepare {dataset.name}{where} --data_dir=FOLDER_OR_ARCHIVE\n{dataset.advice()}"
    )
  return prepare(dataset, data_dir, prepared_dir)


def summary(corpus: Corpus) -> str:
  """What was prepared: where, from what, and how large it is."""
  lines = [f"{corpus.name} is prepared in {corpus.path}", f"  origin: {corpus.metadata['origin']}"]
  lines += [f"  note: {note}" for note in corpus.notes]
  lines += [f"  {split}: {number:,} {corpus.unit}s" for split, number in corpus.metadata["num_tokens"].items()]
  return "\n".join([*lines, f"  vocabulary: {corpus.vocab_size:,} {corpus.unit}s"])


def check(dataset: Dataset, counted: Counted) -> str:
  """What raw files hold that were only looked at."""
  lines = [f"{dataset.name} can be prepared; nothing was written", f"  origin: {counted.raw.origin}"]
  notes = [*counted.raw.notes, *([f"not the official corpus: {counted.incomplete}"] if counted.incomplete else [])]
  lines += [f"  note: {note}" for note in notes]
  for split in SPLITS:
    unknown = counted.num_unknown(split)
    more = f", {unknown:,} of them not in the vocabulary" if unknown else ""
    lines.append(f"  {split}: {counted.num_tokens(split):,} {dataset.unit}s{more}")
  return "\n".join([*lines, f"  vocabulary: {len(counted.vocabulary):,} {dataset.unit}s"])


def main(argv: Sequence[str] | None = None) -> int:
  """The command; returns its exit code."""
  args = _parse(argv)
  return command.exit_code(functools.partial(_run, args, datasets.get(args.dataset)))


def _run(args: argparse.Namespace, dataset: Dataset) -> None:
  path = prepared_path(dataset, args.prepared_dir)
  if path.exists() and not args.overwrite and not args.check_only:
    corpus = Corpus(path)
    lacking = corpus.metadata["incomplete"]
    if lacking and not args.partial:
      raise DataError(
        f"{dataset.name} is prepared in {path}, but not from the official corpus: {lacking}. "
        "Use --overwrite to prepare it again, or --partial to keep it"
      )
    print(f"Nothing to do (--overwrite prepares it again): {summary(corpus)}")
    return
  data_dir = command.raw_data(args, dataset.archive, path.parents[1])
  files = {split: name for split in SPLITS if (name := getattr(args, f"{split}_file"))}
  if args.check_only:
    print(check(dataset, count(dataset, data_dir, files=files, partial=args.partial)))
    return
  corpus = prepare(
    dataset, data_dir, args.prepared_dir, files=files, partial=args.partial, overwrite=args.overwrite
  )  # fmt: skip
  print(summary(corpus))


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = console.parser("lm.prepare", _HELP)
  parser.add_argument("dataset", choices=datasets.DATASETS, help="the corpus to prepare")
  command.add_arguments(parser, counted="words")
  for split in SPLITS:
    parser.add_argument(f"--{split}_file", metavar="NAME", help=f"default: wiki.{split}.tokens (not of enwik8)")
  args = parser.parse_args(argv)
  command.check_arguments(parser, args)
  if datasets.get(args.dataset).unit == "byte" and any(getattr(args, f"{split}_file") for split in SPLITS):
    parser.error(f"--train_file, --valid_file, --test_file: {args.dataset} is one file, which is cut")
  return args


if __name__ == "__main__":
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is unfinished is removed
  sys.exit(main())
