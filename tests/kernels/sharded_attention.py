"""A program for eight devices: attention with the batch and the heads sharded, compared with the unsharded result.

Run by test_transformations in a process of its own, because the number of devices is fixed when JAX starts:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.kernels.sharded_attention xla explicit
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import mgk_jax
from tests.kernels import problem
from tests.kernels.problem import Case

SPECS = {
  "query": P("data", None, "model"), "key": P("data", None, "model"), "value": P("data", None, "model"),
  "shift": P("model"), "log_prior": P("model"), "variance": P(), "mask": P("data"),
  "query_seq_lengths": P("data"), "key_value_seq_lengths": P("data"), "dropout_rng": P(),
}  # fmt: skip
SIZES = {"B": 4, "N": 4, "T": 20, "S": 24}
CASES = [
  Case(kind="mgk", prior="head", variance="component", is_causal=True, **SIZES),
  Case(kind="smgk", prior="head", variance="scalar", mask="BTS", **SIZES),
  Case(kind="softmax", M=1, dropout_rate=0.2, **SIZES),
]


def assert_definition(name: str, point: problem.Problem, output: jax.Array, gradients: dict[str, jax.Array]) -> None:
  expected = point.define()
  magnitudes, expected_gradients = expected.magnitudes(point.cotangent), expected.gradients(point.cotangent)
  problem.assert_close(f"{name} output", np.asarray(output), expected.output, magnitudes["output"], 1e-5)
  for key, gradient in gradients.items():
    problem.assert_close(f"{name} {key}", np.asarray(gradient), expected_gradients[key], magnitudes[key], 1e-5)


def check(case: Case, implementation: str, mesh: jax.sharding.Mesh) -> None:
  point = problem.make(case)
  lengths = {"query_seq_lengths": np.array([20, 9, 0, 20]), "key_value_seq_lengths": np.array([24, 3, 24, 11])}
  point = point._replace(options=point.options | lengths)
  static = {k: x for k, x in point.options.items() if k not in SPECS}
  traced = {k: x for k, x in point.options.items() if k in SPECS}
  cotangent = jnp.asarray(point.cotangent, jnp.float32)

  def forward(inputs, traced):
    return problem.function(case.kind, **traced, **static, implementation=implementation)(inputs)

  def loss(inputs, traced, cotangent):
    output = forward(inputs, traced)
    return jnp.sum(output * cotangent), output

  def put(arrays):
    return {k: jax.device_put(x, NamedSharding(mesh, SPECS[k])) for k, x in arrays.items()}

  inputs, traced = put(problem.device_inputs(point)), put(traced)
  cotangent = jax.device_put(cotangent, NamedSharding(mesh, SPECS["value"]))
  with jax.set_mesh(mesh):
    gradients, output = jax.jit(jax.grad(loss, has_aux=True))(inputs, traced, cotangent)
    text = jax.jit(forward).lower(inputs, traced).compile().as_text()
  for collective in ("all-gather", "all-to-all", "collective-permute"):
    assert collective not in text, f"{case}: the forward pass has an {collective}"
  for name, x, spec in [("output", output, SPECS["value"]), *((k, g, SPECS[k]) for k, g in gradients.items())]:
    expected = NamedSharding(mesh, spec)
    assert x.sharding.is_equivalent_to(expected, x.ndim), f"{case} {name}: expected {spec}, got {x.sharding}"

  assert_definition(str(case), point, output, gradients)


def check_shard_map(implementation: str, mesh: jax.sharding.Mesh) -> None:
  """Inside shard_map every device attends within its own examples and heads."""
  point = problem.make(Case(kind="smgk", prior="head", **SIZES))
  names = list(point.inputs)
  specs = {name: SPECS[name] for name in names}

  @jax.shard_map(mesh=mesh, in_specs=(specs, SPECS["query_seq_lengths"]), out_specs=SPECS["value"])
  def attention(inputs, lengths):
    options = {"key_value_seq_lengths": lengths, "is_causal": True, "implementation": implementation}
    return problem.function("smgk", **options)(inputs)

  def loss(inputs, lengths, cotangent):
    output = attention(inputs, lengths)
    return jnp.sum(output * cotangent), output

  lengths = np.array([24, 3, 0, 11])
  inputs = {k: jax.device_put(x, NamedSharding(mesh, SPECS[k])) for k, x in problem.device_inputs(point).items()}
  on_device = jax.device_put(lengths.astype(np.int32), NamedSharding(mesh, P("data")))
  cotangent = jax.device_put(point.cotangent.astype(np.float32), NamedSharding(mesh, SPECS["value"]))
  with jax.set_mesh(mesh):
    gradients, output = jax.jit(jax.grad(loss, has_aux=True))(inputs, on_device, cotangent)
  point = point._replace(options=point.options | {"key_value_seq_lengths": lengths, "is_causal": True})
  assert_definition("shard_map", point, output, gradients)


def check_em(implementation: str, mesh: jax.sharding.Mesh) -> None:
  """The M step averages over the global batch."""
  point = problem.make(Case(kind="mgk", prior="head", **SIZES))
  inputs = {k: jax.device_put(x, NamedSharding(mesh, SPECS[k])) for k, x in problem.device_inputs(point).items()}

  @jax.jit
  def step(inputs):
    arguments = {"log_prior": inputs["log_prior"], "implementation": implementation}
    query, key = inputs["query"], inputs["key"]
    return mgk_jax.em_prior(query, key, **arguments), mgk_jax.em_variance(query, key, **arguments)

  with jax.set_mesh(mesh):
    prior, variance = step(inputs)
  np.testing.assert_allclose(prior, point.define().em_prior(), atol=1e-5)
  np.testing.assert_allclose(variance, point.define().em_variance(), rtol=1e-5)


def main(implementation: str, axis_type: str) -> None:
  assert jax.device_count() == 8, jax.devices()
  types = {"auto": AxisType.Auto, "explicit": AxisType.Explicit}[axis_type]
  mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(types, types))
  for case in CASES:
    check(case, implementation, mesh)
  check_shard_map(implementation, mesh)
  check_em(implementation, mesh)
  print("all equal")


if __name__ == "__main__":
  main(*sys.argv[1:])
