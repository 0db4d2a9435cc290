"""Timing contenders against each other: alternating repeats in one run, medians, ratios."""

import ctypes
import dataclasses
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
from tqdm import tqdm

LONG = 0.25  # seconds of a run that needs no other before it


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


def keep_memory() -> bool:
  """Has the process keep memory that a program frees, for the next one; whether it does: only glibc knows how.

  By itself glibc hands large pieces back to the system after every run, or not, depending on what was allocated before;
  what it has handed back costs a page fault for every 4 KiB in the next run. To be called before JAX computes anything,
  as threads that have memory already go on as before. `docs/guides/train.md` tells users how to have the same.
  """
  settings = {-8: 1, -4: 0, -1: 2**31 - 1}  # M_ARENA_MAX, M_MMAP_MAX, M_TRIM_THRESHOLD
  if not sys.platform.startswith("linux"):
    return False
  mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
  return mallopt is not None and all(mallopt(*setting) == 1 for setting in settings.items())


def measure(contenders: Sequence[Contender], repeats: int, seconds: float = 0.0) -> list[Measurement]:
  """`measure_groups` of contenders that are all compared with each other."""
  return measure_groups([contenders], repeats, seconds)[0]


def measure_groups(
  groups: Sequence[Sequence[Contender]], repeats: int, seconds: float = 0.0
) -> list[list[Measurement]]:
  """Prepares all contenders, then runs those of each group in turns, once in each of `repeats` rounds or more often.

  All groups have their turn in each round, so that what slows a machine down for a while does not meet one group alone.
  The order of turns differs, and a short program runs twice in its turn, of which the second run counts: what ran just
  before may slow a program down. Programs that need a rest afterwards come last, as often as the others, and then there
  is one: what runs after a rest takes longer.

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
  with tqdm(total=repeats * len(groups), desc="measuring", disable=quiet, leave=False) as progress:
    for _ in range(repeats):
      for group, record in zip(programs, records, strict=True):
        restless = [i for i, program in enumerate(group) if not program.rest]
        begin, runs = time.perf_counter(), 0
        while not runs or (restless and time.perf_counter() - begin < seconds / repeats):
          for i in order.permutation(restless):
            record[i].append(_seconds(group[i]))
          runs += 1
        for i, program in enumerate(group):
          if program.rest:
            record[i] += [_seconds(program) for _ in range(runs)]
            time.sleep(program.rest)
        progress.update()
  return [
    [
      Measurement(contender, float(np.median(times)), program.temporary_bytes)
      for contender, program, times in zip(*group, strict=True)
    ]
    for group in zip(groups, programs, records, strict=True)
  ]


def _seconds(program: Program) -> float:
  """How long a run takes right after another one, as in a training loop, or by itself if it takes long anyway.

  What a program needs for its first run after others, or after a pause of its core, says more of those than of itself.
  """
  seconds = _run(program)
  return seconds if seconds > LONG else _run(program)


def _run(program: Program) -> float:
  start = time.perf_counter()
  program.run()
  return time.perf_counter() - start


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
