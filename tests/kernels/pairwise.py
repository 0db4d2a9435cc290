"""Few combinations of many options, in which every two values of different options meet at least once."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np


def combinations(options: Mapping[str, Sequence[Any]], *, seed: int = 0, candidates: int = 200) -> list[dict[str, Any]]:
  """Greedy covering array of strength 2: each row is the candidate that covers most of the pairs still missing."""
  rng = np.random.default_rng(seed)
  names = list(options)
  missing = {
    (a, i, b, j)
    for a, b in itertools.combinations(names, 2)
    for i, j in itertools.product(range(len(options[a])), range(len(options[b])))
  }
  rows = []
  while missing:
    start = min(missing)  # every candidate holds one missing pair, so that each round makes progress
    best, covered = None, set()
    for _ in range(candidates):
      row = {name: int(rng.integers(len(options[name]))) for name in names}
      row[start[0]], row[start[2]] = start[1], start[3]
      pairs = {(a, row[a], b, row[b]) for a, b in itertools.combinations(names, 2)} & missing
      if len(pairs) > len(covered):
        best, covered = row, pairs
    rows.append({name: options[name][index] for name, index in best.items()})
    missing -= covered
  return rows
