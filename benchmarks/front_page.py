"""The README's picture: what half the heads cost and reach, of a measurement and of runs that are in the repository.

    python -m benchmarks.attention --sections heads --save=results/attention.json
    python -m benchmarks.front_page

Left, by `results/attention.json` and the runs' summaries: time of attention (forward and backward, geometric mean over
all sizes that were measured), FLOPs of a training step and parameters, as shares of softmax attention with all heads.
Right, by the runs' metrics: the validation set during training, and the test set by sliding windows.
"""

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from lm import report
from mgk_jax import console
from mgk_jax.analysis import curves, runs
from mgk_jax.analysis.curves import COLOURS

NAMES = {"softmax": "softmax", "smgk": "sMGK", "mgk": "MGK"}  # in the paper's spelling, in the order of the picture


def time_ratio(measured: Sequence[Mapping], what: str, of: str) -> float:
  """The geometric mean over all sizes."""
  return statistics.geometric_mean(size["seconds"][what] / size["seconds"][of] for size in measured)


def costs(measured: Sequence[Mapping], found: Mapping[str, report.Run]) -> dict[str, dict[str, float]]:
  """What each model costs, as shares of the softmax model."""
  baseline, heads = found["softmax"], measured[0]["heads"]
  shares = {}
  for variant, run in found.items():
    name = f"{NAMES[variant]} {heads if variant == 'softmax' else heads // 2} heads"
    shares[variant] = {
      "time of attention": time_ratio(measured, name, f"softmax {heads} heads"),
      "FLOPs of a step": run.flops_per_step / baseline.flops_per_step,
      "parameters": run.num_parameters / baseline.num_parameters,
    }
  return shares


def label(run: report.Run) -> str:
  """Name and heads."""
  return f"{NAMES[run.variant]}, {run.heads}"


def draw(measured: Sequence[Mapping], found: Mapping[str, report.Run], output: Path) -> None:
  """Both halves of the picture."""
  from matplotlib import figure

  colours = dict(zip(NAMES, COLOURS, strict=False))
  picture = figure.Figure(figsize=(10, 3.4), dpi=150, layout="constrained")
  left, right = picture.subplots(1, 2, width_ratios=(1, 1.25))
  shares = costs(measured, found)
  height = 0.8 / len(found)
  for i, (variant, by_cost) in enumerate(shares.items()):
    places = [row + i * height for row in range(len(by_cost))]
    bars = left.barh(places, list(by_cost.values()), height * 0.9, color=colours[variant], label=label(found[variant]))
    left.bar_label(bars, fmt="%.2f", padding=3, fontsize="small")
  left.set_yticks([row + height * (len(found) - 1) / 2 for row in range(len(by_cost))], list(by_cost))
  left.set(title="what it costs, of softmax with twice the heads", xlim=(0, 1.15))
  left.invert_yaxis()

  for variant, run in found.items():
    valid = curves.read(run.path / runs.METRICS)["valid"]["segment_perplexity"]
    reached = "" if run.test_perplexity is None else f": {run.test_perplexity:.1f} on the test set"
    right.plot(valid.steps, valid.values, color=colours[variant], linewidth=1.5, label=f"{label(run)}{reached}")
  lowest = min(run.valid_segment_perplexity for run in found.values())
  right.set_ylim(math.floor(0.95 * lowest), 2 * lowest)
  right.set(title="what it reaches: perplexity on WikiText-2", xlabel="step", ylabel="validation perplexity")
  right.grid(color="0.9", linewidth=0.8)
  right.legend(frameon=False, fontsize="small")
  for axes in (left, right):
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
  output.parent.mkdir(parents=True, exist_ok=True)
  picture.savefig(output)


def main(argv: Sequence[str] | None = None) -> None:
  """Draws the picture and prints its numbers."""
  parser = console.parser("benchmarks.front_page", __doc__)
  parser.add_argument("--attention", type=Path, default=Path("results/attention.json"), help="what was measured")
  parser.add_argument("--runs", type=Path, default=Path("results/wikitext2_small"), help="work directories of lm.train")
  parser.add_argument("--output", type=Path, default=Path("docs/_static/half_the_heads.png"), help="the picture")
  arguments = parser.parse_args(argv)
  measured = json.loads(arguments.attention.read_text())["sizes"]
  finished, _ = runs.load([arguments.runs], report.read)
  by_variant = {run.variant: run for run in finished}
  if missing := [variant for variant in NAMES if variant not in by_variant]:
    parser.error(f"{arguments.runs}: expected finished runs of {', '.join(NAMES)}, missing: {', '.join(missing)}")
  found = {variant: by_variant[variant] for variant in NAMES}
  draw(measured, found, arguments.output)
  for variant, shares in costs(measured, found).items():
    print(f"{label(found[variant])}: " + ", ".join(f"{name} {share:.2f}" for name, share in shares.items()))
  print(f"Picture: {arguments.output}")


if __name__ == "__main__":
  main()
