"""How long a number takes from one core to another and back: whether the two share a cache at the moment.

    python -m benchmarks.cores
    python -m benchmarks.cores --repeats 600 --pause 0.1    # for a minute: is it always the same?

The cores of a virtual machine may be moved from one group of cores with a cache of its own to another while programs
run. What one core has written then reaches the other one more slowly, and what takes a few milliseconds on two cores
takes longer, whatever it computes. Linux only.
"""

import mmap
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence

from mgk_jax import console

TRIPS = 200  # of which the mean is taken; they are counted in a byte
LINE = 128  # bytes between two numbers that are to be in cache lines of their own


def round_trip(first: int, second: int) -> float:
  """Nanoseconds from core `first` to core `second` and back, in the mean of some trips, with Python's share."""
  shared = mmap.mmap(-1, 2 * LINE)
  here = os.sched_getaffinity(0)
  child = os.fork()
  if child == 0:
    try:
      os.sched_setaffinity(0, {second})
      for number in range(1, TRIPS + 1):
        while shared[0] != number:
          pass
        shared[LINE] = number
    finally:
      os._exit(0)
  try:
    os.sched_setaffinity(0, {first})
    start = 0
    for number in range(1, TRIPS + 1):
      shared[0] = number
      while shared[LINE] != number:
        pass
      start = start or time.perf_counter_ns()  # the first trip waits for the other process
    return (time.perf_counter_ns() - start) / (TRIPS - 1)
  finally:
    os.kill(child, signal.SIGKILL)  # which else would wait for a number for ever after an interruption
    os.waitpid(child, 0)
    os.sched_setaffinity(0, here)


def report() -> str:
  """The line that the command prints, in a process without threads; why not, where it cannot be measured."""
  command = [sys.executable, "-m", "benchmarks.cores", "--repeats", "15", "--pause", "0"]
  try:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
  except subprocess.TimeoutExpired:
    return "from core to core: not measured, it took more than a minute"
  return done.stdout.strip() or f"from core to core: not measured, {done.stderr.strip().splitlines()[-1]}"


def main(argv: Sequence[str] | None = None) -> None:
  """Measures the first two cores that the process may use, and prints a line."""
  parser = console.parser("benchmarks.cores", __doc__)
  parser.add_argument("--repeats", type=int, default=15, help="measurements (default 15)")
  parser.add_argument("--pause", type=float, default=0.02, help="seconds between two (default 0.02)")
  arguments = parser.parse_args(argv)
  if not hasattr(os, "sched_setaffinity"):
    parser.error("this system does not let a process choose its core")
  cores = sorted(os.sched_getaffinity(0))[:2]
  if len(cores) < 2:
    parser.error("it takes two cores, and this process may use one")
  found = []
  for _ in range(max(arguments.repeats, 1)):
    found.append(round_trip(*cores))
    time.sleep(arguments.pause)
  median, low, high = statistics.median(found), min(found), max(found)
  print(f"from core {cores[0]} to core {cores[1]} and back: {median:.0f} ns ({low:.0f} to {high:.0f})")


if __name__ == "__main__":
  main()
