"""Finished runs: found in their work directories, read, and grouped over seeds."""

import dataclasses
import glob
import json
import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from lra import tasks
from mgk_jax.analysis import curves, table
from mgk_jax.nn import names
from mgk_jax.training import workdir

SUMMARY, CONFIG, METRICS = "summary.json", "config.json", "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class Run:
  """A finished run, as its summary.json describes it; accuracies are shares of 1."""

  path: Path
  task: str
  variant: str
  num_heads: int
  estep: str
  prior: str
  seed: int
  num_parameters: int
  flops_per_step: float
  num_steps: int
  best_step: int
  valid_accuracy: float
  valid_loss: float
  test_accuracy: float
  test_loss: float
  protocol: str
  note: str
  seconds: float
  steps_per_second: float
  config: Mapping[str, Any]

  @property
  def model(self) -> str:
    """The model's name with what is not the default."""
    return " ".join([self.variant, *(x for x in (self.estep, self.prior) if x not in ("soft", "sgd"))])

  @property
  def settings(self) -> dict[str, Any]:
    """The config but for the seed: what the runs of a row have in common."""
    return {name: value for name, value in self.config.items() if name != "seed"}

  @property
  def row_key(self) -> str:
    """The same for runs of the same task and settings."""
    return json.dumps([self.task, self.settings], sort_keys=True, default=str)


@dataclasses.dataclass(frozen=True)
class Row:
  """Runs with the same settings and different seeds; `label` and heads tell the row from all others of its task."""

  label: str
  runs: Sequence[Run]

  def accuracy(self, split: str) -> str:
    """In percent: mean ± standard deviation over the seeds."""
    return table.mean_std([100 * getattr(run, f"{split}_accuracy") for run in self.runs], digits=2)


def load(paths: Iterable[str | Path]) -> tuple[list[Run], list[str]]:
  """The finished runs, and a line on everything else: what is missing, not finished, unreadable or there twice.

  Args:
    paths: work directories, directories with work directories below them, or patterns of either.
  """
  finished: dict[tuple[str, int], Run] = {}
  others = []
  for path in dict.fromkeys(run for pattern in paths for run in _find(str(pattern))):
    try:
      run = read(path)
    except FileNotFoundError:
      others.append(f"{path}: {_progress(path)}")
    except KeyError as error:
      others.append(f"{path}: no {error} in its {SUMMARY}")
    except (OSError, ValueError, TypeError, AttributeError) as error:
      others.append(f"{path}: unreadable {SUMMARY}, {error}")
    else:
      same = finished.setdefault((run.row_key, run.seed), run)
      if same is not run:  # would count twice in mean and spread
        others.append(f"{path}: left out, with the same settings and seed as {same.path}")
  return list(finished.values()), others


def read(path: Path) -> Run:
  """The run in a work directory.

  Raises:
    FileNotFoundError: it is not finished.
    KeyError, ValueError, TypeError, AttributeError: its summary.json is not what a run writes.
  """
  summary = json.loads((path / SUMMARY).read_text())
  config = summary["config"]
  model = config.get("model", {})
  return Run(
    path=path,
    task=summary["task"],
    variant=summary["variant"],
    num_heads=int(summary["num_heads"]),
    estep=model.get("estep", "soft"),
    prior=model.get("prior", "sgd"),
    seed=int(summary["seed"]),
    num_parameters=int(summary["num_parameters"]),
    flops_per_step=float(summary["flops_per_step"]),
    num_steps=int(summary["num_steps"]),
    best_step=int(summary["best_step"]),
    valid_accuracy=float(summary["valid"]["accuracy"]),
    valid_loss=float(summary["valid"]["loss"]),
    test_accuracy=float(summary["test"]["accuracy"]),
    test_loss=float(summary["test"]["loss"]),
    protocol=summary["protocol"]["name"],
    note=summary["protocol"]["note"],
    seconds=float(summary["timing"]["seconds"]),
    steps_per_second=float(summary["timing"]["steps_per_second"]),
    config=config,
  )


def rows(runs: Iterable[Run]) -> list[Row]:
  """Runs grouped over seeds; settings in which rows of the same model differ become part of their labels."""

  def place(run: Run) -> tuple[Any, ...]:
    task, variant = [*tasks.TASKS, run.task].index(run.task), [*names.VARIANTS, run.variant].index(run.variant)
    return task, run.task, variant, run.model, run.num_heads, run.seed

  groups: dict[str, list[Run]] = defaultdict(list)
  for run in sorted(runs, key=place):
    groups[run.row_key].append(run)
  alike: dict[tuple[str, str, int], list[list[Run]]] = defaultdict(list)
  for group in groups.values():
    alike[group[0].task, group[0].model, group[0].num_heads].append(group)
  return [
    Row(" ".join([group[0].model, *extra]), group)
    for same in alike.values()
    for group, extra in zip(same, _distinctions([group[0].settings for group in same]), strict=True)
  ]


def _distinctions(settings: Sequence[Mapping[str, Any]]) -> list[list[str]]:
  """For each of several configs, "name=value" of all in which not all agree."""
  changes = [workdir.differences(settings[0], other) for other in settings]
  first = {name: old for change in changes for name, (old, _) in change.items()}
  return [[f"{name}={change.get(name, (None, old))[1]}" for name, old in sorted(first.items())] for change in changes]


def _find(pattern: str) -> list[Path]:
  """The work directories that a path or pattern stands for; the path itself, if there are none."""
  matches = sorted(glob.glob(pattern, recursive=True)) if glob.has_magic(pattern) else [pattern]
  return [run for match in matches for run in _below(match)] or [Path(pattern)]


def _below(folder: str) -> Iterator[Path]:
  for path, folders, files in os.walk(folder):
    folders.sort()
    if {SUMMARY, CONFIG, METRICS} & set(files):
      folders.clear()
      yield Path(path)


def _progress(path: Path) -> str:
  """How far a run without a summary has come."""
  if not any((path / name).exists() for name in (CONFIG, METRICS)):
    return "missing, no run there"
  try:
    by_split = curves.read(path / METRICS)
    step = max(curve.steps[-1] for metrics in by_split.values() for curve in metrics.values())
    done = f"not finished, last record at step {step:,}"
  except (OSError, ValueError):
    done = "not finished, no record yet"
  try:
    return f"{done} of {json.loads((path / CONFIG).read_text())['num_steps']:,}"
  except (OSError, ValueError, TypeError, KeyError):
    return done
