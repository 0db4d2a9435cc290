"""Which implementation runs, what is said of it, and that falling through is a warning, once."""

import warnings

import jax
import jax.numpy as jnp
import pytest

import mgk_jax
from mgk_jax.kernels import dispatch

QUERY = jax.ShapeDtypeStruct((2, 8, 2, 4), jnp.bfloat16)
KEY = jax.ShapeDtypeStruct((2, 8, 2, 2, 4), jnp.bfloat16)
DROPOUT = {"dropout_rate": 0.1, "dropout_rng": jax.ShapeDtypeStruct((), jax.random.key(0).dtype)}


@pytest.mark.parametrize(
  ("platform", "arguments", "expected"),
  [
    ("cpu", {}, ["xla: runs"]),
    ("tpu", {}, ["pallas: runs"]),
    ("tpu", DROPOUT, ["pallas: cannot, dropout of attention weights", "xla: runs"]),
    ("gpu", DROPOUT, ["pallas: cannot, dropout", "cudnn: cannot, dropout", "xla: runs"]),
    ("tpu", {"implementation": "reference"}, ["reference: runs"]),
  ],
)
def test_what_runs_where(platform, arguments, expected):
  said = mgk_jax.explain_implementation(
    mgk_jax.mixture_attention, QUERY, KEY, QUERY, **arguments, platform=platform
  ).splitlines()
  assert len(said) == len(expected)
  assert all(line.startswith(start) for line, start in zip(said, expected, strict=True))


def test_modules_are_explained_too():
  from flax import nnx

  module = mgk_jax.MixtureAttention(2, 8, rngs=nnx.Rngs(0))
  inputs = jax.ShapeDtypeStruct((1, 4, 8), jnp.float32)
  assert mgk_jax.explain_implementation(module, inputs, platform="tpu") == "pallas: runs"
  assert mgk_jax.explain_implementation(lambda x: x + 1, inputs) == "no attention of this package was called"


@pytest.mark.parametrize("length", [1, 4])
def test_steps_of_linear_attention_are_explained_too(length):
  state = mgk_jax.LinearState.init(1, 2, 8, 8)
  query, key = jnp.ones((1, length, 2, 8)), jnp.ones((1, length, 2, 1, 8))
  said = mgk_jax.explain_implementation(mgk_jax.mixture_linear_attention_step, state, query, key, query, platform="tpu")
  assert said == "xla: runs"


def refuse():
  raise NotImplementedError("of a reason")


def test_falling_through_warns_once():
  dispatch._warn_once.cache_clear()
  candidates = {"pallas": refuse, "xla": lambda: 1, "reference": lambda: 2}
  with dispatch.compiling_for("tpu"):
    with pytest.warns(UserWarning, match=r'runs with implementation="xla", as "pallas" cannot: of a reason'):
      assert dispatch.run(None, candidates) == 1
    with warnings.catch_warnings():
      warnings.simplefilter("error")
      assert dispatch.run(None, candidates) == 1
  with pytest.raises(NotImplementedError, match="of a reason"):
    dispatch.run("pallas", candidates)


def test_the_last_resort_is_the_reference():
  dispatch._warn_once.cache_clear()
  with pytest.warns(UserWarning, match=r'runs with implementation="reference", as "xla" cannot: of a reason'):
    assert dispatch.run(None, {"xla": refuse, "reference": lambda: 2}) == 2


def test_unknown_names():
  with pytest.raises(ValueError, match="target"), mgk_jax.compiling_for("npu"):
    pass
  with pytest.raises(ValueError, match="implementation"):
    dispatch.run("triton", {"xla": refuse})
