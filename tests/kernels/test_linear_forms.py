"""The forms of linear attention agree (materialised, chunked, token by token), and what must not matter does not."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import feature_maps, linear, linear_causal, linear_state
from mgk_jax.kernels.linear_state import LinearState
from tests.kernels import linear_problem
from tests.kernels.linear_problem import Case

T = 70  # more than a chunk
# float32 rounding, of exponents of some 10 nats and of sums over T keys.
CLOSE = {"rtol": 1e-5, "atol": 2e-5}


@functools.cache
def attention(feature_map="elu", is_causal=True, implementation="xla"):
  call = functools.partial(
    linear.mixture_linear_attention, feature_map=linear_problem.MAPS[feature_map][0], is_causal=is_causal,
    implementation=implementation,
  )  # fmt: skip
  return jax.jit(call)


state_of = jax.jit(linear_state.mixture_linear_attention_state, static_argnames="feature_map")


@functools.cache
def decode(feature_map):
  """One token after another, from a given state; the last argument is [T, N, M]."""
  phi = linear_problem.MAPS[feature_map][0]

  @jax.jit
  def run(state, query, key, value, log_prior):
    def step(state, token):
      query, key, value, log_prior = token
      out, state = linear_state.mixture_linear_attention_step(
        state, query[:, None], key[:, None], value[:, None], log_prior=log_prior, feature_map=phi
      )
      return state, out[:, 0]

    by_token = [jnp.swapaxes(x, 0, 1) for x in (query, key, value)]
    state, out = jax.lax.scan(step, state, (*by_token, log_prior))
    return jnp.swapaxes(out, 0, 1), state

  return run


def problem(feature_map="elu", **options):
  point = linear_problem.make(Case(feature_map=feature_map, size=(T, T), is_causal=True, **options))
  return point, linear_problem.device_inputs(point)


@pytest.mark.parametrize("feature_map", ["elu", "favor"])
def test_three_forms_agree(feature_map):
  """The bidirectional form with a triangular mask, the chunked form and the recurrence, with priors far apart."""
  _, inputs = problem(feature_map, prior="position")
  inputs["log_prior"] += 3 * jnp.arange(T)[:, None, None] - 100  # 210 nats from end to end
  materialised = attention(feature_map, False, "reference")(**inputs, mask=np.tril(np.ones((T, T), bool)))
  chunked = attention(feature_map)(**inputs)
  state = LinearState.init(2, 2, 4, 5, feature_map=linear_problem.MAPS[feature_map][0])
  recurrent, final = decode(feature_map)(state, **inputs)
  tolerance = {"rtol": 1e-4, "atol": 1e-4}  # 200 nats · 6e-8, in weights of both signs
  np.testing.assert_allclose(chunked, materialised, **tolerance)
  np.testing.assert_allclose(recurrent, materialised, **tolerance)
  options = {"log_prior": inputs["log_prior"], "feature_map": linear_problem.MAPS[feature_map][0]}
  whole = state_of(inputs["key"], inputs["value"], **options)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), final, whole)


def test_decoding_goes_on_from_a_prompt():
  point, inputs = problem(prior="head")
  priors = jnp.broadcast_to(inputs["log_prior"], (T, 2, 2))
  prompt = {name: x[:, :30] for name, x in inputs.items() if name in ("key", "value")}
  state = state_of(**prompt, log_prior=inputs["log_prior"])
  rest = {name: inputs[name][:, 30:] for name in ("query", "key", "value")}
  out, _ = decode("elu")(state, **rest, log_prior=priors[30:])
  np.testing.assert_allclose(out, point.define().output[:, 30:], **CLOSE)


@pytest.mark.parametrize("prior", ["none", "position"])
def test_segments_are_one_pass(prior):
  """With gradients that reach the tokens of the segments before, also where the state outweighs what follows."""
  _, inputs = problem(prior=prior)
  if prior == "position":
    inputs["log_prior"] -= 2 * jnp.arange(T)[:, None, None]
  cotangent = jnp.asarray(np.random.default_rng(0).normal(size=(2, T, 2, 5)), jnp.float32)

  def in_segments(inputs):
    state, parts = LinearState.init(2, 2, 4, 5), []
    for first, last in ((0, 3), (3, 4), (4, T)):
      tokens = [inputs[name][:, first:last] for name in ("query", "key", "value")]
      log_prior = inputs["log_prior"][first:last] if prior == "position" else None
      out, state = linear_state.mixture_linear_attention_step(state, *tokens, log_prior=log_prior)
      parts.append(out)
    return jnp.concatenate(parts, axis=1)

  def value_and_gradient(run):
    out, pull_back = jax.vjp(run, inputs)
    return out, pull_back(cotangent)[0]

  expected = jax.jit(lambda: value_and_gradient(lambda inputs: attention()(**inputs)))()
  found = jax.jit(lambda: value_and_gradient(in_segments))()
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-4), found, expected)


def test_state_ignores_masked_keys():
  _, inputs = problem(prior="position")
  key, value, log_prior = inputs["key"][:, :9], inputs["value"][:, :9], inputs["log_prior"][:9]
  mask = np.arange(9) < 6
  for options in ({"mask": mask[None, None, None]}, {"key_value_seq_lengths": np.array([6, 6])}):
    got = state_of(key, value, log_prior=log_prior + ~mask[:, None, None], **options)
    expected = state_of(key[:, :6], value[:, :6], log_prior=log_prior[:6])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5), got, expected)


def test_state_is_float32_for_bfloat16_inputs():
  state = LinearState.init(2, 3, 4, 5)
  x = jnp.ones((2, 1, 3, 4), jnp.bfloat16)
  step = functools.partial(linear_state.mixture_linear_attention_step, state)
  out, new = jax.eval_shape(step, x, x[:, :, :, None], jnp.ones((2, 1, 3, 5), jnp.bfloat16))
  assert out.dtype == jnp.bfloat16 and out.shape == (2, 1, 3, 5)
  assert jax.tree.map(lambda x: (x.shape, x.dtype), new) == jax.tree.map(lambda x: (x.shape, x.dtype), state)


@pytest.mark.parametrize("feature_map", ["elu", "favor"])
def test_no_row_depends_on_the_future(feature_map):
  """Bit for bit, whatever comes later in the same chunk or in another one, priors included."""
  _, inputs = problem(feature_map, prior="position")
  expected = attention(feature_map)(**inputs)
  for i in (20, 64):
    changed = inputs | {
      "key": inputs["key"].at[:, i:].multiply(30.0),
      "value": inputs["value"].at[:, i:].add(9.0),
      "log_prior": inputs["log_prior"].at[i:].add(50.0),
    }
    got = attention(feature_map)(**changed)
    np.testing.assert_array_equal(got[:, :i], expected[:, :i])
    assert np.all(got[:, i:] != expected[:, i:])


def test_chunk_size_does_not_matter():
  rng = np.random.default_rng(0)
  query, key, value, cotangent = (jnp.asarray(rng.random((1, 23, 2, 4)), jnp.float32) for _ in range(4))
  log_weight = jnp.asarray(40 * rng.standard_normal((1, 23, 2)), jnp.float32)

  def run(chunk):
    @jax.jit
    def call(*arrays):
      out, pull_back = jax.vjp(lambda *x: linear_causal.attention(*x, log_weight, chunk=chunk), *arrays)
      return out, pull_back(cotangent)

    return jax.tree.leaves(call(query, key, value))

  for a, b in zip(run(23), run(4), strict=True):
    np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5)


def test_order_of_components_does_not_matter():
  _, inputs = problem(M=3, prior="position")
  expected = attention()(**inputs)
  order = np.array([2, 0, 1])
  changed = inputs | {"key": inputs["key"][:, :, :, order], "log_prior": inputs["log_prior"][..., order]}
  np.testing.assert_allclose(attention()(**changed), expected, **CLOSE)


def test_identical_components_are_one():
  _, inputs = problem(M=1)
  expected = attention()(**inputs)
  three = inputs | {"key": jnp.repeat(inputs["key"], 3, axis=3)}
  np.testing.assert_allclose(attention()(**three), expected, **CLOSE)
  weighted = three | {"log_prior": jnp.log(jnp.array([[0.2, 0.5, 0.3], [1.0, 0.0, 0.0]]))}
  np.testing.assert_allclose(attention()(**weighted), expected, **CLOSE)


def test_prior_counts_up_to_a_constant():
  _, inputs = problem(prior="position")
  expected = attention()(**inputs)
  moved = inputs | {"log_prior": inputs["log_prior"] + jnp.array([300.0, -300.0])[:, None]}
  np.testing.assert_allclose(attention()(**moved), expected, rtol=1e-4, atol=1e-4)  # 300 nats · 6e-8


def test_padding_does_not_matter():
  _, inputs = problem(prior="position")
  expected = attention()(**inputs)

  def pad(x, axis):
    return jnp.concatenate([x, 7.0 + jnp.take(x, jnp.arange(60), axis=axis)], axis=axis)

  padded = {name: pad(x, 0 if name == "log_prior" else 1) for name, x in inputs.items()}
  lengths = {"query_seq_lengths": np.array([T, T]), "key_value_seq_lengths": np.array([T, T])}
  got = attention()(**padded, **lengths)
  np.testing.assert_allclose(got[:, :T], expected, **CLOSE)
  assert np.all(got[:, T:] == 0)


def test_own_map_with_its_own_scale():
  """A map may hand over exp(x) as features near 1 and a scale."""

  class Exponential:
    def query(self, x):
      return jnp.exp(x - jnp.max(x, axis=-1, keepdims=True))

    def key(self, x):
      top = jax.lax.stop_gradient(jnp.max(x, axis=-1))
      return jnp.exp(x - top[..., None]), top

  _, inputs = problem(prior="head")
  assert isinstance(Exponential(), feature_maps.FeatureMap)
  call = jax.jit(functools.partial(linear.mixture_linear_attention, is_causal=True), static_argnames="feature_map")
  np.testing.assert_allclose(call(**inputs, feature_map=Exponential()), call(**inputs, feature_map=jnp.exp), **CLOSE)
