"""Small tables that read well in a terminal and in Markdown, and the spread over seeds."""

import re
from collections.abc import Sequence

import numpy as np

_NUMBER = r"[-+−]?(\d[\d,]*(\.\d+)?([eE][-+]?\d+)?|nan|inf)%?"
_NUMERIC = re.compile(f"({_NUMBER}( ± {_NUMBER})?)?")  # or nothing


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
  """An aligned Markdown table; columns that hold nothing but numbers are set to the right.

  Raises:
    ValueError: a row with more or fewer cells than there are columns.
  """
  for row in rows:
    if len(row) != len(columns):
      raise ValueError(f"expected {len(columns)} cells in a row ({', '.join(columns)}), got {len(row)}: {list(row)}")
  lines = [[cell.replace("|", r"\|") for cell in line] for line in (columns, *rows)]
  widths = [max(3, *map(len, cells)) for cells in zip(*lines, strict=True)]
  right = [bool(rows) and all(_NUMERIC.fullmatch(row[i]) for row in rows) for i in range(len(columns))]
  ruler = ["-" * (width - 1) + ":" if is_right else "-" * width for width, is_right in zip(widths, right, strict=True)]
  padded = [
    [
      cell.rjust(width) if is_right else cell.ljust(width)
      for cell, width, is_right in zip(line, widths, right, strict=True)
    ]
    for line in lines
  ]
  return "\n".join("| " + " | ".join(line) + " |" for line in (padded[0], ruler, *padded[1:]))


def mean_std(values: Sequence[float], digits: int = 1) -> str:
  """Mean and sample standard deviation (n − 1 in the denominator), "54.8 ± 1.2"; of one value, that value alone.

  How many values there are belongs beside it, in a column of its own.

  Raises:
    ValueError: no values.
  """
  if len(values) == 0:
    raise ValueError("values: expected at least one, got none")
  if len(values) == 1:
    return f"{values[0]:.{digits}f}"
  with np.errstate(invalid="ignore"):  # infinite values have no spread
    return f"{np.mean(values):.{digits}f} ± {np.std(values, ddof=1):.{digits}f}"
