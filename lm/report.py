"""What came out of runs: a table with perplexities, parameters and FLOPs, and learning curves.

    python -m lm.report runs/wt103_mgk runs/wt103_softmax
    python -m lm.report 'runs/wt2_small_*' --curves=curves.png --csv=runs.csv

A directory stands for the run in it, or for all runs below it. Runs that are not finished are listed as such. What
`python -m lm.evaluate` found with windows that slide by one word, the paper's protocol, has columns of its own.
"""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lm import datasets
from mgk_jax.analysis import report as reports, runs, table

EXPLANATION = """\
All perplexities are of the checkpoint that was best on the validation set; ± is the sample standard deviation over
seeds. "sliding" is the paper's protocol, a window that slides by one word, where python -m lm.evaluate has been run for
that checkpoint; "segments" cuts the text into pieces of the training length, each on its own, mostly higher. GFLOP are
those of the matrix products of a training step."""


@dataclasses.dataclass(frozen=True)
class Run(runs.Run):
  """A finished run."""

  valid_segment_perplexity: float
  test_segment_perplexity: float
  valid_perplexity: float | None  # by sliding windows
  test_perplexity: float | None


def read(path: Path, summary: Mapping[str, Any]) -> Run:
  """The run in a work directory."""
  facts = runs.facts(path, summary, "dataset")
  sliding = {
    split: _sliding(path / "evaluation", split, facts["best_step"], summary["config"]["data"]["length"])
    for split in ("valid", "test")
  }
  return Run(
    **facts,
    valid_segment_perplexity=float(summary["valid"]["segment_perplexity"]),
    test_segment_perplexity=float(summary["test"]["segment_perplexity"]),
    valid_perplexity=sliding["valid"],
    test_perplexity=sliding["test"],
  )


def _sliding(folder: Path, split: str, step: int, length: int) -> float | None:
  """The perplexity of the whole split by windows of the training length; None if it was not evaluated."""
  wanted = {"split": split, "step": step, "window": length, "stride": 1, "limit": None}
  for file in sorted(folder.glob("*.json")):
    found = json.loads(file.read_text())
    if "perplexity" in found and all(found[name] == value for name, value in wanted.items()):
      return float(found["perplexity"])
  return None


def format_table(grouped: Sequence[runs.Row[Run]]) -> str:
  """The table, and what its columns are."""
  cells = [
    [
      *row.cells,
      row.over_seeds(lambda run: run.valid_perplexity),
      row.over_seeds(lambda run: run.test_perplexity),
      row.over_seeds(lambda run: run.valid_segment_perplexity),
      row.over_seeds(lambda run: run.test_segment_perplexity),
      str(len(row.runs)),
    ]
    for row in grouped
  ]
  columns = [
    "corpus",
    *runs.COLUMNS[1:],
    "valid, sliding",
    "test, sliding",
    "valid, segments",
    "test, segments",
    "seeds",
  ]
  return f"{table.markdown(columns, cells)}\n\n{EXPLANATION}"


KIND = reports.Kind(read, tuple(datasets.DATASETS), format_table, "loss")  # of segments, in nats
report = KIND.report


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  KIND.main("lm.report", __doc__, argv)


if __name__ == "__main__":
  main()
