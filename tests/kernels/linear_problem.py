"""Random problems of linear attention, and the comparison of a kernel on one of them with the definition."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from mgk_jax.kernels import feature_maps, linear
from tests.kernels import linear_definition
from tests.kernels.problem import compare, rounded

IMPLEMENTATIONS = ("reference", "xla")

# Errors are measured against the sum of the absolute values of the terms (`LinearAttention.magnitudes`).
# float64: rounding is 1e-16, sums over hundreds of products multiply it by less than 1e4. float32: 6e-8, times the
# square root of the number of terms and the exponents of FAVOR+ (some 10 nats). bfloat16: inputs are exact for both
# sides and the computation is float32; results are rounded to 8 bits, 2⁻⁹.
TOLERANCE = {"float64": 1e-11, "float32": 5e-6, "bfloat16": 2.0**-8}


def square(x):
  """The caller's own function."""
  return x**2 + 0.5


MAPS = {
  "elu": ("elu", lambda H: linear_definition.Elu()),
  "relu": ("relu", lambda H: linear_definition.Relu()),
  "dpfp": ("dpfp", lambda H: linear_definition.Dpfp()),
  "dpfp3": (feature_maps.Dpfp(nu=3), lambda H: linear_definition.Dpfp(3)),
  "favor": ("favor", lambda H: linear_definition.Favor(feature_maps.resolve("favor", H).projection)),
  "callable": (square, lambda H: linear_definition.Square()),
}


class Case(NamedTuple):
  """One problem, by what is asked of the kernel."""

  feature_map: str = "elu"
  dtype: str = "float32"
  size: tuple[int, int] = (7, 7)  # T, S
  M: int = 2
  V: int = 5
  prior: str = "none"  # none, head, position, or with one component of zero weight: zero
  mask: str = "none"  # the axes of the mask that are not 1
  is_causal: bool = False
  lengths: str = "none"  # none, key, query, both
  B: int = 2
  N: int = 2
  H: int = 4

  def __str__(self) -> str:
    shown = {k: v for k, v in self._asdict().items() if k == "feature_map" or v != Case._field_defaults[k]}
    return "-".join(f"{k}={v}".replace(" ", "") for k, v in shown.items())


class Problem(NamedTuple):
  """What a kernel is called with: arrays to differentiate by name, the rest, and a cotangent of the output."""

  case: Case
  inputs: dict[str, np.ndarray]
  options: dict[str, Any]
  cotangent: np.ndarray

  def define(self) -> linear_definition.LinearAttention:
    """The definition on the same numbers."""
    phi = MAPS[self.case.feature_map][1](self.case.H)
    return linear_definition.LinearAttention(**self.inputs, phi=phi, **self.options)


def make(case: Case, seed: int = 0) -> Problem:
  """A random problem of this kind, with numbers that the case's dtype represents exactly."""
  rng = np.random.default_rng(seed)

  def normal(*shape: int) -> np.ndarray:
    return rounded(rng.standard_normal(shape), case.dtype)

  (T, S), B, N, M, H = case.size, case.B, case.N, case.M, case.H
  inputs = {"query": normal(B, T, N, H), "key": normal(B, S, N, M, H), "value": normal(B, S, N, case.V)}
  if case.prior != "none":
    inputs["log_prior"] = 2 * normal(*(() if case.prior == "head" else (S,)), N, M)
  if case.prior == "zero":
    inputs["log_prior"][::2, 0, 0] = -np.inf
    inputs["log_prior"][S // 2, 1, :] = -np.inf
  options: dict[str, Any] = {"is_causal": case.is_causal}
  if case.mask != "none":
    shape = [getattr(case, letter) if letter in "BN" else {"T": T, "S": S}[letter] for letter in "BNTS"]
    mask = rng.random([size if letter in case.mask else 1 for letter, size in zip("BNTS", shape, strict=True)]) < 0.7
    mask[0, 0, -1, 0] = False
    options["mask"] = mask
  if case.lengths in ("key", "both"):
    options["key_value_seq_lengths"] = np.array([S - S // 3, 0, S + 3][:B])
  if case.lengths in ("query", "both"):
    options["query_seq_lengths"] = np.array([T - T // 4, T // 2, T + 3][:B])
  return Problem(case, inputs, options, normal(B, T, N, case.V))


@functools.cache
def _value_and_gradients(feature_map: str, is_causal: bool, implementation: str | None):
  @jax.jit
  def value_and_gradients(inputs, options, cotangent):
    def call(inputs):
      positional = [inputs[name] for name in ("query", "key", "value")]
      return linear.mixture_linear_attention(
        *positional, log_prior=inputs.get("log_prior"), feature_map=MAPS[feature_map][0], is_causal=is_causal,
        implementation=implementation, **options,
      )  # fmt: skip

    output, pull_back = jax.vjp(call, inputs)
    return output, pull_back(cotangent)[0]

  return value_and_gradients


def device_inputs(problem: Problem) -> dict[str, jax.Array]:
  """The arrays as the caller would hold them: in the case's dtype, the prior in at least float32."""
  dtype = jnp.dtype(problem.case.dtype)
  prior_dtype = jnp.promote_types(dtype, jnp.float32)
  return {k: jnp.asarray(x, prior_dtype if k == "log_prior" else dtype) for k, x in problem.inputs.items()}


def run(problem: Problem, implementation: str | None) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Output and gradients of the kernel, compiled, as float64 arrays."""
  with jax.enable_x64(problem.case.dtype == "float64"):
    inputs = device_inputs(problem)
    options = {k: x for k, x in problem.options.items() if k != "is_causal"}
    compiled = _value_and_gradients(problem.case.feature_map, problem.options["is_causal"], implementation)
    output, gradients = compiled(inputs, options, jnp.asarray(problem.cotangent, problem.case.dtype))
    assert output.dtype == problem.case.dtype
    for name, gradient in gradients.items():
      assert gradient.dtype == inputs[name].dtype, name
    return np.asarray(output, np.float64), {k: np.asarray(g, np.float64) for k, g in gradients.items()}


def check(
  problem: Problem, implementation: str | None, tolerance: float | None = None
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  """Asserts that a kernel's output and all its gradients are those of the definition, and returns them."""
  output, gradients = run(problem, implementation)
  compare(problem, output, gradients, TOLERANCE[problem.case.dtype] if tolerance is None else tolerance)
  return output, gradients
