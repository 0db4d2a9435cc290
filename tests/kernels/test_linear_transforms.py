"""Linear attention under JAX's transformations, its memory, and its sharding."""

import functools
import os
import pathlib
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import linear
from tests.kernels import linear_problem
from tests.kernels.linear_problem import Case
from tests.kernels.problem import assert_close

POINTS = {
  "causal": linear_problem.make(Case(size=(66, 66), prior="position", is_causal=True, lengths="both")),
  "all keys": linear_problem.make(Case(size=(33, 40), prior="position", lengths="both")),
}


@pytest.mark.parametrize(
  ("form", "implementation"), [*(("causal", name) for name in linear_problem.IMPLEMENTATIONS), ("all keys", "xla")]
)
def test_vmap_grad_and_checkpoint(form, implementation):
  point = POINTS[form]
  inputs = linear_problem.device_inputs(point)
  cotangent = jnp.asarray(point.cotangent, jnp.float32)
  definition = point.define()
  expected, magnitudes = definition.gradients(point.cotangent), definition.magnitudes(point.cotangent)

  def loss(inputs):
    out = linear.mixture_linear_attention(**inputs, **point.options, implementation=implementation)
    return jnp.sum(out * cotangent), out

  both = jax.tree.map(lambda x: jnp.stack([x, 0.5 * x]), inputs)
  mapped, outputs = jax.jit(jax.vmap(jax.grad(jax.checkpoint(loss), has_aux=True)))(both)
  assert_close("output", outputs[0], definition.output, magnitudes["output"], linear_problem.TOLERANCE["float32"])
  for name in inputs:
    assert_close(name, mapped[name][0], expected[name], magnitudes[name], linear_problem.TOLERANCE["float32"])
    assert np.any(np.abs(mapped[name][1] - expected[name]) > 1e-2 * np.max(magnitudes[name])), name


@pytest.mark.parametrize("prior", ["position", "head"])
def test_reference_has_second_derivatives(prior):
  """Forward over reverse, against differences of the definition's hand-derived gradients."""
  point = linear_problem.make(Case(size=(5, 6), prior=prior, dtype="float64", mask="TS"), seed=2)
  rng = np.random.default_rng(1)
  direction = {name: rng.standard_normal(x.shape) for name, x in point.inputs.items()}

  def gradients(step):
    moved = {name: x + step * direction[name] for name, x in point.inputs.items()}
    return point._replace(inputs=moved).define().gradients(point.cotangent)

  with jax.enable_x64(True):
    inputs = linear_problem.device_inputs(point)

    def loss(inputs):
      out = linear.mixture_linear_attention(**inputs, mask=point.options["mask"], implementation="reference")
      return jnp.sum(out * point.cotangent)

    _, tangent = jax.jit(lambda x, d: jax.jvp(jax.grad(loss), (x,), (d,)))(
      inputs, {name: jnp.asarray(x) for name, x in direction.items()}
    )
  above, below = gradients(1e-5), gradients(-1e-5)
  for name in inputs:
    expected = (above[name] - below[name]) / 2e-5
    np.testing.assert_allclose(tangent[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)


def temporary_bytes(T):
  N, M, H = 2, 2, 32
  shapes = [(1, T, N, H), (1, T, N, M, H), (1, T, N, H), (T, N, M)]
  inputs = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]

  def gradients(query, key, value, log_prior, cotangent):
    call = functools.partial(linear.mixture_linear_attention, is_causal=True, implementation="xla")
    out, pull_back = jax.vjp(lambda q, k, v, p: call(q, k, v, log_prior=p), query, key, value, log_prior)
    return out, pull_back(cotangent)

  compiled = jax.jit(gradients).lower(*inputs, inputs[2]).compile()
  return compiled.memory_analysis().temp_size_in_bytes, 4 * sum(np.prod(shape) for shape in shapes)


def test_causal_memory_is_linear():
  """Forward and backward: the features and little else. One T×S matrix alone would be 256 MiB for each head."""
  long, inputs = temporary_bytes(8192)
  longer, _ = temporary_bytes(16384)
  assert long < 3 * inputs
  assert longer <= 2.05 * long


SHARDED = """
import re

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

from mgk_jax.kernels import linear

rng = np.random.default_rng(0)
shapes = (4, 70, 4, 4), (4, 70, 4, 2, 4), (4, 70, 4, 3), (70, 4, 2)
arrays = [jnp.asarray(rng.standard_normal(shape), jnp.float32) for shape in shapes]
specs = [P("data", None, "model")] * 3 + [P(None, "model")]


def gradients(is_causal):
  def loss(query, key, value, log_prior):
    out = linear.mixture_linear_attention(
      query, key, value, log_prior=log_prior, is_causal=is_causal, implementation="xla"
    )
    return jnp.sum(out**2), out

  return jax.jit(jax.grad(loss, (0, 1, 2), has_aux=True))


for is_causal, axis_type in ((True, AxisType.Auto), (True, AxisType.Explicit), (False, AxisType.Auto)):
  expected = gradients(is_causal)(*arrays)
  mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(axis_type,) * 2)
  with jax.set_mesh(mesh):
    sharded = [jax.device_put(x, NamedSharding(mesh, spec)) for x, spec in zip(arrays, specs, strict=True)]
    compiled = gradients(is_causal).lower(*sharded).compile()
    got = compiled(*sharded)
  for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(expected), strict=True):
    assert a.sharding.is_equivalent_to(NamedSharding(mesh, specs[0]), a.ndim), a.sharding
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4)
  names = "all-gather|all-reduce|all-to-all|collective-permute|reduce-scatter"
  assert not re.findall(names, compiled.as_text()), (is_causal, axis_type)

with jax.set_mesh(jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)):
  # Each device has keys of its own, and all of an axis the same values.
  query, key, value, _ = arrays
  shared = P(None, None, "model")
  attention = lambda query, key, value: linear.mixture_linear_attention(query, key, value, implementation="xla")
  mapped = jax.shard_map(attention, in_specs=(specs[0], specs[1], shared), out_specs=specs[0])
  by_value = jax.jit(jax.grad(lambda value: jnp.sum(mapped(query, key, value) ** 2)))(value[:1])
repeated = lambda value: jnp.broadcast_to(value, (4, *value.shape[1:]))
expected = jax.jit(jax.grad(lambda value: jnp.sum(attention(query, key, repeated(value)) ** 2)))(value[:1])
np.testing.assert_allclose(by_value, expected, rtol=1e-4, atol=1e-4)
print("four forms")
"""


def test_sharding_over_batch_and_heads_needs_no_communication():
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
  root = pathlib.Path(__file__).parents[2]
  command = [sys.executable, "-c", SHARDED]
  result = subprocess.run(command, env=environment, cwd=root, capture_output=True, text=True, timeout=300)
  assert result.returncode == 0 and "four forms" in result.stdout, result.stderr[-3000:]
