"""Timing contenders against each other: alternating repeats in one run, medians, ratios."""

import dataclasses
import sys
import time
from collections.abc import Callable, Sequence

import jax
import numpy as np
from tqdm import tqdm


@dataclasses.dataclass(frozen=True)
class Contender:
  """A function to measure on its arguments, with what its name cannot tell.

  Attributes:
    name: the row's title.
    function: of the arguments; its derivatives by all of them are measured too.
    arguments: arrays.
    flops: floating-point operations of its matrix products, forward and backward.
  """

  name: str
  function: Callable[..., jax.Array]
  arguments: Sequence[jax.Array]
  flops: float


@dataclasses.dataclass(frozen=True)
class Measurement:
  """The median time of a contender's forward and backward pass and the temporary memory of the compiled program."""

  contender: Contender
  seconds: float
  temporary_bytes: int


def measure(contenders: Sequence[Contender], repeats: int) -> list[Measurement]:
  """Compiles value and gradients of all contenders, then runs them in turn `repeats` times."""
  compiled = [_compile(contender) for contender in tqdm(contenders, "compiling", disable=not sys.stderr.isatty())]
  seconds: list[list[float]] = [[] for _ in contenders]
  for repeat in tqdm(range(repeats + 1), "measuring", disable=not sys.stderr.isatty()):
    for contender, program, record in zip(contenders, compiled, seconds, strict=True):
      start = time.perf_counter()
      jax.block_until_ready(program(*contender.arguments))
      if repeat:  # the first round warms up
        record.append(time.perf_counter() - start)
  return [
    Measurement(contender, float(np.median(record)), program.memory_analysis().temp_size_in_bytes)
    for contender, program, record in zip(contenders, compiled, seconds, strict=True)
  ]


def _compile(contender: Contender):
  def value_and_gradients(*arguments: jax.Array):
    out, pull_back = jax.vjp(contender.function, *arguments)
    return out, pull_back(out)

  return jax.jit(value_and_gradients).lower(*contender.arguments).compile()


def table(measurements: Sequence[Measurement], baselines: Sequence[str]) -> str:
  """A Markdown table with one column of ratios per baseline."""
  by_name = {m.contender.name: m.seconds for m in measurements}
  header = ["contender", "ms", *(f"× {name}" for name in baselines), "temporary MiB", "GFLOP"]
  rows = [header, ["---"] + ["---:"] * (len(header) - 1)]
  for m in measurements:
    ratios = [f"{m.seconds / by_name[name]:.2f}" for name in baselines]
    memory, flops = f"{m.temporary_bytes / 2**20:.1f}", f"{m.contender.flops / 1e9:.2f}"
    rows.append([m.contender.name, f"{m.seconds * 1e3:.1f}", *ratios, memory, flops])
  return "\n".join("| " + " | ".join(row) + " |" for row in rows)
