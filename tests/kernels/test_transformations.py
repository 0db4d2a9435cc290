"""jit, vmap, grad, checkpoint, second derivatives and sharding."""

import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from mgk_jax.kernels import blocks
from tests.kernels import problem
from tests.kernels.problem import Case

both_implementations = pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)
all_kinds = pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
TOLERANCE = problem.TOLERANCE["float32"]
PROJECT = pathlib.Path(__file__).parents[2]


def case_of(kind: str, **changes) -> Case:
  if kind == "softmax":
    return Case(kind=kind, M=1, T=9, S=12, **changes)
  return Case(kind=kind, T=9, S=12, prior="head", variance="component" if kind == "mgk" else "scalar", **changes)


def loss(kind, implementation, cotangent, **options):
  attention = problem.function(kind, implementation=implementation, **options)
  return lambda inputs: jnp.sum(attention(inputs) * cotangent)


def stack(trees):
  return jax.tree.map(lambda *x: jnp.stack(x), *trees)


def assert_is_definition(point, output=None, gradients=None):
  expected = point.define()
  magnitudes, expected_gradients = expected.magnitudes(point.cotangent), expected.gradients(point.cotangent)
  if output is not None:
    problem.assert_close("output", np.asarray(output), expected.output, magnitudes["output"], TOLERANCE)
  for name, gradient in (gradients or {}).items():
    problem.assert_close(name, np.asarray(gradient), expected_gradients[name], magnitudes[name], TOLERANCE)


@both_implementations
def test_without_jit(implementation):
  kind = "smgk"
  point = problem.make(case_of(kind, lengths="both"))
  output = problem.function(kind, implementation=implementation, **point.options)(problem.device_inputs(point))
  assert_is_definition(point, output)


@all_kinds
def test_without_jit_loops_are_traced_once(kind, monkeypatch):
  """As tracing them takes a thousand times as long as a small attention; and once for each platform."""
  traced = []
  map_heads = blocks.map_heads
  monkeypatch.setattr(blocks, "map_heads", lambda *arguments: traced.append(kind) or map_heads(*arguments))
  changes = {"M": 1} if kind == "softmax" else {"prior": "head"}
  point = problem.make(Case(kind=kind, T=11, S=13, **changes))
  gradient = jax.grad(loss(kind, "xla", point.cotangent))
  for _ in range(3):
    assert_is_definition(point, gradients=gradient(problem.device_inputs(point)))
  assert len(traced) == 2  # forwards and backwards
  with mgk_jax.compiling_for("tpu"):
    assert_is_definition(point, gradients=gradient(problem.device_inputs(point)))
  assert len(traced) == 4


@both_implementations
@all_kinds
def test_vmap_and_vmap_of_grad_over_everything(kind, implementation):
  """Lengths and random keys differ between the entries too."""
  points = [problem.make(case_of(kind, lengths="both", dropout_rate=0.2), seed) for seed in range(3)]
  lengths = [{k: (x + seed) % 10 for k, x in points[seed].options.items() if "lengths" in k} for seed in range(3)]
  keys = jax.random.split(jax.random.key(0), 3)  # of a kind whose bits are the same under vmap
  new = [lengths[seed] | {"dropout_rng": keys[seed]} for seed in range(3)]
  points = [point._replace(options=point.options | changes) for point, changes in zip(points, new, strict=True)]

  def value_and_gradients(inputs, cotangent, traced):
    attention = problem.function(kind, implementation=implementation, dropout_rate=0.2, **traced)
    return attention(inputs), jax.grad(lambda inputs: jnp.sum(attention(inputs) * cotangent))(inputs)

  cotangents = jnp.stack([point.cotangent for point in points])
  arguments = stack(map(problem.device_inputs, points)), cotangents, stack(new)
  outputs, gradients = jax.jit(jax.vmap(value_and_gradients))(*arguments)
  for i, point in enumerate(points):
    assert_is_definition(point, outputs[i], {name: x[i] for name, x in gradients.items()})


@both_implementations
@pytest.mark.parametrize("kind", ["mgk", "smgk"])
def test_vmap_over_queries_only(kind, implementation):
  """Gradients of what is not batched add up when taken outside, and are apart when taken inside."""
  points = [problem.make(case_of(kind), seed) for seed in range(3)]
  points = [p._replace(inputs=points[0].inputs | {"query": p.inputs["query"]}) for p in points]
  shared = problem.device_inputs(points[0])
  queries = jnp.stack([jnp.asarray(p.inputs["query"], jnp.float32) for p in points])
  cotangents = jnp.stack([p.cotangent for p in points])

  def of_one(query, cotangent, shared):
    return loss(kind, implementation, cotangent)(shared | {"query": query})

  @jax.jit
  def gradients(queries, cotangents, shared):
    apart = jax.vmap(jax.grad(of_one, argnums=2), (0, 0, None))(queries, cotangents, shared)
    together = jax.grad(lambda shared: jnp.sum(jax.vmap(of_one, (0, 0, None))(queries, cotangents, shared)))(shared)
    return apart, together

  apart, together = gradients(queries, cotangents, shared)
  for i, point in enumerate(points):
    assert_is_definition(point, gradients={name: x[i] for name, x in apart.items() if name != "query"})
  for name, x in together.items():
    if name != "query":
      np.testing.assert_allclose(x, apart[name].sum(0), atol=1e-5 * max(1, np.max(np.abs(x))), err_msg=name)


