"""Where the time of an attention goes, forward and backward: products, what is between them, sums and copies.

    python -m benchmarks.profile                            # softmax with all heads, mixtures with half, on one core
    python -m benchmarks.profile --length 4096 --cores 2

The parts are measured in runs of their own, with the profiler on: on one core they add up to about the whole. On
several, operations run side by side, and their times are those of each.
"""

import os
import re
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import jax
from jax.profiler import ProfileData

from benchmarks import contenders, timing
from benchmarks.contenders import Attentions, Sizes
from benchmarks.timing import Contender
from mgk_jax import console

PARTS = ("products", "elementwise", "maxima and sums", "copies", "other")

COMPUTATION = re.compile(r"^(?:ENTRY )?%(\S+) \(.*?\{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%(\S+) = .*? ([\w-]+)\((.*)$", re.MULTILINE)
NOTHING = {"parameter", "constant", "bitcast", "get-tuple-element", "tuple", "while", "conditional", "call"}
MOVES = {
  "copy",
  "slice",
  "dynamic-slice",
  "dynamic-update-slice",
  "transpose",
  "pad",
  "concatenate",
  "broadcast",
  "iota",
}


def kinds(program: str) -> dict[str, str]:
  """What the operations of a compiled program, given as text, are by name: one of `PARTS`."""
  inside = {name: INSTRUCTION.findall(body) for name, body in COMPUTATION.findall(program)}
  found = {}
  for instructions in inside.values():
    for name, operation, rest in instructions:
      called = re.search(r"calls=%([^\s,]+)", rest)
      operations = {operation} if called is None else {operation for _, operation, _ in inside[called[1]]}
      operations -= NOTHING
      if "dot" in operations:
        found[name] = "products"
      elif "reduce" in operations:
        found[name] = "maxima and sums"
      elif operations:
        found[name] = "copies" if operations <= MOVES else "elementwise"
  return found


def seconds_by_part(events: Sequence[tuple[str, float]], kind: Mapping[str, str]) -> dict[str, float]:
  """The time of operations, as named in a profile, by what they are; what contains others does not count.

  Args:
    events: names and seconds.
    kind: of `kinds`.
  """
  seconds = dict.fromkeys(PARTS, 0.0)
  for name, duration in events:
    if name in kind:
      seconds[kind[name]] += duration
  return seconds


def profile(contender: Contender, repeats: int) -> tuple[float, dict[str, float]]:
  """The seconds of a run, and those of its parts; what is left of the whole is "other"."""
  program = contender.prepare()
  assert program.text is not None
  program.run()
  start = time.perf_counter()
  for _ in range(repeats):
    program.run()
  whole = (time.perf_counter() - start) / repeats
  with tempfile.TemporaryDirectory() as folder:
    with jax.profiler.trace(folder):
      for _ in range(repeats):
        program.run()
    (file,) = Path(folder).rglob("*.xplane.pb")
    events = [
      (event.name, event.duration_ns / 1e9 / repeats)
      for plane in ProfileData.from_file(str(file)).planes
      for line in plane.lines
      for event in line.events
    ]
  parts = seconds_by_part(events, kinds(program.text))
  parts["other"] = max(whole - sum(parts.values()), 0.0)
  return whole, parts


def table(found: Mapping[str, tuple[float, Mapping[str, float]]]) -> str:
  """Milliseconds of the whole and of the parts, a row for each attention."""
  rows = [["attention", "ms", *PARTS]]
  for name, (whole, parts) in found.items():
    rows.append([name, f"{whole * 1e3:.1f}", *(f"{parts[part] * 1e3:.1f}" for part in PARTS)])
  return timing.markdown(rows)


def main(argv: Sequence[str] | None = None) -> None:
  """Profiles the attentions and prints a table."""
  parser = console.parser("benchmarks.profile", __doc__)
  parser.add_argument("--length", type=int, default=2048, help="N (default 2048)")
  parser.add_argument("--batch", type=int, default=1, help="B (default 1)")
  parser.add_argument("--heads", type=int, default=4, help="heads of softmax; mixtures have half (default 4)")
  parser.add_argument("--head-dim", type=int, default=32, help="D (default 32)")
  parser.add_argument("--components", type=int, default=2, help="M (default 2)")
  parser.add_argument("--repeats", type=int, default=10, help="runs that are profiled (default 10)")
  parser.add_argument("--cores", type=int, default=1, help="how many to use, where the system lets choose (default 1)")
  arguments = parser.parse_args(argv)
  if hasattr(os, "sched_setaffinity"):  # before XLA starts its threads, one for each core
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: arguments.cores])
  sizes = Sizes(arguments.batch, arguments.length, arguments.heads, arguments.head_dim, arguments.components)
  found = {contender.name: profile(contender, arguments.repeats) for contender in contenders.blocked(Attentions(sizes))}
  print(f"forward + backward, float32, {sizes}, {arguments.cores} cores; jax {jax.__version__}\n\n{table(found)}")


if __name__ == "__main__":
  timing.keep_memory()
  main()
