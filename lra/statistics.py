"""What is said of a set of examples: how many have which label, and how long their sequences are."""

import collections
from typing import Any

import numpy as np

from lra.task import Example, Task


class Statistics:
  """Counts examples as they pass by."""

  def __init__(self, task: Task):
    self.labels: collections.Counter[int] = collections.Counter(dict.fromkeys(range(task.num_classes), 0))
    self.lengths: dict[str, list[int]] = {name: [] for name in task.sequence_names}

  def add(self, example: Example) -> None:
    """Counts one example."""
    self.labels[int(example["label"])] += 1
    for name, lengths in self.lengths.items():
      lengths.append(len(example[name]))

  def as_dict(self) -> dict[str, Any]:
    """The counts, in values that JSON can hold."""
    return {
      "examples": self.labels.total(),
      "labels": {str(label): number for label, number in sorted(self.labels.items())},
      "lengths": {name: _describe(lengths) for name, lengths in self.lengths.items()},
    }


def _describe(lengths: list[int]) -> dict[str, float]:
  array = np.asarray(lengths)
  return {
    "min": int(array.min()),
    "median": float(np.median(array)),
    "mean": round(float(array.mean()), 1),
    "max": int(array.max()),
  }


def table(statistics: dict[str, dict[str, Any]]) -> str:
  """The statistics of the splits as lines of text."""
  lines = []
  for split, counts in statistics.items():
    labels = counts["labels"]
    lines.append(f"  {split}: {counts['examples']:,} examples")
    lines.append("    labels: " + ", ".join(f"{label}: {number:,}" for label, number in labels.items()))
    for name, length in counts["lengths"].items():
      numbers = ", ".join(f"{what} {value:,g}" for what, value in length.items())
      lines.append(f"    length of {name}: {numbers}")
  return "\n".join(lines)
