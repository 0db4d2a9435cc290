"""Forward and backward pass of the attentions, side by side: time, ratio, temporary memory, FLOPs.

    python -m benchmarks.attention                          # everything: half an hour
    python -m benchmarks.attention --sections heads --length 2048 --batch 1
    python -m benchmarks.attention --sections long          # what causal MLK takes up to 131,072 tokens

Mixture models have half the heads of the baselines, as in the paper. Contenders and sizes take turns in one process and
the median of their times is shown: trust the ratios, not the milliseconds. FLOPs are those of the matrix products,
counted from the shapes (forward, backward, and what "xla" computes again instead of storing it). PyTorch's attention
takes part where it is installed. The first and the last line say how far apart the cores were (`benchmarks.cores`).

Sections:
    heads           half the heads against all of them, and the claims that are made of it
    materialised    softmax attention in blocks against all pairs in memory
    causal          what causality saves
    padding         what lengths of half the array save
    crossing        from which N on MLK is faster than sMGK
    long            time per token and memory of causal MLK
"""

import dataclasses
import datetime
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jax
import numpy as np

from benchmarks import contenders, cores, long_sequences, timing
from benchmarks.contenders import Attentions, Sizes
from mgk_jax import console
from mgk_jax.training.workdir import write_json


class Claim(NamedTuple):
  """That something takes at most so many times the time of something else."""

  what: str
  of: str
  at_most: float


def claims(heads: int) -> list[Claim]:
  """What half the heads are to gain."""
  softmax, torch, half = f"softmax {heads} heads", f"softmax {heads} heads, torch", heads // 2
  modules = [f"{name} {half} heads, module with" for name in ("MGK", "sMGK")]
  return [
    Claim(f"sMGK {half} heads", softmax, 0.6),
    Claim(f"sMGK {half} heads, hard", softmax, 0.6),
    Claim(f"MGK {half} heads", softmax, 0.85),
    Claim(f"MGK {half} heads, hard", softmax, 0.85),
    Claim(f"MLK {half} heads", f"linear {heads} heads", 0.7),
    *(Claim(f"{module} em prior", f"{module} sgd prior", 1.3) for module in modules),
    Claim(softmax, torch, 1.3),
    Claim(f"sMGK {half} heads", torch, 0.8),
  ]


def heads(sizes: Sequence[Sizes], repeats: int, seconds: float = 0.0, save: Path | None = None) -> None:
  """Half the heads against all of them, at every size; then the claims and their ratios. Times go to `save` as well."""
  number = sizes[0].heads
  baselines = [f"softmax {number} heads", f"softmax {number} heads, torch", f"linear {number} heads"]
  groups = timing.measure_groups([Attentions(size).all() for size in sizes], repeats, seconds)
  found: Mapping[Sizes, Mapping[str, float]] = dict(zip(sizes, map(timing.by_name, groups), strict=True))
  for size, measurements in zip(sizes, groups, strict=True):
    print(f"\n### {size}\n\n{timing.table(measurements, baselines)}", flush=True)
  rows = [["what", "of", "at most", *(f"B={size.batch} N={size.length}" for size in sizes), "holds"]]
  for claim in claims(number):
    if all({claim.what, claim.of} <= seconds.keys() for seconds in found.values()):
      ratios = [found[size][claim.what] / found[size][claim.of] for size in sizes]
      holds = "yes" if max(ratios) <= claim.at_most else "no"
      rows.append([claim.what, claim.of, str(claim.at_most), *(f"{ratio:.2f}" for ratio in ratios), holds])
  print(f"\n### Ratios\n\n{timing.markdown(rows)}", flush=True)
  if save is not None:
    content = {
      "machine": f"{platform.machine()}, {jax.devices()[0].device_kind}, {os.cpu_count()} cores",
      "jax": jax.__version__,
      "date": datetime.date.today().isoformat(),
      "sizes": [{**dataclasses.asdict(size), "seconds": dict(seconds)} for size, seconds in found.items()],
    }
    write_json(save, content)


def materialised(sizes: Sizes, repeats: int) -> None:
  """Softmax attention in blocks, and with all pairs in memory."""
  attentions = Attentions(sizes)
  blocked = attentions.softmax()
  measurements = timing.measure([blocked, attentions.softmax("reference"), attentions.jax_nn()], repeats)
  print(f"\n### Materialised, {sizes}\n\n{timing.table(measurements, [blocked.name])}", flush=True)


def in_pairs(
  title: str, pairs: Sequence[tuple[timing.Contender, timing.Contender]], repeats: int, seconds: float = 0.0
) -> None:
  """Each second of a pair against its first."""
  measurements = timing.measure([contender for pair in pairs for contender in pair], repeats, seconds)
  rows = [["contender", "ms", "of the full one"]]
  for full, part in zip(measurements[::2], measurements[1::2], strict=True):
    rows.append([part.contender.name, f"{part.seconds * 1e3:.1f}", f"{part.seconds / full.seconds:.2f}"])
  print(f"\n### {title}\n\n{timing.markdown(rows)}", flush=True)


