"""Learning curves of runs, read from their metrics.jsonl, as a picture in a file or as text for a terminal."""

import json
import math
import string
import sys
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

SPLITS = ("train", "valid", "test")

# Distinguishable with any kind of colour vision (Okabe and Ito); curves past the last get another line style.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
LINE_STYLES = ("-", "--", ":", "-.")


class Curve(NamedTuple):
  """A metric by step: increasing steps [n] and values [n], which need not be finite."""

  steps: np.ndarray
  values: np.ndarray


def read(path: str | Path) -> dict[str, dict[str, Curve]]:
  """The curves of a metrics.jsonl by split and metric: `read(path)["valid"]["accuracy"]`.

  A line is {"step": 50, "valid": {"loss": 2.1, "accuracy": 0.2}}, with "train" or "test" likewise. Of several lines for
  a step the last counts; a last line that was cut off by the end of its process is left out.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: a line that is none of the above, or no line at all.
  """
  found: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
  lines = Path(path).read_text().splitlines(keepends=True)
  for number, line in enumerate(lines, start=1):
    try:
      record = json.loads(line)
      step = int(record["step"])
      for split in SPLITS:
        for metric, value in record.get(split, {}).items():
          found[split][metric][step] = math.nan if value is None else float(value)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
      if number == len(lines) and not line.endswith("\n"):
        break
      raise ValueError(
        f'{path}:{number}: expected {{"step": …, "valid": {{"loss": …}}}}, got {line.strip()!r}'
      ) from error
  if not found:
    raise ValueError(f"{path}: expected metrics of some steps, got none; the run has not written its first ones yet")
  return {split: {metric: _curve(by_step) for metric, by_step in metrics.items()} for split, metrics in found.items()}


def _curve(by_step: Mapping[int, float]) -> Curve:
  steps = sorted(by_step)
  return Curve(np.array(steps), np.array([by_step[step] for step in steps]))


