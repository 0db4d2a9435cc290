"""The kernel of causal linear attention for TPUs, interpreted, against the float64 definition: values and gradients."""

import pytest

from tests.kernels import linear_problem
from tests.kernels.linear_problem import Case

CASES = [
  Case("elu", size=(7, 7), is_causal=True, prior="head"),
  Case("elu", size=(300, 300), M=3, is_causal=True, prior="head", lengths="both"),
  Case("relu", size=(520, 300), M=1, is_causal=True, mask="BS", B=1, N=1),
  Case("dpfp", size=(65, 130), is_causal=True, dtype="bfloat16"),
  Case("callable", size=(40, 20), is_causal=False),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
  linear_problem.check(linear_problem.make(case, seed=1), "pallas")


def test_favor_is_left_to_others():
  with pytest.raises(NotImplementedError, match="FAVOR"):
    linear_problem.check(linear_problem.make(Case("favor", is_causal=True)), "pallas")
