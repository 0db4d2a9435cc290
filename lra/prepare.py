"""Prepares the data of a task: `python -m lra.prepare text --data_dir=aclImdb`. See `--help` for more."""

import argparse
import dataclasses
import functools
import shutil
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lra import builder as builders, sources, tasks
from lra.builder import TaskBuilder
from lra.listops import SOURCES, ListopsConfig
from lra.statistics import Statistics, table
from lra.task import RawData
from mgk_jax import console
from mgk_jax.data import DataError, command as commands, places

_GENERATOR = tuple(field.name for field in dataclasses.fields(ListopsConfig) if field.type is int)
_HELP = """Finds the raw data of a task, checks them, and writes them in the form that training reads.

  python -m lra.prepare listops                                   generates it, no download (under a minute)
  python -m lra.prepare listops --seed=3 --num_train=1000         another, smaller set
  python -m lra.prepare listops --data_dir=lra_release            reads the Long Range Arena's own files
  python -m lra.prepare text --data_dir=aclImdb_v1.tar.gz         from an archive
  python -m lra.prepare image --data_dir=cifar-10-batches-bin     from a folder
  python -m lra.prepare pathfinder32 --data_dir=lra_release --check_only
  python -m lra.prepare retrieval --download                      downloads the archive, about 7.7 GB
"""


def prepare(builder: TaskBuilder, data_dir: str | Path | None = None, *, overwrite: bool = False) -> TaskBuilder:
  """Prepares the data of a builder from raw data, unless they are prepared, and returns the builder that reads them.

  An interruption leaves nothing that counts as prepared, and of two processes one waits for the other.

  Args:
    builder: of a task.
    data_dir: a folder or an archive with the raw data; ListOps that is generated needs none.
    overwrite: prepares them again if they are prepared.

  Raises:
    DataError: the raw data are missing, incomplete or unreadable, or the prepared data cannot be written.
  """
  if builder.is_prepared() and not overwrite:
    return builder.reopened()
  with places.alone(Path(builder.data_path), Path(builder.data_dir_root), builder.task.name):
    builder = builder.reopened()
    if builder.is_prepared() and not overwrite:
      return builder  # by the process that this one waited for
    raw = find(builder, data_dir)
    for abandoned in Path(builder.data_path.parent).glob(f"incomplete.*_{builder.data_path.name}"):
      shutil.rmtree(abandoned, ignore_errors=True)
    if builder.is_prepared():
      shutil.rmtree(builder.data_path)
      builder = builder.reopened()
    builder.write(raw)
    return builder.reopened()


def require(builder: TaskBuilder, data_dir: str | Path | None = None) -> TaskBuilder:
  """The builder of data that are prepared, if need be now.

  Raises:
    DataError: they are not prepared and cannot be, or what is prepared lacks files; the message has the command to run.
  """
  if data_dir is not None and not builder.needs_raw_data:
    raise DataError(
      f"{builder.task.name}: generated data are not read from files, got {data_dir} to read; set source=files"
    )
  if not builder.is_prepared():
    if builder.needs_raw_data and data_dir is None:
      raise DataError(
        f"{builder.task.name}: expected prepared data in {builder.data_path}, found none. Prepare them first:\n"
        f"  {command(builder)} --data_dir=FOLDER_OR_ARCHIVE\n{sources.advice(builder.task.name)}"
      )
    return prepare(builder, data_dir)
  builder = builder.reopened()
  for split in builder.info.splits.values():
    for path in map(Path, split.filepaths):
      if not path.is_file() or not path.stat().st_size:
        raise DataError(
          f"{path}: the file is missing or empty; prepare the data again:\n  {command(builder)} --overwrite"
        )
  if data_dir is not None:
    origin = builder.info.metadata["origin"]
    print(f"{builder.task.name}: prepared already ({origin}); {data_dir} is not read again", file=sys.stderr)
  return builder


def find(builder: TaskBuilder, data_dir: str | Path | None) -> RawData:
  """The raw data that a builder finds in a folder or an archive.

  Raises:
    DataError: they are missing, incomplete or unreadable.
  """
  try:
    return builder.find(None if data_dir is None else Path(data_dir).expanduser().resolve())
  except OSError as error:
    raise DataError(f"{error.filename or data_dir}: cannot be read: {error.strerror or error}") from error


def command(builder: TaskBuilder) -> str:
  """The command that prepares a builder's data, without the place of raw data."""
  words = ["python -m lra.prepare", builder.task.name]
  config = builder.builder_config
  if isinstance(config, ListopsConfig) and config.source == "generated":
    default = ListopsConfig()
    words += [f"--{n}={getattr(config, n)}" for n in _GENERATOR if getattr(config, n) != getattr(default, n)]
  if Path(builder.data_dir_root) != places.default_prepared_dir():
    words.append(f"--prepared_dir={builder.data_dir_root}")
  return " ".join(words)


