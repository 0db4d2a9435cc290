"""Every kernel and implementation against the float64 definition: values and all gradients."""

import jax
import numpy as np
import pytest

import mgk_jax
from tests.kernels import definition, pairwise, problem
from tests.kernels.problem import Case

pytestmark = pytest.mark.usefixtures("optimised")

LENGTHS = (1, 7, 64, 130)  # within one block
MIXTURES = [
  Case(**row)
  for row in pairwise.combinations(
    {
      "kind": ("mgk", "smgk"),
      "estep": ("soft", "hard"),
      "dtype": ("float32", "float64", "bfloat16"),
      "T": LENGTHS,
      "S": LENGTHS,
      "M": (1, 2, 3),
      "V": (5, 3),
      "prior": ("none", "head", "position"),
      "variance": ("none", "scalar", "component"),
      "mask": ("none", "TS", "BS", "NT", "BNTS"),
      "is_causal": (False, True),
      "lengths": ("none", "key", "query", "both"),
      "dropout_rate": (0.0, 0.3),
    },
    seed=6,  # one that needs few rows
  )
]
SOFTMAX = [
  Case(kind="softmax", M=1, T=65, S=130, mask="TS", lengths="key"),
  Case(kind="softmax", M=1, T=130, S=64, mask="BNTS", is_causal=True, V=3, dtype="float64"),
  Case(kind="softmax", M=1, T=7, S=1, mask="NT", lengths="both", dropout_rate=0.3, dtype="float64"),
  Case(kind="softmax", M=1, T=1, S=65, mask="BS", dropout_rate=0.3),
  Case(kind="softmax", M=1, T=64, S=7, is_causal=True, lengths="query", dtype="bfloat16"),
]
# Longer than the blocks of the implementations that work in blocks, and no multiple of them.
LONG = {"T": 700, "S": 1100, "B": 1, "N": 1, "H": 4, "V": 3}
SEVERAL_BLOCKS = [
  Case(kind="mgk", prior="position", variance="component", mask="TS", lengths="both", **LONG),
  Case(kind="mgk", is_causal=True, dropout_rate=0.2, dtype="float64", **LONG),
  Case(kind="mgk", estep="hard", variance="scalar", mask="BNTS", is_causal=True, lengths="key", **LONG),
  Case(kind="smgk", prior="head", mask="BS", dropout_rate=0.2, lengths="query", **LONG),
  Case(kind="smgk", prior="position", is_causal=True, lengths="both", mask="NT", dtype="float64", **LONG),
  Case(kind="smgk", estep="hard", dropout_rate=0.2, mask="TS", **LONG),
  Case(kind="softmax", M=1, is_causal=True, lengths="both", dropout_rate=0.2, **LONG),
  Case(kind="smgk", T=1100, S=700, M=3, B=3, N=1, H=4, V=3, is_causal=True, lengths="both"),
]


@pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)
@pytest.mark.parametrize("case", MIXTURES + SOFTMAX, ids=str)
def test_values_and_gradients(case, implementation):
  problem.check(problem.make(case, seed=case.T + case.S), implementation)


@pytest.mark.parametrize("implementation", [pytest.param("reference", marks=pytest.mark.slow), "xla"])
@pytest.mark.parametrize("case", SEVERAL_BLOCKS, ids=str)
def test_several_blocks(case, implementation):
  """Of which "reference" knows nothing."""
  problem.check(problem.make(case, seed=case.T + case.S), implementation)


SMALL = {"T": 4, "S": 5, "V": 3, "H": 2, "mask": "BNTS", "dropout_rate": 0.3}
SMALL_MIXTURE = {**SMALL, "prior": "position", "variance": "component", "is_causal": True}


@pytest.mark.parametrize(
  "case",
  [
    Case(kind="softmax", M=1, **SMALL),
    *(Case(kind=kind, estep=estep, **SMALL_MIXTURE) for kind in ("mgk", "smgk") for estep in ("soft", "hard")),
  ],
  ids=str,
)
def test_definition_has_its_gradients_by_central_differences(case):
  problem.check_definition(problem.make(case, seed=3), atol=1e-8)