@both_implementations
def test_nested_vmap(implementation):
  """Priors over the inner axis, all else over the outer one."""
  points = [problem.make(case_of("smgk"), seed) for seed in range(2)]
  priors = np.random.default_rng(0).standard_normal((3, 2, 2)).astype(np.float32)
  inputs = stack(map(problem.device_inputs, points))

  def attention(inputs, prior):
    return problem.function("smgk", implementation=implementation)(inputs | {"log_prior": prior})

  outputs = jax.jit(jax.vmap(jax.vmap(attention, (None, 0)), (0, None)))(inputs, priors)
  for i, point in enumerate(points):
    for j, prior in enumerate(priors):
      assert_is_definition(point._replace(inputs=point.inputs | {"log_prior": prior}), outputs[i, j])


@both_implementations
@pytest.mark.parametrize("kind", ["mgk", "smgk"])
def test_checkpoint(kind, implementation):
  """Rematerialised, in a scan as a Transformer has it."""
  point = problem.make(case_of(kind))

  @jax.jit
  def gradients(inputs):
    attention = jax.checkpoint(problem.function(kind, implementation=implementation))

    def total(inputs):
      def layer(carry, _):
        return carry + jnp.sum(attention(inputs) * point.cotangent) / 2, None

      return jax.lax.scan(layer, 0.0, length=2)[0]

    return jax.grad(total)(inputs)

  assert_is_definition(point, gradients=gradients(problem.device_inputs(point)))


@pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
def test_second_derivatives_of_the_reference(kind):
  """The Hessian, forward over reverse and reverse over reverse, against differences of the hand-derived gradient."""
  point = problem.make(case_of(kind, B=1, N=1, H=2, V=2, dtype="float64"))
  shapes = {name: x.shape for name, x in point.inputs.items()}
  direction = {name: np.random.default_rng(1).standard_normal(shape) for name, shape in shapes.items()}
  gradient_at = {}
  step = 1e-5
  for sign in (1, -1):
    moved = {name: x + sign * step * direction[name] for name, x in point.inputs.items()}
    gradient_at[sign] = point._replace(inputs=moved).define().gradients(point.cotangent)

  with jax.enable_x64(True):
    gradient = jax.grad(loss(kind, "reference", point.cotangent))

    def along(inputs):
      products = jax.tree.map(lambda g, d: jnp.sum(g * d), gradient(inputs), direction)
      return sum(jax.tree.leaves(products))

    inputs = problem.device_inputs(point)
    _, forward = jax.jit(lambda inputs: jax.jvp(gradient, (inputs,), (direction,)))(inputs)
    reverse = jax.jit(jax.grad(along))(inputs)
  for name in shapes:
    numerical = (gradient_at[1][name] - gradient_at[-1][name]) / (2 * step)
    for got in (forward[name], reverse[name]):
      np.testing.assert_allclose(got, numerical, rtol=1e-5, atol=1e-7 * (1 + np.max(np.abs(numerical))), err_msg=name)


def test_hessian_of_the_reference():
  """jax.hessian as such; that of a smooth function is symmetric."""
  point = problem.make(case_of("mgk"))
  inputs = problem.device_inputs(point)

  def of_prior(log_prior):
    return loss("mgk", "reference", point.cotangent)(inputs | {"log_prior": log_prior})

  hessian = np.asarray(jax.jit(jax.hessian(of_prior))(inputs["log_prior"])).reshape(4, 4)
  assert np.all(np.isfinite(hessian)) and np.max(np.abs(hessian)) > 1e-3
  np.testing.assert_allclose(hessian, hessian.T, atol=1e-4)


@pytest.mark.parametrize(
  ("implementation", "axis_type"),
  [
    ("xla", "auto"),
    pytest.param("xla", "explicit", marks=pytest.mark.slow),
    pytest.param("reference", "auto", marks=pytest.mark.slow),
    pytest.param("reference", "explicit", marks=pytest.mark.slow),
  ],
)
def test_sharding(implementation, axis_type):
  """Batch and heads over eight devices: equal results, shardings that propagate, no gathering, also under shard_map."""
  environment = os.environ | {"XLA_FLAGS": "--xla_force_host_platform_device_count=8", "JAX_PLATFORMS": "cpu"}
  command = [sys.executable, "-W", "error", "-m", "tests.kernels.sharded_attention", implementation, axis_type]
  result = subprocess.run(
    command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=300, check=False
  )  # fmt: skip
  assert result.returncode == 0, result.stderr[-3000:]
  assert result.stdout.strip() == "all equal"
