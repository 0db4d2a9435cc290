"""What came out of runs: a table with mean and spread over seeds, their protocols, and learning curves.

    python -m lra.report runs/listops_smgk runs/listops_softmax
    python -m lra.report 'runs/*/listops_*' --curves=curves.png --csv=runs.csv

A directory stands for the run in it, or for all runs below it. Runs that are not finished are listed as such.
"""

import argparse
import csv
import dataclasses
import itertools
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from lra import tasks
from lra.runs import METRICS, Row, Run, load, rows
from mgk_jax.analysis import curves, table

EXPLANATION = """\
Test accuracy is that of the checkpoint with the best validation accuracy; ± is the sample standard deviation over
seeds. GFLOP are those of the matrix products of a training step at the full length."""


def report(
  paths: Iterable[str | Path], *, picture: str | Path | None = None, csv_file: str | Path | None = None
) -> str:
  """Table, protocols, what is not finished, and for each task a text picture of the learning curves.

  Args:
    paths: work directories, directories with work directories below them, or patterns of either.
    picture: where to draw the learning curves of all seeds; with several tasks, a file for each, named after it.
    csv_file: where to write one line for each finished run.

  Raises:
    OSError: a file cannot be written.
    ValueError: the picture's suffix is of no known format.
  """
  finished, others = load(paths)
  if csv_file is not None:
    _write_csv(finished, Path(csv_file))
  grouped = rows(finished)
  protocols = dict.fromkeys(
    f"{row.runs[0].task}, protocol {row.runs[0].protocol}{row.runs[0].note and f': {row.runs[0].note}'}"
    for row in grouped
  )
  parts = [format_table(grouped), EXPLANATION, "\n".join(protocols)] if grouped else ["No finished run."]
  if others:
    parts.append("\n".join(["Not in the table:", *(f"  {line}" for line in others)]))
  by_task: dict[str, list[Row]] = defaultdict(list)
  for row in grouped:
    by_task[row.runs[0].task].append(row)
  for task, of_task in by_task.items():
    output = None if picture is None else Path(picture)
    if output is not None and len(by_task) > 1:
      output = output.with_stem(f"{output.stem}_{task}")
    parts += _learning_curves(task, of_task, output)
  return "\n\n".join(parts)


def show(text: str) -> None:
  """Prints a report, also where the output has no signs such as ±."""
  encoding = sys.stdout.encoding or "utf-8"
  print(text.encode(encoding, "replace").decode(encoding))


def format_table(grouped: Sequence[Row]) -> str:
  """The table that a report prints."""
  cells = [
    [
      row.runs[0].task,
      row.label,
      str(row.runs[0].num_heads),
      f"{row.runs[0].num_parameters:,}",
      f"{row.runs[0].flops_per_step / 1e9:,.1f}",
      row.accuracy("valid"),
      row.accuracy("test"),
      str(len(row.runs)),
    ]
    for row in grouped
  ]
  return table.markdown(["task", "model", "heads", "parameters", "GFLOP/step", "valid %", "test %", "seeds"], cells)


def _learning_curves(task: str, of_task: Sequence[Row], output: Path | None) -> list[str]:
  """A text picture with one seed of each row, and notes on what was drawn into a file or could not be."""
  first: dict[str, str | Path] = {}
  every: dict[str, str | Path] = {}
  parts = []
  for row in of_task:
    heads = f"{row.runs[0].num_heads} head{'s' if row.runs[0].num_heads > 1 else ''}"
    drawable = {f"{row.label}, {heads}, seed {run.seed}": run.path / METRICS for run in row.runs if _has_curve(run)}
    first |= dict(itertools.islice(drawable.items(), 1))
    every |= drawable
    parts += [f"{run.path}: no validation accuracy in its {METRICS}" for run in row.runs if not _has_curve(run)]
  references = {"chance": 1 / tasks.TASKS[task].task.num_classes} if task in tasks.TASKS else {}
  if first:
    parts.append(f"{task}\n{curves.draw(first, references=references)}")
  if every and output is not None:
    curves.plot(every, output, references=references, title=task)
    parts.append(f"Learning curves: {output}")
  return parts


def _has_curve(run: Run) -> bool:
  try:
    return "accuracy" in curves.read(run.path / METRICS).get("valid", {})
  except (OSError, ValueError):
    return False


def _write_csv(finished: Sequence[Run], path: Path) -> None:
  path.parent.mkdir(parents=True, exist_ok=True)
  names = [field.name for field in dataclasses.fields(Run) if field.name not in ("config", "note")]
  with path.open("w", newline="") as file:
    writer = csv.writer(file)
    writer.writerow(names)
    writer.writerows([getattr(run, name) for name in names] for run in finished)


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  parser = argparse.ArgumentParser(
    prog="python -m lra.report", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
  )
  parser.add_argument("runs", nargs="+", metavar="RUN_DIR", help="work directories, directories of them, or patterns")
  parser.add_argument("--curves", metavar="PNG", help="draw the learning curves of all seeds into this file")
  parser.add_argument("--csv", metavar="CSV", help="write one line for each finished run into this file")
  arguments = parser.parse_args(argv)
  try:
    text = report(arguments.runs, picture=arguments.curves, csv_file=arguments.csv)
  except (OSError, ValueError) as error:
    parser.error(str(error))
  show(text)


if __name__ == "__main__":
  main()
