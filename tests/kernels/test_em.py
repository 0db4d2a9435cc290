"""The M step: priors and variances against the definition, their likelihood and their memory."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from tests.kernels import definition, problem
from tests.kernels.problem import Case

both_implementations = pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)

# The second is longer than a block.
CASES = [
  Case(kind="mgk", T=30, S=41, M=3, prior="position", variance="component", mask="BNTS", lengths="both", B=3),
  Case(kind="mgk", T=300, S=530, N=1, H=3, prior="head", is_causal=True, dtype="float64", lengths="key", B=3),
  Case(kind="mgk", T=41, S=30, M=3, estep="hard", prior="position", mask="TS", variance="scalar"),
  Case(kind="smgk", T=30, S=41, M=2, prior="position", is_causal=True, lengths="query"),
  Case(kind="smgk", T=41, S=30, M=3, estep="hard", prior="head", lengths="both", mask="NT"),
  Case(kind="smgk", T=30, S=41, M=3, prior="head", variance="component", dtype="float64", mask="BS"),
  Case(kind="mgk", T=30, S=41, M=1, dtype="bfloat16", lengths="both"),
]


def em_step(inputs, options, implementation):
  """(π, σ²) after one M step."""
  arrays = {name: x for name, x in inputs.items() if name in ("shift", "log_prior", "variance")}
  arrays.setdefault("log_prior", None)
  arguments = {**arrays, **options, "implementation": implementation}
  query, key = inputs["query"], inputs["key"]
  return mgk_jax.em_prior(query, key, **arguments), mgk_jax.em_variance(query, key, **arguments)


@both_implementations
@pytest.mark.parametrize("case", CASES, ids=str)
def test_prior_and_variance(case, implementation):
  point = problem.make(case, seed=1)
  with jax.enable_x64(case.dtype == "float64"):
    inputs = problem.device_inputs(point)
    prior, variance = jax.jit(lambda inputs: em_step(inputs, point.options, implementation))(inputs)
    assert prior.shape == (case.S, case.N, case.M) and variance.shape == (case.M,)
    assert prior.dtype == variance.dtype == jnp.promote_types(case.dtype, jnp.float32)
  expected = point.define()
  # Inputs are exact and all sums are in float32 at least, in bfloat16 too.
  tolerance = 1e-10 if case.dtype == "float64" else 1e-5
  np.testing.assert_allclose(prior, expected.em_prior(), atol=tolerance)
  np.testing.assert_allclose(np.sum(np.asarray(prior), -1), 1, atol=tolerance)
  np.testing.assert_allclose(variance, expected.em_variance(), rtol=tolerance)
  if case.prior != "none" and case.estep == "soft":
    assert np.max(np.abs(expected.em_prior() - np.exp(expected.log_prior))) > 0.01


@both_implementations
def test_keys_without_queries_keep_their_prior(implementation):
  point = problem.make(Case(kind="mgk", prior="position", T=9, S=12))
  options = point.options | {"key_value_seq_lengths": np.array([5, 8])}
  prior, _ = em_step(problem.device_inputs(point), options, implementation)
  present = np.exp(point.inputs["log_prior"])
  present /= present.sum(-1, keepdims=True)
  np.testing.assert_allclose(prior[8:], present[8:], atol=1e-6)
  assert np.all(np.max(np.abs(prior[:8] - present[:8]), (1, 2)) > 1e-3)


@both_implementations
@pytest.mark.parametrize("off", [[0], [1], [2], [1, 2]], ids=str)
def test_a_component_without_queries_keeps_its_variance_and_a_prior_of_zero(off, implementation):
  """Components that are switched off, first or last, alone or together; the others move as if there were no such."""
  point = problem.make(Case(kind="mgk", M=3, prior="head", T=9, S=12, variance="component"))
  log_prior = point.inputs["log_prior"].copy()
  log_prior[:, off] = -np.inf
  point = point._replace(inputs=point.inputs | {"log_prior": log_prior})
  prior, variance = em_step(problem.device_inputs(point), point.options, implementation)
  assert np.all(prior[..., off] == 0)
  np.testing.assert_allclose(prior, point.define().em_prior(), atol=1e-5)
  np.testing.assert_allclose(variance[np.array(off)], point.inputs["variance"][off], rtol=1e-6)
  others = [r for r in range(3) if r not in off]
  np.testing.assert_allclose(variance[np.array(others)], point.define().em_variance()[others], rtol=1e-5)
  assert np.all(np.abs(variance - point.inputs["variance"])[np.array(others)] > 1e-3)


@both_implementations
def test_no_queries_at_all(implementation):
  """An empty batch of padding moves nothing."""
  point = problem.make(Case(kind="mgk", prior="position", T=9, S=12, variance="component"))
  options = point.options | {"query_seq_lengths": np.array([0, 0])}
  prior, variance = em_step(problem.device_inputs(point), options, implementation)
  np.testing.assert_allclose(prior, jax.nn.softmax(point.inputs["log_prior"], -1), atol=1e-6)
  np.testing.assert_allclose(variance, point.inputs["variance"], rtol=1e-6)


def log_likelihood(point: definition.Attention) -> np.ndarray:
  """Σ_bi log Σ_r π_jr N(q_i; k_jr, σ_r²) of each key j, [S, N], over the queries that may attend to it."""
  density = point.scores - point.query.shape[-1] / 2 * np.log(point.variance)
  density = np.where(point.allowed, np.logaddexp.reduce(density, -1), 0)
  return density.sum((0, 2)).T


@both_implementations
@pytest.mark.parametrize("kind", ["mgk", "smgk"])
def test_the_likelihood_does_not_decrease(kind, implementation):
  """Of any key under steps of the prior; of all together under a step of the variances too.

  The posterior leaves out the Gaussians' normalisers, which cancel while the variances are equal: the guarantee for
  the variances is that of the step from a common one.
  """
  point = problem.make(Case(kind=kind, T=60, S=12, M=3, prior="position", mask="TS", dtype="float64"))
  normalised = point.inputs["log_prior"] - np.logaddexp.reduce(point.inputs["log_prior"], -1, keepdims=True)
  point = point._replace(inputs=point.inputs | {"log_prior": normalised, "variance": np.full(3, 2.0)})
  with jax.enable_x64(True):
    step = jax.jit(lambda inputs: em_step(inputs, point.options, implementation))
    before = log_likelihood(point.define())
    for i in range(5):
      prior, variance = step(problem.device_inputs(point))
      moved = point._replace(inputs=point.inputs | {"log_prior": np.log(np.asarray(prior))})
      after = log_likelihood(moved.define())
      assert np.all(after >= before - 1e-9), i
      assert np.sum(after) > np.sum(before) + 1e-3
      with_variance = moved._replace(inputs=moved.inputs | {"variance": np.asarray(variance)})
      assert np.sum(log_likelihood(with_variance.define())) > np.sum(after)
      point, before = moved, after


@pytest.mark.parametrize("kind", ["mgk", "smgk"])
@pytest.mark.parametrize("function", [mgk_jax.em_prior, mgk_jax.em_variance])
def test_memory(function, kind):
  """One T × S × M array would be 128 MiB for each of two heads."""
  N, length, M, H = 2, 4096, 2, 32

  def struct(*shape):
    return jax.ShapeDtypeStruct(shape, jnp.float32)

  key = struct(1, length, N, M, H) if kind == "mgk" else struct(1, length, N, H)
  shift = None if kind == "mgk" else struct(N, M, H)

  def step(query, key, shift, log_prior):
    return function(query, key, shift=shift, log_prior=log_prior, implementation="xla")

  compiled = jax.jit(step).lower(struct(1, length, N, H), key, shift, struct(length, N, M)).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < 32 * 2**20


@both_implementations
def test_nothing_is_differentiated(implementation):
  """The E and the M step are updates, not parts of the loss."""
  point = problem.make(Case(kind="smgk", prior="position", variance="component", T=9, S=12))

  def total(inputs):
    prior, variance = em_step(inputs, point.options, implementation)
    return jnp.sum(prior[..., 0]) + jnp.sum(variance)

  inputs = problem.device_inputs(point)
  inputs.pop("value")
  for name, gradient in jax.jit(jax.grad(total))(inputs).items():
    assert np.all(gradient == 0), name


@both_implementations
def test_vmap(implementation):
  """Each entry of the new axis has its own priors."""
  points = [problem.make(Case(kind="mgk", prior="position", T=9, S=12), seed=seed) for seed in range(3)]
  stacked = jax.tree.map(lambda *x: jnp.stack(x), *map(problem.device_inputs, points))
  priors, variances = jax.jit(jax.vmap(lambda inputs: em_step(inputs, {}, implementation)))(stacked)
  for point, prior, variance in zip(points, priors, variances, strict=True):
    np.testing.assert_allclose(prior, point.define().em_prior(), atol=1e-5)
    np.testing.assert_allclose(variance, point.define().em_variance(), rtol=1e-5)
