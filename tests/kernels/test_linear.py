"""Linear attention against the float64 definition: values and all gradients, in every implementation."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import dispatch, linear, scores
from tests.kernels import definition, linear_problem, problem
from tests.kernels.linear_problem import Case

pytestmark = pytest.mark.usefixtures("optimised")

# Every size, option and map in both forms, and priors of zero, masks and lengths where they meet the edges of chunks.
XLA = [
  Case(feature_map="elu", size=(1, 7), M=1, is_causal=True, dtype="float64"),
  Case(feature_map="relu", size=(7, 1), prior="head", is_causal=True, lengths="key"),
  Case(feature_map="dpfp", size=(64, 65), M=3, prior="position", is_causal=True, mask="BNS", dtype="float64"),
  Case(feature_map="favor", size=(65, 64), prior="zero", is_causal=True, lengths="both", dtype="float64"),
  Case(
    feature_map="elu", size=(130, 130), M=3, prior="zero", is_causal=True, mask="S", lengths="query", dtype="float64"
  ),
  Case(feature_map="favor", size=(130, 130), M=1, is_causal=True, mask="BNS", lengths="key"),
  Case(feature_map="elu", size=(130, 65), prior="position", is_causal=True, dtype="bfloat16"),
  Case(feature_map="callable", size=(65, 130), prior="head", is_causal=True, lengths="both", dtype="float64"),
  Case(feature_map="elu", size=(130, 64), prior="zero", mask="BNS", lengths="both", dtype="float64"),
  Case(feature_map="relu", size=(7, 65), M=3, mask="S", dtype="float64"),
  Case(feature_map="dpfp3", size=(64, 130), M=1, prior="position", lengths="key"),
  Case(feature_map="favor", size=(65, 7), M=3, prior="position", mask="BS", lengths="query", dtype="float64"),
  Case(feature_map="elu", size=(1, 1), prior="head", dtype="bfloat16"),
  Case(feature_map="callable", size=(130, 1), lengths="key"),
]
# With masks that vary with the query, which only the reference takes.
REFERENCE = [
  Case(feature_map="elu", size=(65, 64), M=3, prior="zero", mask="BNTS", dtype="float64", lengths="both"),
  Case(feature_map="relu", size=(130, 7), M=1, mask="TS", is_causal=True),
  Case(feature_map="dpfp3", size=(7, 65), prior="head", mask="NT", dtype="float64", is_causal=True),
  Case(feature_map="favor", size=(64, 130), M=3, prior="position", mask="BNTS", dtype="float64", lengths="key"),
  Case(feature_map="callable", size=(1, 7), prior="zero", mask="BS", lengths="query", dtype="bfloat16"),
]
# One problem for several tests, each of which is compiled once.
SHARED = Case(size=(70, 70), prior="position")


@pytest.mark.parametrize("case", XLA, ids=str)
def test_xla(case):
  linear_problem.check(linear_problem.make(case, seed=sum(case.size)), "xla")


@pytest.mark.parametrize("case", REFERENCE, ids=str)
def test_reference(case):
  linear_problem.check(linear_problem.make(case, seed=sum(case.size)), "reference")


@pytest.mark.parametrize(
  ("feature_map", "is_causal", "implementation"),
  [("elu", False, "xla"), ("favor", True, "xla"), ("relu", False, "reference")],
)
@pytest.mark.parametrize("off", [(), (0,), (2,), (0, 1), (0, 1, 2)], ids=str)
def test_components_that_a_head_switches_off(feature_map, is_causal, implementation, off):
  """One constant on all of a head's log priors cancels, so that their derivatives add up to zero."""
  point = linear_problem.make(
    Case(feature_map=feature_map, size=(33, 40), M=3, prior="head", is_causal=is_causal, mask="BNS", dtype="float64")
  )
  point.inputs["log_prior"][1, list(off)] = -np.inf
  _, gradients = linear_problem.check(point, implementation)
  np.testing.assert_allclose(np.sum(gradients["log_prior"], axis=-1), 0, atol=1e-12)
  assert np.all(gradients["log_prior"][1, list(off)] == 0) and np.all(gradients["log_prior"][0] != 0)