def summary(builder: TaskBuilder) -> str:
  """What was prepared: where, from what, how many examples with which labels and lengths, and by which protocols."""
  metadata = builder.info.metadata
  lines = [f"{builder.task.name} is prepared in {builder.data_path}", f"  origin: {metadata['origin']}"]
  lines += [f"  note: {note}" for note in builder.notes]
  lines.append(table(metadata["statistics"]))
  return "\n".join([*lines, _protocols(builder)])


def _protocols(builder: TaskBuilder) -> str:
  lines = []
  for name, protocol in builder.task.protocols.items():
    lines.append(f"  protocol {name}: train = {protocol.train}, validation = {protocol.valid}, test = {protocol.test}")
    lines += [f"    {protocol.note}"] if protocol.note else []
  return "\n".join(lines)


def check(builder: TaskBuilder, data_dir: str | Path | None) -> str:
  """Reads all raw data, writes nothing, and says what there is.

  Raises:
    DataError: they are missing, incomplete or unreadable.
  """
  raw = find(builder, data_dir)
  statistics = {}
  for name, split in raw.splits.items():
    counts = Statistics(builder.task)
    for _, example in builders.read(builder.task, name, split):
      counts.add(example)
    statistics[name] = counts.as_dict()
  notes = [*raw.notes, *([f"incomplete: {raw.incomplete}"] if raw.incomplete else [])]
  lines = [f"{builder.task.name} can be prepared; nothing was written", f"  origin: {raw.origin}"]
  return "\n".join([*lines, *(f"  note: {note}" for note in notes), table(statistics), _protocols(builder)])


def main(argv: Sequence[str] | None = None) -> int:
  """The command; returns its exit code."""
  return commands.exit_code(functools.partial(_run, *_parse(argv)))


def _run(args: argparse.Namespace, builder: TaskBuilder) -> None:
  if not args.check_only and builder.is_prepared() and not args.overwrite:
    builder = require(builder)
    lacking = builder.info.metadata["incomplete"]
    if lacking and not args.partial:
      raise DataError(
        f"{args.task} is prepared in {builder.data_path}, but from incomplete raw data: {lacking}. "
        "Use --overwrite to prepare it again, or --partial to keep it"
      )
    print(f"Nothing to do (--overwrite prepares it again): {summary(builder)}")
    return
  data_dir = commands.raw_data(args, sources.ARCHIVES[args.task], Path(builder.data_dir_root))
  if args.check_only:
    print(check(builder, data_dir))
  else:
    print(summary(prepare(builder, data_dir, overwrite=args.overwrite)))


def _parse(argv: Sequence[str] | None) -> tuple[argparse.Namespace, TaskBuilder]:
  parser = console.parser("lra.prepare", _HELP)
  parser.add_argument("task", choices=tasks.TASKS, help="the task to prepare")
  commands.add_arguments(parser, counted="examples")
  group = parser.add_argument_group("listops only")
  group.add_argument("--source", choices=SOURCES, help="default: generated, or files with --data_dir or --download")
  defaults: Any = ListopsConfig()
  for name in _GENERATOR:
    group.add_argument(f"--{name}", type=int, help=f"of generated data (default: {getattr(defaults, name)})")
  args = parser.parse_args(argv)

  given = {name: getattr(args, name) for name in _GENERATOR if getattr(args, name) is not None}
  commands.check_arguments(parser, args)
  if args.task != "listops":
    if given or args.source:
      names = ", ".join(f"--{name}" for name in [*given, *(["source"] if args.source else [])])
      parser.error(f"{names}: for listops only, got the task {args.task}")
    return args, tasks.get(args.task)(data_dir=args.prepared_dir, partial=args.partial)
  files = bool(args.data_dir or args.download)
  source = args.source or ("files" if files else "generated")
  if files and source == "generated":
    parser.error("--source=generated: expected neither --data_dir nor --download with it")
  if source == "files" and given:
    parser.error(f"{', '.join(f'--{name}' for name in given)}: for generated data only")
  try:
    config = ListopsConfig(source=source, **given)
  except ValueError as error:
    parser.error(str(error))
  return args, tasks.get("listops")(data_dir=args.prepared_dir, config=config, partial=args.partial)


if __name__ == "__main__":
  signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # so that what is unfinished is removed
  sys.exit(main())