def crossing(sizes: Sizes, lengths: Sequence[int], repeats: int) -> None:
  """From which N on MLK is faster than sMGK."""
  ratios = []
  for length in lengths:
    attentions = Attentions(Sizes(sizes.batch, length, sizes.heads, sizes.head_dim, sizes.components))
    smgk, mlk = timing.measure([attentions.smgk(), attentions.mlk()], repeats)
    ratios.append(mlk.seconds / smgk.seconds)
  rows = [["N", *map(str, lengths)], ["MLK, of sMGK", *(f"{ratio:.2f}" for ratio in ratios)]]
  print(f"\n### MLK against sMGK, B={sizes.batch}, {sizes.half} heads, D={sizes.head_dim}\n\n{timing.markdown(rows)}\n")
  print(crossing_point(lengths, ratios), flush=True)


def crossing_point(lengths: Sequence[int], ratios: Sequence[float]) -> str:
  """Where the ratio falls below 1 for good, between the measured lengths by a line in logarithms."""
  slower = [i for i, ratio in enumerate(ratios) if ratio >= 1]
  if not slower:
    return f"MLK is faster than sMGK at all of them, from N = {lengths[0]} on."
  i = slower[-1]
  if i == len(lengths) - 1:
    return f"MLK is not faster than sMGK up to N = {lengths[-1]}."
  log_N, log_ratio = np.log([lengths[i], lengths[i + 1]]), np.log([ratios[i], ratios[i + 1]])
  point = np.exp(log_N[0] + (log_N[1] - log_N[0]) * log_ratio[0] / (log_ratio[0] - log_ratio[1]))
  return f"MLK is faster than sMGK from about N = {point:.0f} on."


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the measurements that the command line asks for and prints their tables."""
  sections = ("heads", "materialised", "causal", "padding", "crossing", "long")
  parser = console.parser("benchmarks.attention", __doc__)
  parser.add_argument("--sections", nargs="+", choices=sections, default=sections, metavar="SECTION", help="see above")
  parser.add_argument("--length", type=int, nargs="+", default=[1024, 2048, 4096], help="N (default 1024 2048 4096)")
  parser.add_argument("--batch", type=int, nargs="+", default=[1, 8], help="B, in heads and padding (default 1 8)")
  parser.add_argument("--heads", type=int, default=4, help="heads of the baselines; mixtures have half (default 4)")
  parser.add_argument("--head-dim", type=int, default=32, help="D (default 32)")
  parser.add_argument("--components", type=int, default=2, help="M (default 2)")
  parser.add_argument("--repeats", type=int, default=15, help="rounds of which the median is taken (default 15)")
  parser.add_argument(
    "--seconds", type=float, default=60, help="more runs in heads, causal and padding if a size takes less (default 60)"
  )
  parser.add_argument("--save", type=Path, metavar="JSON", help="write the times of the section heads into this file")
  parser.add_argument("--longest", type=int, default=131072, help="N of the training step in long (default 131072)")
  arguments = parser.parse_args(argv)
  if arguments.heads < 2 or arguments.heads % 2:
    parser.error(f"--heads: expected an even number, since the mixtures have half of them, got {arguments.heads}")
  rest = arguments.heads, arguments.head_dim, arguments.components
  grid = [Sizes(batch, length, *rest) for batch in arguments.batch for length in arguments.length]
  longest, repeats = max(arguments.length), arguments.repeats
  run: Mapping[str, Callable[[], None]] = {
    "heads": lambda: heads(grid, repeats, arguments.seconds, arguments.save),
    "materialised": lambda: materialised(Sizes(1, min(2048, longest), *rest), repeats),
    "causal": lambda: in_pairs(
      f"Causal, {Sizes(1, longest, *rest)}", contenders.causal(Sizes(1, longest, *rest)), repeats, arguments.seconds
    ),
    "padding": lambda: in_pairs(
      f"Lengths N/2, {Sizes(max(arguments.batch), longest, *rest)}",
      contenders.shortened(Sizes(max(arguments.batch), longest, *rest)),
      repeats,
      arguments.seconds,
    ),
    "crossing": lambda: crossing(
      Sizes(1, longest, *rest), [n for n in (16, 32, 64, 128, 256, 512, 1024) if n <= longest], 3 * repeats
    ),
    "long": lambda: long_sequences.report(Sizes(1, longest, *rest), arguments.longest, repeats),
  }
  print(f"forward + backward, float32; {platform.machine()}, {jax.devices()[0].device_kind}, jax {jax.__version__}")
  print(cores.report(), flush=True)
  for section in sections:
    if section in arguments.sections:
      run[section]()
  print(f"\n{cores.report()}")


if __name__ == "__main__":
  timing.keep_memory()
  main()