@pytest.mark.parametrize("feature_map", linear_problem.MAPS)
def test_definition_has_its_gradients_by_central_differences(feature_map):
  case = Case(feature_map=feature_map, size=(3, 4), V=2, N=1, H=2, prior="position", mask="BTS", is_causal=True)
  problem.check_definition(linear_problem.make(case, seed=3), atol=1e-7)


def test_linear_attention_is_the_definition_with_one_component():
  point = linear_problem.make(Case(size=(7, 9), M=1, lengths="key", mask="BS"))
  inputs = linear_problem.device_inputs(point)
  call = jax.jit(linear.linear_attention, static_argnames="is_causal")
  out = call(inputs["query"], inputs["key"][:, :, :, 0], inputs["value"], **point.options)
  np.testing.assert_allclose(out, point.define().output, atol=1e-5)


def test_shifted_keys():
  """sMLK: the components' keys are k_j + b_r."""
  point = linear_problem.make(Case(size=(6, 6), M=3, prior="head"))
  shift = np.random.default_rng(0).standard_normal((2, 3, 4))
  point.inputs["key"][...] = point.inputs["key"][:, :, :, :1] + shift
  inputs = linear_problem.device_inputs(point)
  base = jnp.asarray(point.inputs["key"][:, :, :, 0] - shift[:, 0], jnp.float32)

  @jax.jit
  def call(query, key, value, log_prior):
    keys = scores.shift_keys(key, jnp.asarray(shift, jnp.float32))
    return linear.mixture_linear_attention(query, keys, value, log_prior=log_prior)

  out = call(inputs["query"], base, inputs["value"], inputs["log_prior"])
  np.testing.assert_allclose(out, point.define().output, atol=1e-5)


@pytest.mark.parametrize(
  ("feature_map", "is_causal", "implementation"),
  [("elu", True, "reference"), ("favor", True, "xla"), ("elu", True, "xla"), ("favor", False, "xla")],
)
def test_rows_without_a_key_are_zero_and_have_no_gradient(feature_map, is_causal, implementation):
  """Exactly zero: by the query's length, by the keys' length 0, where causality meets a mask, and by the prior."""
  point = linear_problem.make(Case(feature_map=feature_map, B=3, size=(6, 5), prior="position", is_causal=is_causal))
  mask = np.ones((3, 1, 1, 5), bool)
  mask[0, :, :, 0] = False
  options = point.options | {
    "mask": mask, "query_seq_lengths": np.array([6, 3, 6]), "key_value_seq_lengths": np.array([5, 5, 0])
  }  # fmt: skip
  point.inputs["log_prior"][:2, 1] = -np.inf  # of the second head's first two positions
  output, gradients = linear_problem.run(point._replace(options=options), implementation)
  allowed = definition.allowed_pairs(3, 2, 6, 5, **options)
  allowed[:, 1, :, :2] = False
  empty = np.swapaxes(~allowed.any(-1), 1, 2)
  assert empty.sum() == 6 + 12 + (2 + 1 + 2 if is_causal else 0)
  assert np.all(output[empty] == 0) and np.all(gradients["query"][empty] == 0)
  assert np.all(output[~empty] != 0) and np.any(gradients["query"][~empty] != 0)
  assert np.all(gradients["key"][2] == 0) and np.all(gradients["value"][2] == 0)
  assert np.all(gradients["log_prior"][:2, 1] == 0)


SHARED_FORMS = [(False, "xla"), (True, "xla"), (False, "reference")]


