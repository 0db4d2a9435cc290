"""What must not change the result, and the special cases that other libraries compute."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from tests.kernels import problem
from tests.kernels.problem import Case

both_implementations = pytest.mark.parametrize(
  "implementation", [pytest.param("reference", marks=pytest.mark.slow), "xla"]
)
all_kinds = pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
mixtures = pytest.mark.parametrize("kind", ["mgk", "smgk"])
both_esteps = pytest.mark.parametrize("estep", ["soft", "hard"])

TOLERANCE = problem.TOLERANCE["float32"]


def mixture(kind: str, estep: str = "soft") -> problem.Problem:
  """The same shapes in many tests, so that they share what is compiled."""
  return problem.make(Case(kind=kind, estep=estep, T=30, S=20, M=3, prior="head", variance="component"))


def component_axes(kind: str) -> dict[str, int]:
  """Where each array has its components."""
  return {"log_prior": 1, "variance": 0} | ({"key": 3} if kind == "mgk" else {"shift": 1})


def assert_same(one, other, tolerance=TOLERANCE):
  output, gradients = one
  other_output, other_gradients = other
  np.testing.assert_allclose(output, other_output, atol=tolerance)
  assert set(gradients) == set(other_gradients)
  for name, gradient in gradients.items():
    atol = tolerance * max(1.0, np.max(np.abs(gradient)))
    np.testing.assert_allclose(gradient, other_gradients[name], atol=atol, err_msg=name)


@both_implementations
@both_esteps
@mixtures
def test_permuting_the_components(kind, estep, implementation):
  point = mixture(kind, estep)

  def permute(inputs):
    axes = component_axes(kind)
    return {name: np.take(x, [2, 0, 1], axes[name]) if name in axes else x for name, x in inputs.items()}

  output, gradients = problem.run(point, implementation)
  permuted = problem.run(point._replace(inputs=permute(point.inputs)), implementation)
  assert_same((output, permute(gradients)), permuted)


@both_implementations
@both_esteps
@mixtures
def test_identical_components_are_one(kind, estep, implementation):
  """Soft or hard, M copies of one component are that component, and each copy gets 1/M of its gradient."""
  point, axes = mixture(kind, estep), component_axes(kind)
  one = {name: np.take(x, [0], axes[name]) if name in axes else x for name, x in point.inputs.items()}
  copies = {name: np.repeat(x, 3, axes[name]) if name in axes else x for name, x in one.items()}
  output, gradients = problem.run(point._replace(inputs=copies), implementation)
  for name, axis in axes.items():
    first = np.take(gradients[name], [0], axis)
    np.testing.assert_allclose(gradients[name], np.repeat(first, 3, axis), atol=10 * TOLERANCE, err_msg=name)
    gradients[name] = gradients[name].sum(axis, keepdims=True)
  single = point._replace(inputs=one)
  expected = single.define()
  assert_same((output, gradients), (expected.output, expected.gradients(single.cotangent)), 10 * TOLERANCE)


@both_implementations
@mixtures
def test_priors_need_not_be_normalised(kind, implementation):
  """A constant of each head, added to the logarithms of all its weights, cancels."""
  point = mixture(kind)
  moved = point.inputs["log_prior"] + np.array([30.0, -50.0])[:, None]
  other = problem.run(point._replace(inputs=point.inputs | {"log_prior": moved}), implementation)
  assert_same(problem.run(point, implementation), other, 5 * TOLERANCE)  # 50 nats cost some bits of the score


@both_implementations
@both_esteps
@mixtures
def test_moving_queries_and_keys_together(kind, estep, implementation):
  """Only differences count. The norms grow to some 100 nats, whose rounding is what differs."""
  point = mixture(kind, estep)
  moved = {name: point.inputs[name] + 4.0 for name in ("query", "key")}
  other = problem.run(point._replace(inputs=point.inputs | moved), implementation)
  assert_same(problem.run(point, implementation), other, 10 * TOLERANCE)


@both_implementations
@all_kinds
def test_padding_changes_nothing(kind, implementation):
  """Longer arrays with lengths give the same rows, whatever the numbers in the padding; padded rows are zero."""
  M = 1 if kind == "softmax" else 2
  small = problem.make(Case(kind=kind, M=M, T=30, S=20, prior="none" if kind == "softmax" else "position"))
  T, S = 300, 270
  inputs = dict(small.inputs)
  sizes = {"query": (1, 30, T), "key": (1, 20, S), "value": (1, 20, S), "log_prior": (0, 20, S)}
  for name, (axis, length, padded) in sizes.items():
    if name in inputs:
      shape = list(inputs[name].shape)
      shape[axis] = padded - length
      inputs[name] = np.concatenate([inputs[name], np.full(shape, 9.0)], axis)
  lengths = {"query_seq_lengths": np.array([30, 30]), "key_value_seq_lengths": np.array([20, 20])}
  cotangent = np.concatenate([small.cotangent, np.ones((2, T - 30, *small.cotangent.shape[2:]))], 1)
  large = problem.Problem(small.case, inputs, small.options | lengths, cotangent)

  output, gradients = problem.run(large, implementation)
  assert np.all(output[:, 30:] == 0)
  for name, (axis, length, padded) in sizes.items():
    if name in gradients:
      assert np.all(np.take(gradients[name], range(length, padded), axis) == 0), name
      gradients[name] = np.take(gradients[name], range(length), axis)
  expected = small.define()
  expected_gradients = {k: g for k, g in expected.gradients(small.cotangent).items() if k in gradients}
  assert_same((output[:, :30], gradients), (expected.output, expected_gradients))


@both_implementations
@both_esteps
def test_one_component_with_unit_keys_is_dot_product_attention(estep, implementation):
  """‖k_j‖ = 1 cancels in the posterior, which leaves softmax(q·k / σ²)."""
  point = problem.make(Case(kind="mgk", estep=estep, M=1, T=30, S=20, V=5))
  query, key, value = (point.inputs[name].astype(np.float32) for name in ("query", "key", "value"))
  key /= np.linalg.norm(key, axis=-1, keepdims=True)

  def ours(query, value):
    return mgk_jax.mixture_attention(query, key, value, variance=0.7, estep=estep, implementation=implementation)

  def theirs(query, value):
    return jax.nn.dot_product_attention(query, key[:, :, :, 0], value, scale=1 / 0.7)

  cotangent = point.cotangent.astype(np.float32)
  for a, b in zip(*(_value_and_pull_back(f, (query, value), cotangent) for f in (ours, theirs)), strict=True):
    np.testing.assert_allclose(a, b, atol=TOLERANCE)


@both_implementations
@pytest.mark.parametrize(
  "options",
  [{}, {"mask": "BNTS"}, {"is_causal": True}, {"lengths": "both"}, {"mask": "TS", "is_causal": True, "lengths": "key"}],
  ids=str,
)
def test_softmax_attention_is_dot_product_attention(options, implementation):
  point = problem.make(Case(kind="softmax", M=1, T=30, S=41, **options))
  keywords = dict(point.options)
  if "mask" in keywords:
    keywords["mask"] = np.broadcast_to(keywords["mask"], (2, 2, 30, 41)).copy()
  for name in ("query_seq_lengths", "key_value_seq_lengths"):
    if name in keywords:
      keywords[name] = jnp.asarray(keywords[name], jnp.int32)
  # jax.nn's function averages all values in rows without a key; ours returns zeros.
  alive = np.any(point.define().allowed, -1).transpose(0, 2, 1)
  cotangent = np.where(alive[..., None], point.cotangent, 0).astype(np.float32)
  arrays = tuple(point.inputs[name].astype(np.float32) for name in ("query", "key", "value"))

  ours = _value_and_pull_back(
    lambda *x: mgk_jax.softmax_attention(*x, **keywords, implementation=implementation), arrays, cotangent
  )
  theirs = _value_and_pull_back(lambda *x: jax.nn.dot_product_attention(*x, **keywords), arrays, cotangent)
  assert np.all(ours[0][~alive] == 0)
  np.testing.assert_allclose(ours[0][alive], theirs[0][alive], atol=TOLERANCE)
  for a, b in zip(ours[1:], theirs[1:], strict=True):
    np.testing.assert_allclose(a, b, atol=TOLERANCE * max(1, np.max(np.abs(b))))


def _value_and_pull_back(f, arrays, cotangent):
  @jax.jit
  def both(arrays):
    output, pull_back = jax.vjp(f, *arrays)
    return output, *pull_back(cotangent)

  return [np.asarray(x) for x in both(arrays)]


@both_implementations
@all_kinds
def test_causal_queries_do_not_see_the_future(kind, implementation):
  """Whatever happens to later keys and values, earlier rows keep every bit."""
  point = problem.make(Case(kind=kind, M=1 if kind == "softmax" else 2, T=40, S=40, is_causal=True))
  changed = {name: point.inputs[name].copy() for name in ("key", "value")}
  for x in changed.values():
    x[:, 25:] += 3
  output, _ = problem.run(point, implementation)
  other, _ = problem.run(point._replace(inputs=point.inputs | changed), implementation)
  np.testing.assert_array_equal(output[:, :25], other[:, :25])
  assert np.all(output[:, 25:] != other[:, 25:])
