"""Inputs at which a careless formula overflows, underflows or divides by zero: still the definition, and finite."""

import jax
import numpy as np
import pytest

import mgk_jax
from tests.kernels import problem
from tests.kernels.problem import Case

pytestmark = pytest.mark.usefixtures("optimised")

both_implementations = pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)
all_kinds = pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
mixtures = pytest.mark.parametrize("kind", ["mgk", "smgk"])


def case_of(kind: str, **changes) -> Case:
  """The same shapes in many tests, so that they share what is compiled."""
  if kind == "softmax":
    return Case(kind=kind, M=1, T=20, S=70, **changes)
  return Case(kind=kind, T=20, S=70, **({"prior": "head"} | changes))


def scale(point: problem.Problem, factor: float, *names: str) -> problem.Problem:
  scaled = {k: problem.rounded(factor * x, point.case.dtype) for k, x in point.inputs.items() if k in names}
  return point._replace(inputs=point.inputs | scaled)


def assert_finite(point: problem.Problem, implementation: str) -> tuple[np.ndarray, dict[str, np.ndarray]]:
  output, gradients = problem.run(point, implementation)
  for name, x in {"output": output, **gradients}.items():
    assert np.all(np.isfinite(x)), f"{name}: {np.sum(~np.isfinite(x))} of {x.size} numbers are not finite"
  return output, gradients


@both_implementations
@pytest.mark.parametrize(
  ("kind", "estep", "dtype"),
  [
    ("mgk", "soft", "float32"),
    ("mgk", "hard", "float32"),
    ("smgk", "soft", "float32"),
    ("smgk", "hard", "float32"),
    ("softmax", "soft", "float32"),
    ("mgk", "soft", "bfloat16"),
    ("smgk", "soft", "bfloat16"),
  ],
)
def test_scaled_by_a_thousand_is_finite(kind, dtype, estep, implementation):
  """Every exponent is in the thousands or millions of nats below zero."""
  point = problem.make(case_of(kind, estep=estep, dtype=dtype))
  assert_finite(scale(point, 1e3, "query", "key"), implementation)
  assert_finite(scale(point, 1e3, "query", "key", "shift"), implementation)


@both_implementations
@all_kinds
def test_scaled_by_a_thousand_is_the_definition_in_float64(kind, implementation):
  """Scores of 10⁷ nats are known to 10⁻⁹ nats, times some ten operations."""
  point = problem.make(case_of(kind, dtype="float64"))
  problem.check(scale(point, 1e3, "query", "key", "shift"), implementation, tolerance=1e-7)


@both_implementations
@mixtures
def test_far_queries_attend_to_the_nearest_key(kind, implementation):
  """In float32 the weights are all on one key wherever it leads by more nats than a score's rounding error."""
  point = scale(problem.make(case_of(kind), seed=1), 1e3, "query", "key")
  output, _ = assert_finite(point, implementation)
  score = np.sort(point.define().scores.max(-1), -1)
  clear = (score[..., -1] - score[..., -2] > 1e3).transpose(0, 2, 1)
  assert clear.mean() > 0.9
  np.testing.assert_allclose(output[clear], point.define().output[clear], rtol=1e-6)


@both_implementations
@pytest.mark.parametrize("estep", ["soft", "hard"])
@mixtures
def test_identical_keys(kind, estep, implementation):
  """All keys and components in one place: uniform weights, and ties everywhere."""
  point = problem.make(case_of(kind, estep=estep))
  same = {name: np.ones_like(point.inputs[name]) for name in ("key", "shift") if name in point.inputs}
  point = point._replace(inputs=point.inputs | same)
  output, _ = problem.check(point, implementation)
  np.testing.assert_allclose(output, np.broadcast_to(point.inputs["value"].mean(1)[:, None], output.shape), atol=1e-6)


@both_implementations
@all_kinds
@pytest.mark.parametrize("factor", [1.0, 1e3])
def test_a_single_valid_key(kind, factor, implementation):
  """Its weight is 1 however far away it is, and no gradient reaches queries and keys."""
  point = scale(problem.make(case_of(kind)), factor, "query", "key")
  point = point._replace(options=point.options | {"mask": np.arange(70) == 13})
  output, gradients = assert_finite(point, implementation)
  np.testing.assert_allclose(output, np.broadcast_to(point.inputs["value"][:, 13:14], output.shape), rtol=1e-6)
  # A backward pass that computes the score again may round it elsewhere, and with it the weight: by 2⁻²³ of its terms.
  squares = max(np.max(np.sum(point.inputs[name] ** 2, -1)) for name in ("query", "key"))
  rounding = 2e-5 if factor == 1 else 20 * (1e-5 + 2.0**-23 * squares / np.sqrt(point.case.H))
  np.testing.assert_allclose(gradients["value"][:, 13], point.cotangent.sum(1), atol=rounding)
  # The rest of the gradient is the rounding of cotangent·value, some 1e-6, times a distance in units of σ².
  assert np.max(np.abs(gradients["query"])) <= 1e-5 * factor and np.max(np.abs(gradients["key"])) <= 1e-4 * factor