@pytest.mark.parametrize(("is_causal", "implementation"), SHARED_FORMS)
def test_zero_denominators(is_causal, implementation):
  """A query whose relu features vanish, or are orthogonal to those of the keys, gets zeros and finite gradients."""
  point = linear_problem.make(SHARED._replace(feature_map="relu", is_causal=is_causal))
  query, key = point.inputs["query"], point.inputs["key"]
  key[..., 0] = -np.abs(key[..., 0])
  key[..., 1] = np.abs(key[..., 1])
  query[:, ::3] = -np.abs(query[:, ::3])
  query[:, 1::3, :, 1:] = -np.abs(query[:, 1::3, :, 1:])
  query[:, 2::3, :, 1] = np.abs(query[:, 2::3, :, 1])
  output, gradients = linear_problem.check(point, implementation)
  assert np.all(output[:, ::3] == 0) and np.all(output[:, 1::3] == 0) and np.all(output[:, 2::3] != 0)
  assert np.all(gradients["query"][:, ::3] == 0)


@pytest.mark.parametrize(
  ("feature_map", "is_causal", "implementation"),
  [(name, is_causal, "xla") for name in ("elu", "relu", "dpfp", "favor") for is_causal in (False, True)]
  + [("elu", False, "reference"), ("favor", False, "reference")],
)
def test_finite_for_large_inputs(feature_map, is_causal, implementation):
  point = linear_problem.make(SHARED._replace(feature_map=feature_map, is_causal=is_causal), seed=1)
  for x in point.inputs.values():
    x *= 1e3
  output, gradients = linear_problem.run(point, implementation)
  for name, x in {"output": output, **gradients}.items():
    assert np.all(np.isfinite(x)), f"{name}: {np.sum(~np.isfinite(x))} of {x.size} numbers are not finite"
  assert 0 < np.max(np.abs(output)) <= np.max(np.abs(point.inputs["value"])) * (1 + 1e-5)


def test_queries_whose_features_all_underflow():
  """What is common to all features of a query cancels: −204 … −200 gives what −4 … 0 does, but for rounding (1e-5)."""
  point = linear_problem.make(SHARED)
  point.inputs["query"] = -4 + 8 * np.random.default_rng(0).random(point.inputs["query"].shape) / 2
  expected = linear_problem.check(point, "xla")[0]
  point.inputs["query"] -= 200
  np.testing.assert_allclose(linear_problem.run(point, "xla")[0], expected, atol=1e-4)


@pytest.mark.parametrize(("is_causal", "implementation"), SHARED_FORMS)
@pytest.mark.parametrize("sign", [-1, 1])
def test_priors_of_any_range(sign, is_causal, implementation):
  """Log priors that rise or fall by 700 nats over the sequence: exp of neither end is a float32."""
  point = linear_problem.make(SHARED._replace(is_causal=is_causal))
  point.inputs["log_prior"] += (sign * 10.0 * (np.arange(70) - 35))[:, None, None]
  # The rounding of a log weight of 350 nats, 350 · 6e-8, is a relative error of the weight.
  linear_problem.check(point, implementation, tolerance=1e-4)


def test_mask_by_query_falls_through_to_reference():
  point = linear_problem.make(Case(size=(5, 6), mask="TS"))
  dispatch._warn_once.cache_clear()
  with pytest.warns(UserWarning, match=r'implementation="reference", as "xla" cannot'):
    linear_problem.check(point, None)
  with pytest.raises(
    NotImplementedError, match=r"expected a mask that is the same for all queries.*got \[1, 1, 5, 6\]"
  ):
    linear_problem.run(point, "xla")


def test_float32_under_x64():
  """With 64-bit types enabled, float32 inputs still give float32 results."""
  point = linear_problem.make(Case(size=(70, 70), prior="position", is_causal=True))
  with jax.enable_x64(True):
    inputs = {k: jnp.asarray(x, jnp.float32) for k, x in point.inputs.items()}
    for feature_map in ("elu", "favor"):
      for implementation in linear_problem.IMPLEMENTATIONS:
        options = {"feature_map": feature_map, "is_causal": True, "implementation": implementation}
        call = functools.partial(linear.mixture_linear_attention, **options)
        assert jax.eval_shape(call, **inputs).dtype == jnp.float32
