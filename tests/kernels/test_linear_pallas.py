"""The kernels of causal linear attention, interpreted, against the float64 definition: values and gradients."""

import jax
import jax.numpy as jnp
import pytest

import mgk_jax
from mgk_jax.kernels import linear_pallas, linear_pallas_gpu, linear_pallas_tpu
from tests.kernels import linear_problem
from tests.kernels.linear_problem import Case

CASES = [
  Case("elu", size=(7, 7), is_causal=True, prior="head"),
  Case("elu", size=(300, 300), M=3, H=24, V=40, is_causal=True, prior="head", lengths="both"),
  Case("relu", size=(520, 300), M=1, is_causal=True, mask="BS", B=1, N=1),
  Case("dpfp", size=(65, 130), is_causal=True, dtype="bfloat16"),
]


@pytest.fixture(params=[linear_pallas_tpu, linear_pallas_gpu], ids=["tpu", "gpu"])
def kernels(request, monkeypatch):
  """Runs "pallas" with the kernels of one platform."""
  monkeypatch.setattr(linear_pallas, "backend", lambda: linear_pallas.Backend(request.param, interpret=True))
  linear_problem._value_and_gradients.cache_clear()
  yield request.param
  linear_problem._value_and_gradients.cache_clear()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(kernels, case):
  linear_problem.check(linear_problem.make(case, seed=1), "pallas")


@pytest.mark.parametrize("programs", [1, 4])
def test_any_number_of_segments(monkeypatch, programs):
  """On a GPU a sequence is cut into as many segments as keep it busy: here one or four, above one for every chunk."""
  monkeypatch.setattr(linear_pallas_gpu, "PROGRAMS", programs)
  keys = jax.random.split(jax.random.key(0), 3)
  operands = [jax.random.uniform(key, (1, 350, 1, width)) for key, width in zip(keys, (130, 130, 40), strict=True)]

  def loss(backend, operands):
    return jnp.sum(jnp.sin(linear_pallas.attend(backend, *operands)))

  results = [
    jax.jit(jax.value_and_grad(loss, argnums=1), static_argnums=0)(
      linear_pallas.Backend(module, interpret=True), operands
    )
    for module in (linear_pallas_gpu, linear_pallas_tpu)
  ]
  for got, expected in zip(*map(jax.tree.leaves, results), strict=True):
    assert float(jnp.max(jnp.abs(got - expected))) < 1e-4 * float(jnp.max(jnp.abs(expected)))  # large terms cancel


def test_not_causal_needs_no_kernel():
  linear_problem.check(linear_problem.make(Case("callable", size=(40, 20))), "pallas")


def test_favor_is_left_to_others():
  with pytest.raises(NotImplementedError, match="FAVOR"):
    linear_problem.check(linear_problem.make(Case("favor", is_causal=True)), "pallas")


def test_what_does_not_fit_is_left_to_others():
  array = jax.ShapeDtypeStruct((1, 8, 1, 300), jnp.float32)
  said = mgk_jax.explain_implementation(
    mgk_jax.linear_attention, array, array, array, feature_map="dpfp", is_causal=True, platform="gpu"
  )
  assert said.splitlines()[0] == "pallas: cannot, more than 512 features or columns of values: 600 and 301"