def opposed(row_range: float, column_range: float, *, estep: str, dtype: str) -> problem.Problem:
  """Shifted keys whose two components differ by ±row_range nats for a query and by ±column_range nats for a key.

  With shifts ±b and σ² = 1 they are 2 q·b and −2 k·b apart. Where the query favours the component that the key
  disfavours, both factors of each product in the factored form are small: a naive one yields 0 / 0. A first example
  of the batch with ranges of about a nat stands beside the extreme one.
  """
  point = problem.make(Case(kind="smgk", estep=estep, dtype=dtype, T=30, S=40, B=2, N=1, H=3, prior="head"), seed=2)
  inputs = {name: x.copy() for name, x in point.inputs.items()}
  length = np.sqrt(max(row_range, column_range) / 2)
  inputs["shift"][0, :, :] = [[length, 0, 0], [-length, 0, 0]]
  inputs["query"][0, :, :, 0] /= length
  inputs["key"][0, :, :, 0] /= length
  signs = np.random.default_rng(0).choice([-1.0, 1.0], 70)
  inputs["query"][1, :, 0, 0] = signs[:30] * row_range / (2 * length)
  inputs["key"][1, :, 0, 0] = signs[30:] * column_range / (2 * length)
  inputs["query"][..., 0] += 0.1 / length  # a fifth of a nat between components that would tie
  inputs = {name: problem.rounded(x, dtype) for name, x in inputs.items()}
  return point._replace(inputs=inputs | {"variance": np.float64(1.0)})


@both_implementations
@pytest.mark.parametrize("estep", ["soft", "hard"])
@pytest.mark.parametrize(
  "ranges", [(200, 200), (59, 59), (61, 61), (90, 90), (120, 120), (200, 50), (50, 200), (2000, 2000)], ids=str
)
def test_components_that_disagree_in_opposite_directions(ranges, estep, implementation):
  """Scores of up to 4·R nats in float32 are off by 4·R·6e-8 nats; hence the tolerance."""
  point = opposed(*ranges, estep=estep, dtype="float32")
  problem.check(point, implementation, tolerance=max(1e-5, 1e-6 * max(ranges)))


@both_implementations
@pytest.mark.parametrize("estep", ["soft", "hard"])
def test_masked_keys_may_be_beyond_the_safe_range(estep, implementation):
  """The others are within it: the factored form must not divide by what underflows at a masked one."""
  point = opposed(200, 50, estep=estep, dtype="float32")
  key = point.inputs["key"].copy()
  key[1, :20, 0, 0] *= 4
  point = point._replace(inputs=point.inputs | {"key": key}, options=point.options | {"mask": np.arange(40) >= 20})
  problem.check(point, implementation, tolerance=2e-4)


@both_implementations
def test_components_that_disagree_in_opposite_directions_in_float64(implementation):
  """exp(−800) underflows in float64 too."""
  problem.check(opposed(800, 800, estep="soft", dtype="float64"), implementation)


@both_implementations
@mixtures
@pytest.mark.parametrize("options", [{"prior": "head"}, {"prior": "position", "is_causal": True}], ids=str)
def test_a_prior_of_zero_in_one_component(kind, options, implementation):
  """The component plays no part: the other gets all, and there is no gradient through log 0."""
  point = problem.make(case_of(kind, **options))
  log_prior = point.inputs["log_prior"].copy()
  log_prior[..., 1, 0] = -np.inf
  point = point._replace(inputs=point.inputs | {"log_prior": log_prior})
  _, gradients = problem.check(point, implementation)
  assert np.all(gradients["log_prior"][..., 1, 0] == 0)
  if kind == "mgk":
    assert np.all(gradients["key"][:, :, 1, 0] == 0)


@both_implementations
@mixtures
def test_a_prior_of_zero_in_every_component_of_a_key(kind, implementation):
  """Such a key is not attended, as if masked; a query that sees no other key returns zeros without gradients."""
  point = problem.make(case_of(kind, prior="position", is_causal=True))
  log_prior = point.inputs["log_prior"].copy()
  log_prior[:3, 0], log_prior[11:14, 1] = -np.inf, -np.inf
  point = point._replace(inputs=point.inputs | {"log_prior": log_prior})
  output, gradients = problem.check(point, implementation)
  assert np.all(output[:, :3, 0] == 0) and np.all(output[:, 3:] != 0)
  assert np.all(gradients["query"][:, :3, 0] == 0)
  assert np.all(gradients["key"][:, 11:14, 1] == 0) and np.all(gradients["value"][:, 11:14, 1] == 0)


@both_implementations
def test_a_prior_of_zero_given_by_its_logarithm_inside_the_differentiated_function(implementation):
  """π itself is the parameter: its gradient is finite wherever π > 0."""
  point = problem.make(Case(kind="mgk", T=9, S=20, N=1))
  query, key, value = (point.inputs[name].astype(np.float32) for name in ("query", "key", "value"))

  def loss(prior):
    out = mgk_jax.mixture_attention(query, key, value, log_prior=jax.numpy.log(prior), implementation=implementation)
    return jax.numpy.sum(out * point.cotangent.astype(np.float32))

  gradient = jax.jit(jax.grad(loss))(np.array([[0.0, 1.0]], np.float32))
  assert np.isfinite(gradient[0, 1])


@both_implementations
@mixtures
def test_numbers_past_the_lengths_do_not_matter(kind, implementation):
  """Far beyond any safe range, they neither reach the result nor change how the rest is computed."""
  point = problem.make(case_of(kind, lengths="both", B=3))
  poisoned = {name: point.inputs[name].copy() for name in ("query", "key", "value")}
  for b in range(3):
    poisoned["query"][b, point.options["query_seq_lengths"][b] :] = 1e4
    for name in ("key", "value"):
      poisoned[name][b, point.options["key_value_seq_lengths"][b] :] = -1e4
  output, gradients = problem.run(point._replace(inputs=point.inputs | poisoned), implementation)
  expected = point.define()
  magnitudes = expected.magnitudes(point.cotangent)
  problem.assert_close("output", output, expected.output, magnitudes["output"], 1e-5)
  for name, gradient in expected.gradients(point.cotangent).items():
    if name in gradients:
      problem.assert_close(f"gradient of {name}", gradients[name], gradient, magnitudes[name], 1e-5)
