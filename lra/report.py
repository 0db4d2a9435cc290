"""What came out of runs: a table with mean and spread over seeds, their protocols, and learning curves.

    python -m lra.report runs/listops_smgk runs/listops_softmax
    python -m lra.report 'runs/*/listops_*' --curves=curves.png --csv=runs.csv

A directory stands for the run in it, or for all runs below it. Runs that are not finished are listed as such.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lra import tasks
from mgk_jax.analysis import report as reports, runs, table

EXPLANATION = """\
Test accuracy is that of the checkpoint with the best validation accuracy; ± is the sample standard deviation over
seeds. GFLOP are those of the matrix products of a training step at the full length."""


@dataclasses.dataclass(frozen=True)
class Run(runs.Run):
  """A finished run; accuracies are shares of 1."""

  valid_accuracy: float
  valid_loss: float
  test_accuracy: float
  test_loss: float
  protocol: str
  note: str


def read(path: Path, summary: Mapping[str, Any]) -> Run:
  """The run in a work directory."""
  return Run(
    **runs.facts(path, summary, "task"),
    valid_accuracy=float(summary["valid"]["accuracy"]),
    valid_loss=float(summary["valid"]["loss"]),
    test_accuracy=float(summary["test"]["accuracy"]),
    test_loss=float(summary["test"]["loss"]),
    protocol=summary["protocol"]["name"],
    note=summary["protocol"]["note"],
  )


def format_table(grouped: Sequence[runs.Row[Run]]) -> str:
  """The table, what its columns are, and the protocol of each task."""
  cells = [
    [
      *row.cells,
      row.over_seeds(lambda run: 100 * run.valid_accuracy),
      row.over_seeds(lambda run: 100 * run.test_accuracy),
      str(len(row.runs)),
    ]
    for row in grouped
  ]
  columns = [*runs.COLUMNS, "valid %", "test %", "seeds"]
  protocols = dict.fromkeys(
    f"{row.runs[0].task}, protocol {row.runs[0].protocol}{row.runs[0].note and f': {row.runs[0].note}'}"
    for row in grouped
  )
  return "\n\n".join([table.markdown(columns, cells), EXPLANATION, "\n".join(protocols)])


def chance(task: str) -> dict[str, float]:
  """The accuracy of a guess."""
  return {"chance": 1 / tasks.TASKS[task].task.num_classes} if task in tasks.TASKS else {}


KIND = reports.Kind(read, tuple(tasks.TASKS), format_table, "accuracy", chance)
report = KIND.report
show = reports.show


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  KIND.main("lra.report", __doc__, argv)


if __name__ == "__main__":
  main()
