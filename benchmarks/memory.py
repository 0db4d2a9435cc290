"""What a training step needs of one accelerator's memory, by its compiler; no accelerator need be there.

    python -m benchmarks.memory                               # every device whose compiler is installed: an hour
    python -m benchmarks.memory --devices v5e --sections text

Two tables, of the model of configs/lra/text.py without attention dropout, which the Pallas kernels do not have:

- text: the peak at N=4096, batch 32, with all pairs in memory ("reference") and by kernels that never hold them
  ("pallas");
- longest: the longest N with which a step fits, found by bisection, to an eighth of a power of two.

The compilers are the extras aot-tpu and aot-cuda; see docs/kernels.md.
"""

import importlib.metadata
import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import ml_collections

from configs.lra import text
from lra import ahead as lra_ahead
from mgk_jax import console
from mgk_jax.analysis import table
from mgk_jax.training import TrainingStopped, ahead, targets
from mgk_jax.training.targets import GIB, Target

SECTIONS = ("text", "longest")
TEXT_LENGTH = 4096
COMPILERS = ("libtpu", "jax-cuda12-plugin")
STEPS = 8  # between one power of two and the next
START = 9 * STEPS  # 4096


class Sizes(NamedTuple):
  """Of the model, and of the batch: None for that of a table."""

  heads: int
  dtype: str
  batch: int | None

  def __str__(self) -> str:
    return f"batch {self.batch}, {self.heads} heads, {self.dtype}"


def make_config(attention: str, implementation: str | None, length: int, sizes: Sizes) -> ml_collections.ConfigDict:
  """LRA text with another length, batch size and attention."""
  arg = f"softmax,attention_dropout=0,length={length},batch={sizes.batch},dtype={sizes.dtype}"
  config = lra_ahead.with_model(text.get_config(arg), attention, sizes.heads)
  config.model.implementation = implementation
  return config


def longest(peak: Callable[[int], int], capacity: int, power: int) -> int:
  """The greatest length that fits among those with `STEPS` steps from one power of two to the next; 0 for none.

  Args:
    peak: the bytes that a length needs.
    capacity: the bytes that there are.
    power: of the length with which these bytes grow. Compilers refuse programs that are far too large for their own
      reasons; hence a search that goes up by no more than that.
  """
  low, high = -1, START
  needed = peak(_length(START))
  while needed <= capacity:
    low = high
    doublings = math.log2(capacity / needed) / power
    high += math.floor(STEPS * doublings) + 1
    needed = peak(_length(high))
  while high - low > 1:
    middle = (low + high) // 2
    low, high = (middle, high) if peak(_length(middle)) <= capacity else (low, middle)
  return _length(low) if low >= 0 else 0


