"""What the commands that prepare data have in common: arguments, downloads, and how they end."""

import argparse
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mgk_jax.data import download
from mgk_jax.data.errors import DataError


def add_arguments(parser: argparse.ArgumentParser, *, counted: str) -> None:
  """The arguments that every such command has; `counted` says of what a corpus or task has an official number."""
  parser.add_argument("--data_dir", help="raw data: a folder, or an official archive")
  parser.add_argument(
    "--prepared_dir", help="where prepared data are written (default: $MGK_DATA_DIR or ~/.cache/mgk_jax)"
  )
  parser.add_argument("--download", action="store_true", help="download the official archive, or continue to")
  parser.add_argument("--download_dir", help="where to (default: downloads in the directory of prepared data)")
  parser.add_argument("--check_only", action="store_true", help="read and check everything, write nothing")
  parser.add_argument(
    "--partial", action="store_true", help=f"accept other numbers of {counted} than the official ones"
  )
  parser.add_argument("--overwrite", action="store_true", help="prepare the data again if they are prepared")


def check_arguments(parser: argparse.ArgumentParser, args: argparse.Namespace) -> None:
  """Ends the command where arguments do not go together."""
  if args.download and args.data_dir:
    parser.error("expected --download or --data_dir, got both")
  if args.download_dir and not args.download:
    parser.error("--download_dir: expected with --download only")


def raw_data(args: argparse.Namespace, archive: download.Archive, prepared_dir: Path) -> str | Path | None:
  """Where the raw data are, after they were downloaded if that was asked for."""
  if not args.download:
    return args.data_dir
  folder = Path(args.download_dir or prepared_dir / "downloads").expanduser()
  path = download.fetch(archive, folder)
  print(f"downloaded: {path}", flush=True)
  return path


def exit_code(run: Callable[[], Any]) -> int:
  """Runs a command; what is wrong with data is a message and no traceback."""
  try:
    run()
    return 0
  except DataError as error:
    print(f"error: {error}", file=sys.stderr)
    return 1
  except KeyboardInterrupt:
    print("interrupted; run the same command again", file=sys.stderr)
    return 128 + signal.SIGINT
