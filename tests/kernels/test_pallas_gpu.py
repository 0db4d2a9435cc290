"""The kernels for GPUs, interpreted, against the float64 definition: values and all gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import checks, flash, masking, pallas_gpu, pallas_gpu_products as products, scores
from tests.kernels import problem
from tests.kernels.problem import Case

# Several blocks of queries and of keys, and no multiples of them; head dimensions that are no powers of two.
CASES = [
  Case(kind="softmax", M=1, T=150, S=140, H=16, V=32, is_causal=True, lengths="both"),
  Case(kind="softmax", M=1, T=20, S=150, dtype="float16", mask="TS"),
  Case(kind="mgk", T=150, S=70, prior="position", variance="component", mask="BNTS", lengths="both"),
  Case(kind="mgk", T=140, S=150, M=3, dtype="bfloat16", prior="head", is_causal=True, mask="BS"),
  Case(kind="mgk", T=70, S=150, M=3, estep="hard", dtype="bfloat16", variance="scalar", mask="NT", lengths="key"),
  Case(kind="smgk", T=70, S=150, dtype="bfloat16", M=3, prior="head", lengths="key"),
  Case(kind="smgk", T=150, S=140, M=3, estep="hard", mask="TS", lengths="both"),
]
SHIFTED = Case(kind="smgk", T=150, S=140, prior="position", lengths="query", variance="scalar")
TOLERANCE = problem.TOLERANCE | {"float16": 2.0**-10}  # 11 bits where bfloat16 has 8


def attend(case, interpret, query, key, value, shift=None, log_prior=None, variance=None, mask=None, **lengths):
  *_, dims = checks.query_key_value(query, key, value, key_letters="B S N M H" if case.kind == "mgk" else "B S N H")
  dims = dims._replace(M=case.M)
  variance = checks.variance(variance, dims)
  log_prior = None if case.estep == "hard" else log_prior
  if case.kind == "softmax":
    terms = scores.dot_product(query, key)
  elif case.kind == "mgk":
    terms = scores.gaussian(query, key, log_prior, variance)
  else:
    terms = scores.shifted_gaussian(query, key, shift, log_prior, variance)
  query_lengths, key_lengths = lengths.get("query_seq_lengths"), lengths.get("key_value_seq_lengths")
  where = masking.make(mask, case.is_causal, query_lengths, key_lengths, dims)
  return flash.attention(flash.Backend(pallas_gpu, interpret), terms, value, where, dims, case.estep)


@functools.cache
def value_and_gradients(case, interpret):
  @jax.jit
  def run(inputs, where, cotangent):
    output, pull_back = jax.vjp(lambda inputs: attend(case, interpret, **inputs, **where), inputs)
    return output, pull_back(cotangent)[0]

  return run


def arguments(point):
  where = {name: x for name, x in point.options.items() if isinstance(x, np.ndarray)}
  return problem.device_inputs(point), where, jnp.asarray(point.cotangent, point.case.dtype)


def check(point, tolerance):
  output, gradients = value_and_gradients(point.case, interpret=True)(*arguments(point))
  assert output.dtype == point.case.dtype
  gradients = {name: np.asarray(x, np.float64) for name, x in gradients.items()}
  problem.compare(point, np.asarray(output, np.float64), gradients, tolerance)


@pytest.mark.parametrize("case", [*CASES, SHIFTED], ids=str)
def test_values_and_gradients(case):
  check(problem.make(case, seed=case.T + case.S), TOLERANCE[case.dtype])


def test_far_from_every_key():
  """Distances of some hundred standard deviations: the factors of sMGK would underflow, and are not used."""
  point = problem.make(SHIFTED)
  for name in ("query", "shift"):
    point.inputs[name] *= 32
  check(point, 1e-3)  # scores of some thousand carry float32's rounding into the weights


@pytest.mark.skipif(jax.__version_info__ >= (0, 11), reason="JAX does not lower for a GPU that it does not see")
@pytest.mark.parametrize("case", [CASES[2], CASES[5]], ids=str)
def test_lowers_for_gpus(case):
  run = value_and_gradients(case, interpret=False)
  lowered = run.trace(*arguments(problem.make(case))).lower(lowering_platforms=("cuda",))
  forms = 2 if case.kind == "smgk" else 1  # factored or not
  assert lowered.as_text().count("xla.gpu.triton") == 3 * forms


def test_products_of_float32_are_exact_to_float32():
  rng = np.random.default_rng(0)
  a, b = (rng.standard_normal((32, 64)) * 10.0 ** rng.uniform(-4, 4, (32, 64)) for _ in range(2))
  a, b = a.astype(np.float32), b.astype(np.float32)
  exact, magnitude = a.astype(np.float64) @ b.T.astype(np.float64), np.abs(a).astype(np.float64) @ np.abs(b).T
  parts = products.split(jnp.asarray(b))
  assert parts.dtype == jnp.bfloat16
  np.testing.assert_array_equal(np.sum(np.asarray(parts, np.float64), axis=0), b)
  got = products.dot(products.like(list(parts), jnp.asarray(a)), list(parts), turned=True)
  # Of the largest term, which dominates a sum, 2⁻²³ is left out, and as much is lost by the last of the roundings.
  np.testing.assert_array_less(np.abs(got - exact), 2.0**-21 * magnitude)


def test_refuses_what_does_not_fit():
  plan = flash.Plan(
    T=64, S=64, H=300, V=64, K=1, M=1, estep="soft", is_causal=False, mixing=None,
    has_row=False, has_column=False, has_shared=False,
  )  # fmt: skip
  with pytest.raises(NotImplementedError, match="above 256: 300 of keys, 64 of values"):
    pallas_gpu.check(plan)
  pallas_gpu.check(plan._replace(H=256))
  with pytest.raises(NotImplementedError, match="9 keys of 256 dimensions"):
    pallas_gpu.blocks("forward", plan._replace(H=256, K=9, M=9), parts=3)
  assert pallas_gpu.blocks("forward", plan._replace(H=256, K=9, M=9), parts=1).held == 16
