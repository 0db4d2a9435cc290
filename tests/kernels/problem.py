"""Random attention problems, and the comparison of a kernel on one of them with the definition."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import mgk_jax
from mgk_jax.kernels import checks, dropout as dropout_lib
from tests.kernels import definition

IMPLEMENTATIONS = ("reference", "xla")
# What is written as the definition is compiled as it is written, in half the time.
UNOPTIMISED = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}

# Errors are measured against the sum of the absolute values of the terms (`definition.Attention.magnitudes`).
# float64: rounding is 1e-16, scores and sums over at most a thousand keys multiply it by less than 1e4.
# float32: rounding is 6e-8; a score of some 30 nats carries 30 times that into every weight, once more into gradients.
# bfloat16: inputs are exact for both sides and scores are float32; the result is rounded to 8 bits, 2⁻⁹, and values
# and cotangents enter products that are rounded once more.
TOLERANCE = {"float64": 1e-10, "float32": 1e-5, "bfloat16": 2.0**-7}


class Case(NamedTuple):
  """One problem, by what is asked of the kernel."""

  kind: str = "mgk"  # mgk, smgk or softmax
  estep: str = "soft"
  dtype: str = "float32"
  T: int = 7
  S: int = 7
  M: int = 2
  V: int = 5
  prior: str = "none"  # none, head, position
  variance: str = "none"  # none, scalar, component
  mask: str = "none"  # the axes of the mask that are not 1
  is_causal: bool = False
  lengths: str = "none"  # none, key, query, both
  dropout_rate: float = 0.0
  B: int = 2
  N: int = 2
  H: int = 5

  def __str__(self) -> str:
    defaults = Case._field_defaults
    return "-".join(f"{k}={v}" for k, v in self._asdict().items() if k == "kind" or v != defaults[k])


class Problem(NamedTuple):
  """What a kernel is called with: arrays to differentiate by name, the rest, and a cotangent of the output."""

  case: Case
  inputs: dict[str, np.ndarray]
  options: dict[str, Any]
  cotangent: np.ndarray

  def define(self) -> definition.Attention:
    """The definition on the same numbers."""
    options = dict(self.options)
    rng, rate = options.pop("dropout_rng", None), options.pop("dropout_rate", 0.0)
    if rate:
      options["multiplier"] = multiplier(self.case, rate, rng)
    return definition.Attention(**self.inputs, **options, dot_product=self.case.kind == "softmax")


def make(case: Case, seed: int = 0) -> Problem:
  """A random problem of this kind, with numbers that the case's dtype represents exactly."""
  rng = np.random.default_rng(seed)

  def normal(*shape: int) -> np.ndarray:
    return rounded(rng.standard_normal(shape), case.dtype)

  B, T, S, N, M, H = case.B, case.T, case.S, case.N, case.M, case.H
  inputs = {"query": normal(B, T, N, H), "value": normal(B, S, N, case.V)}
  if case.kind == "mgk":
    inputs["key"] = normal(B, S, N, M, H)
  else:
    inputs["key"] = normal(B, S, N, H)
  if case.kind == "smgk":
    inputs["shift"] = normal(N, M, H)
  if case.estep == "hard":
    _avoid_ties(inputs, rng)
  if case.prior != "none":
    inputs["log_prior"] = normal(*((S,) if case.prior == "position" else ()), N, M)
  if case.variance != "none":
    inputs["variance"] = rounded(rng.uniform(1, 3, (M,) if case.variance == "component" else ()), "float32")
  options: dict[str, Any] = {} if case.kind == "softmax" else {"estep": case.estep}
  if case.mask != "none":
    shape = [getattr(case, letter) if letter in case.mask else 1 for letter in "BNTS"]
    mask = rng.random(shape) < 0.7
    mask[-1, -1, -1] = False  # at least one empty row, in every shape that has rows of its own
    options["mask"] = mask[0, 0] if case.mask == "TS" else mask
  if case.is_causal:
    options["is_causal"] = True
  if case.lengths in ("key", "both"):
    options["key_value_seq_lengths"] = np.array([S - S // 3, 0, S + 3][:B])
  if case.lengths in ("query", "both"):
    options["query_seq_lengths"] = np.array([T - T // 4, T // 2, T + 3][:B])
  if case.dropout_rate:
    options |= {"dropout_rate": case.dropout_rate, "dropout_rng": jax.random.key(seed, impl="rbg")}
  return Problem(case, inputs, options, normal(B, T, N, case.V))


def _avoid_ties(inputs: dict[str, np.ndarray], rng: np.random.Generator) -> None:
  """Puts queries and keys on grids on which no two components of a key are nearly equally far from a query.

  With coordinates n/2, and n/2 + r/16 in the first one of component r, the squared distances of two components differ
  by at least 2⁻⁸. In float32 a random problem of this size has a pair or two whose maximum is decided by rounding.
  """
  for name, x in inputs.items():
    if name != "value":
      x[...] = rng.integers(-4, 5, x.shape) / 2
  components = inputs["shift"] if "shift" in inputs else inputs["key"]
  components[..., 0] += np.arange(components.shape[-2]) / 16


def rounded(x: np.ndarray, dtype: str) -> np.ndarray:
  """`x` in float64 after rounding to `dtype`."""
  return np.asarray(x).astype(jnp.dtype(dtype)).astype(np.float64)


def multiplier(case: Case, rate: float, rng: jax.Array) -> np.ndarray:
  """The factor 0 or 1/(1 − rate) of each attention weight, [B, N, T, S]."""
  dims = checks.Dims(case.B, case.T, case.S, case.N, case.M, case.H, case.V)
  dropout = dropout_lib.make(rate, rng, dims)
  assert dropout is not None
  kept = dropout_lib.multiplier(dropout.rows[..., None], dropout.columns[..., None, :], rate, jnp.float32) > 0
  return np.asarray(kept) / (1 - rate)


def function(kind: str, **options: Any):
  """The kernel of this kind as a function of its arrays by name."""
  kernel = {
    "mgk": mgk_jax.mixture_attention,
    "smgk": mgk_jax.shifted_mixture_attention,
    "softmax": mgk_jax.softmax_attention,
  }[kind]

  def call(inputs):
    positional = [inputs[name] for name in ("query", "key", "value", "shift") if name in inputs]
    keywords = {name: x for name, x in inputs.items() if name in ("log_prior", "variance")}
    return kernel(*positional, **keywords, **options)

  return call


def device_inputs(problem: Problem) -> dict[str, jax.Array]:
  """The arrays as the caller would hold them: in the case's dtype, prior and variance in at least float32."""
  dtype = jnp.dtype(problem.case.dtype)
  parameter_dtype = jnp.promote_types(dtype, jnp.float32)
  parameters = ("log_prior", "variance")
  return {k: jnp.asarray(x, parameter_dtype if k in parameters else dtype) for k, x in problem.inputs.items()}


@functools.cache
def _value_and_gradients(kind: str, **static: Any):
  """Compiled once for all problems of the same shapes; masks, lengths and random keys are arguments too."""

  def value_and_gradients(inputs, traced, cotangent):
    output, pull_back = jax.vjp(function(kind, **traced, **static), inputs)
    return output, pull_back(cotangent)[0]

  return jax.jit(value_and_gradients, compiler_options=UNOPTIMISED if static["implementation"] == "reference" else None)


def run(problem: Problem, implementation: str | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Output and gradients of the kernel, compiled, as float64 arrays."""
  with jax.enable_x64(problem.case.dtype == "float64"):
    static = {k: x for k, x in problem.options.items() if isinstance(x, bool | float | str)}
    traced = {k: x for k, x in problem.options.items() if k not in static}
    inputs = device_inputs(problem)
    cotangent = jnp.asarray(problem.cotangent, problem.case.dtype)
    compiled = _value_and_gradients(problem.case.kind, implementation=implementation, **static)
    output, gradients = compiled(inputs, traced, cotangent)
    assert output.dtype == problem.case.dtype
    for name, gradient in gradients.items():
      assert gradient.dtype == inputs[name].dtype, name
    return np.asarray(output, np.float64), {k: np.asarray(g, np.float64) for k, g in gradients.items()}


def assert_close(name: str, got: np.ndarray, expected: np.ndarray, magnitude: np.ndarray, tolerance: float) -> None:
  """Asserts |got − expected| ≤ tolerance × the largest magnitude."""
  assert got.shape == expected.shape, f"{name}: expected shape {expected.shape}, got {got.shape}"
  assert np.all(np.isfinite(got)), f"{name}: {np.sum(~np.isfinite(got))} of {got.size} numbers are not finite"
  error, scale = np.max(np.abs(got - expected), initial=0.0), np.max(magnitude, initial=0.0)
  assert error <= tolerance * scale, f"{name}: error {error:.2e} of {scale:.2e} is above {tolerance:.0e}"


def check(
  problem: Problem, implementation: str | None, tolerance: float | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Asserts that a kernel's output and all its gradients are those of the definition, and returns them."""
  output, gradients = run(problem, implementation)
  compare(problem, output, gradients, TOLERANCE[problem.case.dtype] if tolerance is None else tolerance)
  return output, gradients


def compare(point: Any, output: np.ndarray, gradients: dict[str, np.ndarray], tolerance: float) -> None:
  """Asserts that output and gradients are those of the definition of `point`, which any kind of problem may be."""
  expected = point.define()
  expected_gradients, magnitudes = expected.gradients(point.cotangent), expected.magnitudes(point.cotangent)
  assert_close("output", output, expected.output, magnitudes["output"], tolerance)
  assert set(gradients) == set(point.inputs)
  for name, gradient in gradients.items():
    assert_close(f"gradient of {name}", gradient, expected_gradients[name], magnitudes[name], tolerance)


def check_definition(point: Any, atol: float) -> None:
  """Asserts that the definition's gradients, derived by hand, are those of central differences."""
  gradients = point.define().gradients(point.cotangent)
  step = 1e-5  # truncation and rounding both near 1e-10
  for name, x in point.inputs.items():
    for index in np.ndindex(x.shape):
      values = []
      for sign in (1, -1):
        moved = x.copy()
        moved[index] += sign * step
        values.append(np.sum(point._replace(inputs=point.inputs | {name: moved}).define().output * point.cotangent))
      numerical = (values[0] - values[1]) / (2 * step)
      np.testing.assert_allclose(gradients[name][index], numerical, rtol=1e-6, atol=atol, err_msg=f"{name} {index}")
