"""Finished runs: found in their work directories, read, and grouped over seeds."""

import dataclasses
import glob
import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from mgk_jax.analysis import curves, table
from mgk_jax.nn import names
from mgk_jax.training import workdir

COLUMNS = ("task", "model", "heads", "parameters", "GFLOP/step")
SUMMARY, CONFIG, METRICS = "summary.json", "config.json", "metrics.jsonl"


@dataclasses.dataclass(frozen=True)
class Run:
  """A finished run, as its summary.json describes it; what it reached is for a program to add."""

  path: Path
  task: str  # or corpus
  variant: str
  num_heads: int
  estep: str
  prior: str
  seed: int
  num_parameters: int
  flops_per_step: float
  num_steps: int
  best_step: int
  seconds: float
  steps_per_second: float
  config: Mapping[str, Any]

  @property
  def model(self) -> str:
    """The model's name with what is not the default."""
    return " ".join([self.variant, *(x for x in (self.estep, self.prior) if x not in ("soft", "sgd"))])

  @property
  def heads(self) -> str:
    """How many, in words."""
    return f"{self.num_heads} head{'s' if self.num_heads > 1 else ''}"

  @property
  def settings(self) -> dict[str, Any]:
    """The config but for the seed: what the runs of a row have in common."""
    return {name: value for name, value in self.config.items() if name != "seed"}

  @property
  def row_key(self) -> str:
    """The same for runs of the same task and settings."""
    return json.dumps([self.task, self.settings], sort_keys=True, default=str)


AnyRun = TypeVar("AnyRun", bound=Run)


@dataclasses.dataclass(frozen=True)
class Row(Generic[AnyRun]):
  """Runs with the same settings and different seeds; `label` and heads tell the row from all others of its task."""

  label: str
  runs: Sequence[AnyRun]

  @property
  def cells(self) -> list[str]:
    """What a table says of the model, under `COLUMNS`."""
    run = self.runs[0]
    return [run.task, self.label, str(run.num_heads), f"{run.num_parameters:,}", f"{run.flops_per_step / 1e9:,.1f}"]

  def over_seeds(self, value: Callable[[AnyRun], float | None], digits: int = 2) -> str:
    """Mean ± standard deviation over the seeds; nothing if a run has no value."""
    values = [value(run) for run in self.runs]
    return table.mean_std([x for x in values if x is not None], digits) if None not in values else ""


def load(
  paths: Iterable[str | Path], read: Callable[[Path, Mapping[str, Any]], AnyRun]
) -> tuple[list[AnyRun], list[str]]:
  """The finished runs, and a line on everything else: what is missing, not finished, unreadable or there twice.

  Args:
    paths: work directories, directories with work directories below them, or patterns of either.
    read: makes a run of a directory and its summary.
  """
  finished: dict[tuple[str, int], AnyRun] = {}
  others = []
  for path in dict.fromkeys(run for pattern in paths for run in _find(str(pattern))):
    try:
      run = read(path, json.loads((path / SUMMARY).read_text()))
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


def facts(path: Path, summary: Mapping[str, Any], task: str) -> dict[str, Any]:
  """The fields of `Run`, from a summary in which the task is called `task`.

  Raises:
    KeyError, ValueError, TypeError, AttributeError: it is not what a run writes.
  """
  config = summary["config"]
  model = config.get("model", {})
  return {
    "path": path,
    "task": summary[task],
    "variant": summary["variant"],
    "num_heads": int(summary["num_heads"]),
    "estep": model.get("estep", "soft"),
    "prior": model.get("prior", "sgd"),
    "seed": int(summary["seed"]),
    "num_parameters": int(summary["num_parameters"]),
    "flops_per_step": float(summary["flops_per_step"]),
    "num_steps": int(summary["num_steps"]),
    "best_step": int(summary["best_step"]),
    "seconds": float(summary["timing"]["seconds"]),
    "steps_per_second": float(summary["timing"]["steps_per_second"]),
    "config": config,
  }


def rows(runs: Iterable[AnyRun], tasks: Sequence[str]) -> list[Row[AnyRun]]:
  """Runs grouped over seeds; settings in which rows of the same model differ become part of their labels.

  They are in the order of `tasks` and of the variants.
  """

  def place(run: AnyRun) -> tuple[Any, ...]:
    task, variant = [*tasks, run.task].index(run.task), [*names.VARIANTS, run.variant].index(run.variant)
    return task, run.task, variant, run.model, run.num_heads, run.seed

  groups: dict[str, list[AnyRun]] = defaultdict(list)
  for run in sorted(runs, key=place):
    groups[run.row_key].append(run)
  alike: dict[tuple[str, str, int], list[list[AnyRun]]] = defaultdict(list)
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
    config = json.loads((path / CONFIG).read_text())
    return f"{done} of {'at most ' if 'num_epochs' in config else ''}{config['num_steps']:,}"
  except (OSError, ValueError, TypeError, KeyError):
    return done
