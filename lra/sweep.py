"""Runs a grid of variants, heads and seeds, one after another, and prints the table with mean ± standard deviation.

    python -m lra.sweep --config=configs/lra/listops.py --variants=softmax,mgk,smgk --heads=1,2,4 --seeds=0,1,2

Arguments behind the config's name hold for all runs: --config=configs/lra/listops.py:prior=fixed,steps=1000. The same
command goes on where a sweep was stopped and passes over what is finished.
"""

import argparse
import importlib.util
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import jax
import ml_collections

from configs import shipped
from lra import report, train
from mgk_jax import console, training
from mgk_jax.data import DataError
from mgk_jax.nn import names


def grid(
  config: str, variants: Sequence[str], heads: Sequence[int], seeds: Sequence[int]
) -> Iterator[tuple[str, ml_collections.ConfigDict]]:
  """The name and the config of each run, seeds innermost.

  Args:
    config: a config file, with arguments behind a colon or without.
    variants, heads, seeds: the axes of the grid.

  Raises:
    ValueError: no such file, or arguments that it does not take.
  """
  path, _, rest = shipped.find(config, "lra").partition(":")
  get_config = load(path)
  for variant, number, seed in itertools.product(variants, heads, seeds):
    arguments = ",".join(part for part in (variant, f"heads={number}", f"seed={seed}", rest) if part)
    yield f"{variant}_heads{number}_seed{seed}", get_config(arguments)


def load(path: str) -> Callable[[str], ml_collections.ConfigDict]:
  """The function `get_config` of a config file.

  Raises:
    ValueError: there is no such file, or it has no such function.
  """
  spec = importlib.util.spec_from_file_location("config_of_a_sweep", path) if Path(path).is_file() else None
  if spec is None or spec.loader is None:
    raise ValueError(f"--config: expected a Python file such as configs/lra/listops.py, got {path}")
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  if not hasattr(module, "get_config"):
    raise ValueError(f"--config: expected a file with a function get_config, got {path}")
  return module.get_config


def sweep(
  runs: Sequence[tuple[str, ml_collections.ConfigDict]],
  workdir: str | Path,
  *,
  data_dir: str | Path | None = None,
  prepared_dir: str | Path | None = None,
) -> list[str]:
  """Does all runs, each in a directory of its own below `workdir`; what is finished is passed over.

  A run that cannot go on is reported and the next one begun.

  Returns:
    The names of the runs that could not be finished.

  Raises:
    Interrupted: it was asked to stop; the same call goes on.
    DataError: there are no data, so that no run can begin.
  """
  failed = []
  for number, (name, config) in enumerate(runs, 1):
    print(f"[{number}/{len(runs)}] {name}", file=sys.stderr, flush=True)
    try:
      summary = train.train(config, Path(workdir) / name, data_dir=data_dir, prepared_dir=prepared_dir)
      print(train.describe(summary), file=sys.stderr, flush=True)
    except training.TrainingStopped as error:
      print(f"{name}: {error}", file=sys.stderr, flush=True)
      failed.append(name)
    jax.clear_caches()
  return failed


def default_workdir(config: str) -> str:
  """Where runs of a config go if nobody says where: configs that have a name in common are kept apart."""
  path = Path(config.partition(":")[0]).with_suffix("")
  folders = path.parts[path.parts.index("lra") + 1 : -1] if "lra" in path.parts else ()
  return f"runs/sweep_{'_'.join([*folders, path.name])}"


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  parser = console.parser("lra.sweep", __doc__)
  parser.add_argument(
    "--config", required=True, help="a file of configs/lra, with arguments for all runs behind a colon"
  )
  parser.add_argument("--variants", type=_names, default=("softmax", "mgk", "smgk"), help="e.g. softmax,mgk,smgk")
  parser.add_argument("--heads", type=_numbers, default=(1, 2, 4), help="e.g. 1,2,4")
  parser.add_argument("--seeds", type=_numbers, default=(0, 1, 2), help="e.g. 0,1,2")
  parser.add_argument("--workdir", help="where the runs are written; runs/sweep_NAME_OF_CONFIG by default")
  parser.add_argument("--data_dir", help="raw data, if they are not prepared yet")
  parser.add_argument("--prepared_dir", help="where prepared data are")
  args = parser.parse_args(argv)
  workdir = Path(args.workdir or default_workdir(args.config))
  with training.reported(DataError, ValueError, TypeError):
    runs = list(grid(args.config, args.variants, args.heads, args.seeds))  # all of them, so that errors come first
    failed = sweep(runs, workdir, data_dir=args.data_dir, prepared_dir=args.prepared_dir)
    report.show(report.report([workdir / name for name, _ in runs]))
    if failed:
      sys.exit(f"Not finished: {', '.join(failed)}")


def _names(text: str) -> list[str]:
  variants = [name.strip() for name in text.split(",")]
  if unknown := [name for name in variants if name not in names.VARIANTS]:
    raise argparse.ArgumentTypeError(f"expected variants among {', '.join(names.VARIANTS)}, got {', '.join(unknown)}")
  return list(dict.fromkeys(variants))


def _numbers(text: str) -> list[int]:
  try:
    return list(dict.fromkeys(int(part) for part in text.split(",")))
  except ValueError as error:
    raise argparse.ArgumentTypeError(f"expected whole numbers separated by commas, got {text!r}") from error


if __name__ == "__main__":
  main()
