"""Timing contenders against each other: alternating repeats in one run on cores that stay awake, medians, ratios."""

import contextlib
import dataclasses
import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Program:
  """What is run and timed, ready to run.

  Attributes:
    run: returns when all is computed.
    temporary_bytes: beside arguments and results, if known.
    rest: seconds to wait afterwards.
    text: the program as XLA compiled it.
  """

  run: Callable[[], Any]
  temporary_bytes: int | None = None
  rest: float = 0.0
  text: str | None = None


@dataclasses.dataclass(frozen=True)
class Contender:
  """Something to measure.

  Attributes:
    name: the row's title.
    prepare: compiles it.
    flops: floating-point operations of its matrix products; None where nobody counted.
  """

  name: str
  prepare: Callable[[], Program]
  flops: float | None = None


@dataclasses.dataclass(frozen=True)
class Measurement:
  """The median time of a contender."""

  contender: Contender
  seconds: float
  temporary_bytes: int | None


def compiled(function: Callable[..., Any], *arguments: Any) -> Program:
  """A function of arrays as XLA compiles it."""
  program = jax.jit(function).lower(*arguments).compile()
  memory: Any = program.memory_analysis()
  return Program(lambda: jax.block_until_ready(program(*arguments)), memory.temp_size_in_bytes, text=program.as_text())


def gradient(
  name: str, function: Callable[..., jax.Array], arguments: Sequence[jax.Array], flops: float | None = None
) -> Contender:
  """A function of arrays with its derivatives by all of them."""

  def value_and_gradients(*arguments: jax.Array) -> Any:
    out, pull_back = jax.vjp(function, *arguments)
    return out, pull_back(out)

  return Contender(name, lambda: compiled(value_and_gradients, *arguments), flops)


@contextlib.contextmanager
def awake_cores() -> Iterator[list[threading.Thread]]:
  """Keeps all cores busy with nothing, where the system (Linux) knows threads that run when no other wants to.

  A core that falls asleep between two operations takes a while to wake up, on virtual machines as long as a small
  operation, and how long depends on who else uses the host.
  """
  done = threading.Event()

  def stay_awake(core: int) -> None:
    os.sched_setaffinity(0, {core})  # 0 is the thread that calls
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while not done.is_set():
      hashlib.pbkdf2_hmac("sha256", b"", b"", 100_000)  # something to compute without Python's lock

  cores = os.sched_getaffinity(0) if hasattr(os, "SCHED_IDLE") else set()
  threads = [threading.Thread(target=stay_awake, args=[core], daemon=True) for core in sorted(cores)]
  for thread in threads:
    thread.start()
  try:
    yield threads
  finally:
    done.set()
    for thread in threads:
      thread.join()


def measure(contenders: Sequence[Contender], repeats: int, seconds: float = 0.0) -> list[Measurement]:
  """`measure_groups` of contenders that are all compared with each other."""
  return measure_groups([contenders], repeats, seconds)[0]


def measure_groups(
  groups: Sequence[Sequence[Contender]], repeats: int, seconds: float = 0.0
) -> list[list[Measurement]]:
  """Prepares all contenders, then runs those of each group in turns, once in each of `repeats` rounds or more often.

  All groups have their turn in each round, so that what slows a machine down for a while does not meet one group alone.
  Turns have an order of their own, since what ran just before may slow a program down.

  Args:
    groups: what is measured; the contenders of a group run one after the other.
    repeats: rounds.
    seconds: that each group's turns are to take together, at least: short programs vary more.
  """
  quiet = not sys.stderr.isatty()
  with tqdm(total=sum(map(len, groups)), desc="compiling", disable=quiet, leave=False) as progress:
    programs = [[_warmed_up(contender, progress) for contender in group] for group in groups]
  records: list[list[list[float]]] = [[[] for _ in group] for group in groups]
  order = np.random.default_rng(0)
  with awake_cores(), tqdm(total=repeats * len(groups), desc="measuring", disable=quiet, leave=False) as progress:
    for _ in range(repeats):
      for group, record in zip(programs, records, strict=True):
        begin, is_due = time.perf_counter(), True
        while is_due:
          for i in order.permutation(len(group)):
            start = time.perf_counter()
            group[i].run()
            record[i].append(time.perf_counter() - start)
            time.sleep(group[i].rest)
          is_due = time.perf_counter() - begin < seconds / repeats
        progress.update()
  return [
    [
      Measurement(contender, float(np.median(times)), program.temporary_bytes)
      for contender, program, times in zip(*group, strict=True)
    ]
    for group in zip(groups, programs, records, strict=True)
  ]


def _warmed_up(contender: Contender, progress: tqdm) -> Program:
  program = contender.prepare()
  program.run()
  time.sleep(program.rest)
  progress.update()
  return program


def by_name(measurements: Sequence[Measurement]) -> Mapping[str, float]:
  """Seconds by the contender's name."""
  return {m.contender.name: m.seconds for m in measurements}


def table(measurements: Sequence[Measurement], baselines: Sequence[str]) -> str:
  """A Markdown table with one column of ratios for each baseline that was measured."""
  seconds = by_name(measurements)
  baselines = [name for name in baselines if name in seconds]
  rows = [["contender", "ms", *(f"× {name}" for name in baselines), "temporary MiB", "GFLOP"]]
  for m in measurements:
    ratios = [f"{m.seconds / seconds[name]:.2f}" for name in baselines]
    memory = "" if m.temporary_bytes is None else f"{m.temporary_bytes / 2**20:.1f}"
    flops = "" if m.contender.flops is None else f"{m.contender.flops / 1e9:.2f}"
    rows.append([m.contender.name, f"{m.seconds * 1e3:.1f}", *ratios, memory, flops])
  return markdown(rows)


def markdown(rows: Sequence[Sequence[str]]) -> str:
  """Rows of cells, the first of them the header, as a table whose columns but the first are numbers."""
  ruler = ["---"] + ["---:"] * (len(rows[0]) - 1)
  return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ruler, *rows[1:]])