def plot(
  runs: Mapping[str, str | Path],
  output: str | Path,
  *,
  metric: str = "accuracy",
  split: str = "valid",
  references: Mapping[str, float] | None = None,
  title: str = "",
) -> None:
  """Draws the curves of runs into a file (PNG, or whatever else its suffix says), without smoothing.

  Args:
    runs: paths of metrics.jsonl files by the label of their curve.
    output: where to write; directories are made.
    metric, split: which curves.
    references: values at which a labelled horizontal line is drawn, such as that of chance.
    title: above the picture.

  Raises:
    ValueError: no runs, one without such a curve, or a suffix of no known format.
  """
  from matplotlib import figure, ticker  # takes as long to import as all of mgk_jax

  drawn = _select(runs, metric, split)
  picture = figure.Figure(figsize=(7, 4), dpi=150, layout="constrained")
  axes = picture.subplots()
  for i, (label, curve) in enumerate(drawn.items()):
    style = LINE_STYLES[i // len(COLOURS) % len(LINE_STYLES)]
    marker = "o" if len(curve.steps) <= 20 else ""  # a point between gaps would not show otherwise
    colour = COLOURS[i % len(COLOURS)]
    axes.plot(curve.steps, curve.values, style, color=colour, marker=marker, markersize=3, linewidth=1.5, label=label)
  for label, value in (references or {}).items():
    axes.axhline(value, color="0.45", linewidth=1, linestyle=(0, (2, 2)), zorder=1.5)  # between grid and curves
    axes.text(1.01, value, label, color="0.35", fontsize="small", va="center", transform=axes.get_yaxis_transform())
  axes.set(xlabel="step", ylabel=f"{split} {metric}", title=title)
  axes.xaxis.set_major_formatter(ticker.StrMethodFormatter("{x:,.0f}"))
  if metric == "accuracy":
    axes.yaxis.set_major_formatter(ticker.PercentFormatter(1.0))
  axes.set_axisbelow(True)
  axes.grid(color="0.9", linewidth=0.8)
  axes.spines[["top", "right"]].set_visible(False)
  if len(drawn) > len(COLOURS):
    picture.legend(loc="outside right upper", frameon=False, fontsize="small")
  else:
    axes.legend(frameon=False, fontsize="small")
  Path(output).parent.mkdir(parents=True, exist_ok=True)
  picture.savefig(output)


class _Signs(NamedTuple):
  curves: str
  reference: str
  vertical: str
  tick: str
  corner: str
  horizontal: str


UNICODE = _Signs("●○■□▲△◆◇" + string.ascii_letters, "┄", "│", "┤", "└", "─")
ASCII = _Signs("*o+x#@%&" + string.ascii_letters, ".", "|", "+", "+", "-")


def draw(
  runs: Mapping[str, str | Path],
  *,
  metric: str = "accuracy",
  split: str = "valid",
  references: Mapping[str, float] | None = None,
  width: int = 80,
  height: int = 16,
  encoding: str | None = None,
) -> str:
  """The picture of `plot` as text: a sign of its own for each curve, named below with its last value.

  Where curves meet, their signs take turns.

  Args:
    runs, metric, split, references: as in `plot`.
    width: columns, those of the axis included.
    height: rows between the axes.
    encoding: of the terminal; where it lacks the signs, ASCII ones are used. None: that of the standard output.

  Raises:
    ValueError: no runs, one without such a curve, or fewer than 30 columns or 3 rows.
  """
  if width < 30 or height < 3:
    raise ValueError(f"expected width >= 30 and height >= 3, got {width} and {height}")
  drawn, references = _select(runs, metric, split), references or {}
  encoding = encoding or getattr(sys.stdout, "encoding", None) or "utf-8"
  signs = UNICODE if _can_encode("".join(UNICODE), encoding) else ASCII
  show = (lambda value: f"{100 * value:.4g}%") if metric == "accuracy" else (lambda value: f"{value:.4g}")

  shown = np.concatenate([*(curve.values for curve in drawn.values()), list(references.values())])
  low, high = _bounds(shown[np.isfinite(shown)])
  ticks = _ticks(low, high, max(4, height // 3))
  margin = max(len(show(tick)) for tick in ticks)
  columns = width - margin - 3
  first = min(curve.steps[0] for curve in drawn.values())
  last = max(max(curve.steps[-1] for curve in drawn.values()), first + 1)
  steps = np.linspace(first, last, columns)

  def row(value: float) -> int:
    return round((high - value) / (high - low) * (height - 1))

  cells: dict[tuple[int, int], list[int]] = defaultdict(list)  # which curves pass through (row, column)
  for i, curve in enumerate(drawn.values()):
    line = zip(range(columns), np.interp(steps, *curve, left=math.nan, right=math.nan), strict=True)
    points = zip(np.rint((curve.steps - first) / (last - first) * (columns - 1)).astype(int), curve.values, strict=True)
    for column, value in [*line, *points]:
      if math.isfinite(value) and i not in (cell := cells[row(value), int(column)]):
        cell.append(i)

  def sign(i: int) -> str:
    return signs.curves[i % len(signs.curves)]

  dashed, labels = {row(value) for value in references.values()}, {row(tick): show(tick) for tick in ticks}
  lines = [f"{'':{margin}} {split} {metric}"]
  for r in range(height):
    blank = signs.reference if r in dashed else " "
    crossed = (cells.get((r, column), []) for column in range(columns))
    body = "".join(sign(here[column % len(here)]) if here else blank for column, here in enumerate(crossed))
    lines.append(f"{labels.get(r, ''):>{margin}} {signs.tick if r in labels else signs.vertical}{body}".rstrip())
  lines.append(" " * (margin + 1) + signs.corner + signs.horizontal * columns)
  left, right = f"{first:,}", f"{last:,} steps"
  lines.append(" " * (margin + 2) + left + right.rjust(columns - len(left)))
  for i, (label, curve) in enumerate(drawn.items()):
    finite = np.flatnonzero(np.isfinite(curve.values))
    ending = f"{show(curve.values[finite[-1]])} at step {curve.steps[finite[-1]]:,}" if len(finite) else "never finite"
    lines.append(f"  {sign(i)} {label}: {ending}")
  lines += [f"  {signs.reference} {label}: {show(value)}" for label, value in references.items()]
  return "\n".join(lines).encode(encoding, "replace").decode(encoding)


def _select(runs: Mapping[str, str | Path], metric: str, split: str) -> dict[str, Curve]:
  """One curve of each run, with NaN for all that is not finite."""
  if not runs:
    raise ValueError("runs: expected at least one, got none")
  selected = {}
  for label, path in runs.items():
    curves = read(path)
    if metric not in curves.get(split, {}):
      there = ", ".join(f"{s} {m}" for s, metrics in curves.items() for m in metrics)
      raise ValueError(f"{path}: expected a curve of {split} {metric}, got {there}")
    steps, values = curves[split][metric]
    selected[label] = Curve(steps, np.where(np.isfinite(values), values, math.nan))
  return selected


def _bounds(values: np.ndarray) -> tuple[float, float]:
  """The least and the largest value, or numbers somewhat apart if these are not."""
  low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
  if high - low > 1e-9 * max(abs(low), abs(high)):
    return low, high
  return low - 0.05 * (abs(low) or 1), high + 0.05 * (abs(high) or 1)


def _ticks(low: float, high: float, count: int) -> np.ndarray:
  """Round numbers between two others: at most count + 1, and more than half of that."""
  raw = (high - low) / count
  power = 10.0 ** math.floor(math.log10(raw))
  step = next(factor * power for factor in (1, 2, 2.5, 5, 10, 20) if factor * power >= raw)
  return np.arange(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1) * step


def _can_encode(text: str, encoding: str) -> bool:
  try:
    text.encode(encoding)
  except (UnicodeEncodeError, LookupError):
    return False
  return True
