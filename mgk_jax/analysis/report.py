"""What came out of runs, for the programs: a table, what is not finished, learning curves, and the command for it."""

import csv
import dataclasses
import itertools
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic

from mgk_jax import console
from mgk_jax.analysis import curves, runs
from mgk_jax.analysis.runs import METRICS, AnyRun, Row


@dataclasses.dataclass(frozen=True)
class Kind(Generic[AnyRun]):
  """The reports of a program.

  Attributes:
    read: makes a run of a work directory and its summary.
    tasks: in the order of the table.
    table: of the rows, with whatever is to be said below it.
    metric: of the learning curves, on the validation set.
    references: values to compare a task's curves with, by name.
  """

  read: Callable[[Path, Mapping[str, Any]], AnyRun]
  tasks: Sequence[str]
  table: Callable[[Sequence[Row[AnyRun]]], str]
  metric: str
  references: Callable[[str], Mapping[str, float]] = lambda task: {}

  def report(
    self, paths: Iterable[str | Path], *, picture: str | Path | None = None, csv_file: str | Path | None = None
  ) -> str:
    """Table, what is not finished, and for each task a text picture of the learning curves.

    Args:
      paths: work directories, directories with work directories below them, or patterns of either.
      picture: where to draw the learning curves of all seeds; with several tasks, a file for each, named after it.
      csv_file: where to write one line for each finished run.

    Raises:
      OSError: a file cannot be written.
      ValueError: the picture's suffix is of no known format.
    """
    finished, others = runs.load(paths, self.read)
    if csv_file is not None:
      _write_csv(finished, Path(csv_file))
    grouped = runs.rows(finished, self.tasks)
    parts = [self.table(grouped) if grouped else "No finished run."]
    if others:
      parts.append("\n".join(["Not in the table:", *(f"  {line}" for line in others)]))
    by_task: dict[str, list[Row[AnyRun]]] = defaultdict(list)
    for row in grouped:
      by_task[row.runs[0].task].append(row)
    for task, of_task in by_task.items():
      output = None if picture is None else Path(picture)
      if output is not None and len(by_task) > 1:
        output = output.with_stem(f"{output.stem}_{task}")
      parts += self._learning_curves(task, of_task, output)
    return "\n\n".join(parts)

  def _learning_curves(self, task: str, of_task: Sequence[Row[AnyRun]], output: Path | None) -> list[str]:
    """A text picture with one seed of each row, and notes on what was drawn into a file or could not be."""
    first: dict[str, str | Path] = {}
    every: dict[str, str | Path] = {}
    parts = []
    for row in of_task:
      drawable = {
        f"{row.label}, {run.heads}, seed {run.seed}": run.path / METRICS for run in row.runs if self._has_curve(run)
      }
      first |= dict(itertools.islice(drawable.items(), 1))
      every |= drawable
      missing = (run for run in row.runs if not self._has_curve(run))
      parts += [f"{run.path}: no validation {self.metric} in its {METRICS}" for run in missing]
    references = self.references(task)
    if first:
      parts.append(f"{task}\n{curves.draw(first, metric=self.metric, references=references)}")
    if every and output is not None:
      curves.plot(every, output, metric=self.metric, references=references, title=task)
      parts.append(f"Learning curves: {output}")
    return parts

  def _has_curve(self, run: AnyRun) -> bool:
    try:
      return self.metric in curves.read(run.path / METRICS).get("valid", {})
    except (OSError, ValueError):
      return False

  def main(self, module: str, about: str | None, argv: Sequence[str] | None) -> None:
    """The command, which is a module that says what it is about."""
    parser = console.parser(module, about)
    parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="work directories, directories of them, or patterns")
    parser.add_argument("--curves", metavar="PNG", help="draw the learning curves of all seeds into this file")
    parser.add_argument("--csv", metavar="CSV", help="write one line for each finished run into this file")
    arguments = parser.parse_args(argv)
    try:
      text = self.report(arguments.runs, picture=arguments.curves, csv_file=arguments.csv)
    except (OSError, ValueError) as error:
      parser.error(str(error))
    show(text)


def show(text: str) -> None:
  """Prints a report, also where the output has no signs such as ±."""
  encoding = sys.stdout.encoding or "utf-8"
  print(text.encode(encoding, "replace").decode(encoding))


def _write_csv(finished: Sequence[runs.Run], path: Path) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  names = [
    field.name for run in finished[:1] for field in dataclasses.fields(run) if field.name not in ("config", "note")
  ]
  with path.open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows([getattr(run, name) for name in names] for run in finished)