@pytest.mark.parametrize("estep", ["soft", "hard"])
@pytest.mark.parametrize("kind", ["mgk", "smgk"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_weights_and_responsibilities(kind, estep, dtype):
  case = Case(
    kind=kind, estep=estep, dtype=dtype, T=7, S=9, M=3, prior="position", variance="component", mask="NT",
    lengths="key", is_causal=True,
  )  # fmt: skip
  point = problem.make(case)
  expected = point.define()
  with jax.enable_x64(dtype == "float64"):
    inputs = problem.device_inputs(point)
    inputs.pop("value")
    query, key = inputs.pop("query"), inputs.pop("key")
    weights = np.asarray(mgk_jax.mixture_attention_weights(query, key, **inputs, **point.options))
    shares = np.asarray(mgk_jax.responsibilities(query, key, **inputs, **point.options))
  assert weights.dtype == shares.dtype == dtype
  tolerance = problem.TOLERANCE[dtype]
  assert weights.shape == (2, 2, 7, 9) and shares.shape == (2, 2, 7, 9, 3)
  np.testing.assert_allclose(weights, expected.weights, atol=tolerance)
  np.testing.assert_allclose(shares, expected.responsibilities, atol=tolerance)
  np.testing.assert_allclose(np.sum(shares, -1), expected.allowed, atol=tolerance)
  rows = np.any(expected.allowed, -1)
  assert rows.any() and not rows.all()
  np.testing.assert_allclose(np.sum(weights, -1), rows, atol=tolerance)


@pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
@pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)
def test_rows_without_a_key_are_zero_and_have_no_gradient(kind, implementation):
  """Exactly zero, by a mask, by the query's length, by the keys' length 0, and where causality meets a mask."""
  M = 1 if kind == "softmax" else 2
  point = problem.make(Case(kind=kind, M=M, B=3, T=6, S=5))
  mask = np.ones((3, 1, 6, 5), bool)
  mask[0, :, 2] = False
  mask[0, :, 0, 0] = False  # all that the first query sees under causality
  options = point.options | {
    "mask": mask, "is_causal": True,
    "query_seq_lengths": np.array([6, 3, 6]), "key_value_seq_lengths": np.array([5, 5, 0]),
  }  # fmt: skip
  output, gradients = problem.run(point._replace(options=options), implementation)
  empty = ~definition.allowed_pairs(3, 2, 6, 5, **{k: v for k, v in options.items() if k != "estep"}).any(-1)[:, 0]
  assert empty.sum() == 2 + 3 + 6
  assert np.all(output[empty] == 0) and np.all(gradients["query"][empty] == 0)
  assert np.all(output[~empty] != 0) and np.any(gradients["query"][~empty] != 0)
  assert np.all(gradients["key"][2] == 0) and np.all(gradients["value"][2] == 0)


@pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
def test_best_implementation_by_default(kind):
  problem.check(problem.make(Case(kind=kind, M=1 if kind == "softmax" else 2, T=20, S=33, mask="TS")), None)


@pytest.mark.parametrize("kind", ["mgk", "smgk", "softmax"])
@pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)
def test_empty_batch(kind, implementation):
  point = problem.make(Case(kind=kind, M=1 if kind == "softmax" else 2, B=0, T=6, S=5))
  output, gradients = problem.run(point, implementation)
  assert output.shape == (0, 6, 2, 5)
  assert gradients["key"].shape == point.inputs["key"].shape


@pytest.mark.parametrize(
  "case",
  [
    Case(kind="mgk", T=33, S=47, prior="head", mask="BS", lengths="key"),
    Case(kind="mgk", T=33, S=47, M=3, estep="hard", variance="component", is_causal=True),
    Case(kind="smgk", T=33, S=47, prior="position"),
    Case(kind="softmax", M=1, T=33, S=47, mask="BS"),
  ],
  ids=str,
)
def test_column_terms_beside_the_product(case):
  """As on platforms whose products may round; on a CPU they are a part of it. (No other test has these lengths.)"""
  with mgk_jax.compiling_for("tpu"):
    problem.check(problem.make(case), "xla")
