"""The algebra that feeds mixtures to cuDNN's attention, on the CPU through XLA's, against the float64 definition."""

import jax
import jax.numpy as jnp
import pytest

import mgk_jax
from tests.kernels import problem
from tests.kernels.problem import Case

CASES = [
  Case(kind="softmax", M=1, T=9, S=20, is_causal=True),
  Case(kind="mgk", T=9, S=20, prior="head", lengths="both"),
  Case(kind="mgk", T=9, S=20, M=3, prior="position", dtype="bfloat16"),
  Case(kind="smgk", T=9, S=20, prior="position", lengths="key"),
  Case(kind="smgk", T=9, S=20, M=3, dtype="bfloat16"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
  # jax.nn rounds bfloat16 weights to 8 bits before they meet the values, and so the gradients once more.
  tolerance = 2.0**-6 if case.dtype == "bfloat16" else None
  problem.check(problem.make(case, seed=2), "cudnn", tolerance)


def test_far_keys_lose_no_precision():
  """Biases of some hundred: in a single bfloat16 they would be wrong by whole nats."""
  point = problem.make(Case(kind="mgk", T=5, S=9, dtype="bfloat16"))
  inputs = {name: x * (4 if name == "key" else 1) for name, x in point.inputs.items()}
  problem.check(point._replace(inputs=inputs), "cudnn", tolerance=2.0**-6)


@pytest.mark.parametrize(
  ("arguments", "reason"),
  [
    ({"estep": "hard"}, "hard E step"),
    ({"is_causal": True}, "causality"),
    ({"variance": jnp.array([1.0, 2.0])}, "variances that differ"),
    ({"mask": jnp.ones((4, 4), bool)}, "a mask"),
    ({"dropout_rate": 0.1, "dropout_rng": jax.random.key(0)}, "dropout"),
  ],
)
def test_what_it_cannot_do(arguments, reason):
  query, key = jnp.ones((1, 4, 1, 8)), jnp.ones((1, 4, 1, 2, 8))
  with pytest.raises(NotImplementedError, match=reason):
    mgk_jax.mixture_attention(query, key, query, implementation="cudnn", **arguments)
