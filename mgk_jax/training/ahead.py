"""A training step compiled for a machine that is not there: what it needs of each device."""

import dataclasses
import re
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np
import optax
from flax import nnx

from mgk_jax.analysis import table
from mgk_jax.kernels import dispatch
from mgk_jax.training import compiled, mesh as meshes, state as states, step as steps
from mgk_jax.training.targets import GIB, Target

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
NOTE = """\
Figures of the compiler, per device: they say what a step needs and not how long it takes. GFLOP (formula) are those of
all matrix products of the model; GFLOP (compiler) and GiB accessed count a loop's body once and no Triton kernel."""


@dataclasses.dataclass(frozen=True)
class Needs:
  """What a compiled step needs of one device; None where the compiler does not say."""

  memory_bytes: int  # the peak: arguments, results and temporaries
  temporary_bytes: int
  flops: float | None
  bytes_accessed: float | None
  collectives: Mapping[str, int] | None
  compile_seconds: float
  attention: str  # which implementation, and why


def compile_step(
  target: Target,
  *,
  make_model: Callable[[nnx.Rngs], nnx.Module],
  objective: steps.Objective,
  optimizer: optax.GradientTransformation,
  batch: Mapping[str, np.ndarray],
  data: int = -1,
  model: int = 1,
  accumulation_steps: int = 1,
) -> Needs:
  """Compiles a whole sharded training step; no array is made, and the machine need not be there.

  Args:
    target: the machine.
    make_model, objective, optimizer, accumulation_steps: as in `Trainer`.
    batch: arrays with the shapes and dtypes of a batch of all devices.
    data, model: the mesh.
  """
  mesh = meshes.make_mesh(data, model, devices=target.devices)
  structure, init, shardings = states.plan(make_model, optimizer, mesh, 0)
  step = steps.make_train_step(structure, objective, optimizer, accumulation_steps=accumulation_steps)
  state = jax.tree.map(_abstract, jax.eval_shape(init), shardings)
  rows = {name: _abstract(x, meshes.batch_sharding(mesh)) for name, x in batch.items()}
  with dispatch.compiling_for(target.platform):
    explained = dispatch.explain_implementation(step, state, rows).splitlines()
    attention = "; ".join(dict.fromkeys(explained))
    compiled_step: Any = steps.compile_train_step(step, mesh, shardings)
    started = time.monotonic()
    try:
      program = compiled_step.lower(state, rows).compile()
    except jax.errors.JaxRuntimeError as error:
      if (needed := compiled.overflow(error)) is None:
        raise
      return Needs(needed, needed, None, None, None, time.monotonic() - started, attention)
    seconds = time.monotonic() - started
  memory, cost = program.memory_analysis(), compiled.cost(program)
  return Needs(
    memory_bytes=memory.argument_size_in_bytes
    + memory.output_size_in_bytes
    + memory.temp_size_in_bytes
    - memory.alias_size_in_bytes,
    temporary_bytes=memory.temp_size_in_bytes,
    flops=cost.get("flops"),
    bytes_accessed=cost.get("bytes accessed"),
    collectives=count_collectives(program.as_text()),
    compile_seconds=seconds,
    attention=attention,
  )


def count_collectives(hlo: str) -> dict[str, int]:
  """How many of each collective a compiled program has, those that run beside other work counted once."""
  found = Counter(re.findall(rf"= \S+ ({'|'.join(COLLECTIVES)})(?:-start)?\(", hlo))
  return {name: found[name] for name in COLLECTIVES if found[name]}


def describe(target: Target, needs: Mapping[str, Needs], model_flops: Mapping[str, float]) -> str:
  """A table with a row for each model, and what to know of it; `model_flops` are those of the formula."""
  number = len(target.devices)
  rows: list[Sequence[str]] = []
  for name, need in needs.items():
    share = need.memory_bytes / target.memory_bytes
    rows.append(
      [
        name,
        f"{need.memory_bytes / GIB:.2f}",
        f"{share:.1%}" + (" (does not fit)" if share > 1 else ""),
        f"{model_flops[name] / number / 1e9:,.1f}",
        "" if need.flops is None else f"{need.flops / 1e9:,.1f}",
        "" if need.bytes_accessed is None else f"{need.bytes_accessed / GIB:,.2f}",
        "" if need.collectives is None else _listed(need.collectives),
        f"{need.compile_seconds:.0f}",
      ]
    )
  columns = [
    "model",
    "peak GiB",
    f"of {target.memory_bytes / GIB:.0f} GiB",
    "GFLOP (formula)",
    "GFLOP (compiler)",
    "GiB accessed",
    "collectives",
    "compiled in s",
  ]
  kernels = dict.fromkeys(f"{name}: attention by {need.attention}" for name, need in needs.items())
  return "\n".join([f"{target.name}, {number} devices", table.markdown(columns, rows), *kernels, NOTE])


def _listed(collectives: Mapping[str, int]) -> str:
  return ", ".join(f"{count} {kind}" for kind, count in collectives.items()) or "none"


def _abstract(x: Any, sharding: Any) -> jax.ShapeDtypeStruct:
  return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
