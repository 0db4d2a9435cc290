"""The kernels for TPUs, interpreted, against the float64 definition: values and all gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental.pallas import tpu as pltpu

import mgk_jax
from mgk_jax.kernels import flash, masking, pallas_tpu, scores
from mgk_jax.kernels.checks import Dims
from tests.kernels import problem
from tests.kernels.problem import Case

LONG = {"T": 600, "S": 700, "B": 1, "N": 1, "H": 4, "V": 3}  # several blocks, and no multiple of them
CASES = [
  Case(kind="softmax", M=1, T=65, S=130, mask="TS", lengths="key"),
  Case(kind="softmax", M=1, is_causal=True, lengths="both", **LONG),
  Case(kind="mgk", T=7, S=1, M=3, prior="head", lengths="both"),
  Case(kind="mgk", prior="position", variance="component", mask="TS", lengths="both", **LONG),
  Case(kind="mgk", T=130, S=65, dtype="bfloat16", prior="head", mask="BS"),
  Case(kind="mgk", estep="hard", variance="scalar", mask="BNTS", is_causal=True, lengths="key", **LONG),
  Case(kind="smgk", T=64, S=130, M=3, prior="position", mask="NT", is_causal=True),
  Case(kind="smgk", prior="head", mask="BS", lengths="query", variance="scalar", **LONG),
  Case(kind="smgk", T=65, S=64, dtype="bfloat16", lengths="key"),
  Case(kind="smgk", estep="hard", T=130, S=130, M=3, mask="TS", lengths="both"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
  problem.check(problem.make(case, seed=case.T + case.S), "pallas")


@pytest.mark.parametrize("kind", ["mgk", "smgk"])
def test_far_from_every_key(kind):
  """Distances of some hundred standard deviations: the factors of sMGK would underflow, and all stays exact."""
  point = problem.make(Case(kind=kind, T=9, S=130))
  far = {
    name: problem.rounded(x * (30 if name in ("query", "shift") else 1), "float32") for name, x in point.inputs.items()
  }
  point = point._replace(inputs=far)
  problem.check(point, "pallas", tolerance=1e-3)  # scores of some thousand carry float32's rounding into the weights


@pytest.mark.parametrize(("kind", "estep"), [("mgk", "soft"), ("smgk", "soft"), ("smgk", "hard"), ("softmax", "soft")])
def test_simulated_tpu_finds_no_race(kind, estep, capfd):
  """The interpreter that simulates a TPU's memories: uninitialised memory is NaN, and races are found."""
  B, L, N, M, H = 1, 256, 1, 1 if kind == "softmax" else 2, 8
  dims = Dims(B, L, L, N, M, H, H)
  keys = jax.random.split(jax.random.key(0), 4)
  query, value = (jax.random.normal(key, (B, L, N, H)) for key in keys[:2])
  key = jax.random.normal(keys[2], (B, L, N, M, H) if kind == "mgk" else (B, L, N, H))
  shift, variance = jax.random.normal(keys[3], (N, M, H)), jnp.float32(2)
  score_of = {
    "mgk": lambda query, key: scores.gaussian(query, key, None, variance),
    "smgk": lambda query, key: scores.shifted_gaussian(query, key, shift, None, variance),
    "softmax": scores.dot_product,
  }[kind]
  where = masking.make(None, True, None, np.array([200]), dims)

  def loss(interpret):
    backend = flash.Backend(pallas_tpu, interpret)
    return lambda q, k, v: jnp.sum(jnp.sin(flash.attention(backend, score_of(q, k), v, where, dims, estep)))

  simulated = pltpu.InterpretParams(detect_races=True, uninitialized_memory="nan")
  got = jax.value_and_grad(loss(simulated), argnums=(0, 1, 2))(query, key, value)
  expected = jax.value_and_grad(loss(True), argnums=(0, 1, 2))(query, key, value)
  jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), got, expected)
  assert "RACE" not in "".join(capfd.readouterr())


def test_dropout_and_float64_are_left_to_others():
  query = jnp.ones((1, 8, 1, 4))
  with pytest.raises(NotImplementedError, match="dropout"):
    mgk_jax.softmax_attention(
      query, query, query, dropout_rate=0.1, dropout_rng=jax.random.key(0), implementation="pallas"
    )
  with jax.enable_x64(True), pytest.raises(NotImplementedError, match="float64"):
    wide = query.astype(jnp.float64)
    mgk_jax.softmax_attention(wide, wide, wide, implementation="pallas")