def _length(i: int) -> int:
  """Length i of those that are looked at, 8, 9, …, 15, 16, 18, …, 30, 32, 36 and so on."""
  return (STEPS + i % STEPS) << (i // STEPS)


def text_table(machines: Sequence[Target], sizes: Sizes) -> str:
  """The peak by `reference` and by `pallas`."""
  sizes = sizes._replace(batch=sizes.batch or 32)
  rows = []
  for machine in machines:
    for attention in ("softmax", "mgk", "smgk"):
      peaks = [
        needed(machine, make_config(attention, name, TEXT_LENGTH, sizes)).memory_bytes
        for name in ("reference", "pallas")
      ]
      cells = [f"{peak / GIB:.2f}" + (" (does not fit)" if peak > machine.memory_bytes else "") for peak in peaks]
      rows.append([machine.name, _capacity(machine), attention, *cells, f"{peaks[0] / peaks[1]:.1f}"])
  columns = ["device", "GiB it has", "attention", "reference, GiB", "pallas, GiB", "reference / pallas"]
  return f"LRA text, N={TEXT_LENGTH}, {sizes}: peak memory of a training step\n\n{table.markdown(columns, rows)}\n"


def longest_table(machines: Sequence[Target], sizes: Sizes) -> str:
  """The longest N by `reference` and by the best implementation."""
  sizes = sizes._replace(batch=sizes.batch or 1)
  rows = []
  for machine in machines:
    for attention in ("softmax", "smgk", "mlk"):
      materialised, _ = longest_of(machine, attention, "reference", sizes)
      length, by = longest_of(machine, attention, None, sizes)
      rows.append([machine.name, _capacity(machine), attention, f"{materialised:,}", f"{length:,}", by])
  columns = ["device", "GiB it has", "attention", "longest N, reference", "longest N, best", "which is"]
  return f"The longest N of which a training step fits, {sizes}\n\n{table.markdown(columns, rows)}\n"


def longest_of(machine: Target, attention: str, implementation: str | None, sizes: Sizes) -> tuple[int, str]:
  """The longest N, and what computes attention there."""
  by = {0: ""}

  def peak(length: int) -> int:
    need = needed(machine, make_config(attention, implementation, length, sizes))
    by[length] = need.attention
    return need.memory_bytes

  length = longest(peak, machine.memory_bytes, power=2 if implementation == "reference" else 1)
  return length, by[length]


def _capacity(machine: Target) -> str:
  return f"{machine.memory_bytes / GIB:.1f}"


def needed(machine: Target, config: ml_collections.ConfigDict) -> ahead.Needs:
  """What a step needs; says so on the way."""
  started = time.monotonic()
  need, _ = lra_ahead.compile_config(config, machine)
  print(
    f"{machine.name}, {config.model.attention}, {config.model.implementation or 'best'}, N={config.data.length}: "
    f"{need.memory_bytes / GIB:.2f} GiB, {time.monotonic() - started:.0f} s",
    file=sys.stderr,
    flush=True,
  )
  return need


def find_devices(kinds: Sequence[str]) -> list[Target]:
  """One device of each kind; of all whose compiler is installed, if none is named.

  Raises:
    TrainingStopped: a compiler that is not installed; the message says how to install it.
  """
  if kinds:
    return [targets.one(kind) for kind in kinds]
  found, missing = [], {}
  for kind in targets.KINDS:
    try:
      found.append(targets.one(kind))
    except TrainingStopped as error:
      missing[str(error)] = error
  if not found:
    raise TrainingStopped("\n".join(missing))
  return found


def versions() -> str:
  """Of JAX and of the compilers that are installed."""
  installed = {d.name: d.version for d in importlib.metadata.distributions() if d.name in COMPILERS}
  return ", ".join(f"{name} {version}" for name, version in {"jax": jax.__version__, **installed}.items())


def main(argv: Sequence[str] | None = None) -> None:
  """Compiles what the command line asks for and prints the tables."""
  parser = console.parser("benchmarks.memory", __doc__)
  kinds = ", ".join(targets.KINDS)
  parser.add_argument(
    "--devices", nargs="+", default=[], choices=targets.KINDS, metavar="KIND",
    help=f"of {kinds} (default: all whose compiler is installed)",
  )  # fmt: skip
  parser.add_argument("--sections", nargs="+", default=SECTIONS, choices=SECTIONS, help="tables (default both)")
  parser.add_argument("--heads", type=int, default=4, help="heads of 32 dimensions (default 4)")
  parser.add_argument("--batch", type=int, help="examples in a step (default 32 for text, 1 for longest)")
  parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="of the computation")
  arguments = parser.parse_args(argv)
  try:
    machines = find_devices(arguments.devices)
  except TrainingStopped as error:
    sys.exit(str(error))
  tables = {"text": text_table, "longest": longest_table}
  print(f"{versions()}\n")
  for section in arguments.sections:
    print(tables[section](machines, Sizes(arguments.heads, arguments.dtype, arguments.batch)), flush=True)
  print(ahead.NOTE)


if __name__ == "__main__":
  main()
