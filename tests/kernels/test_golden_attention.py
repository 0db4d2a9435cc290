"""Numbers of the paper's authors' PyTorch code on random inputs (float64), stored in tests/golden."""

import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from tests.kernels import problem

pytestmark = pytest.mark.usefixtures("optimised")

GOLDEN = pathlib.Path(__file__).parents[1] / "golden"


def load(name: str) -> dict[str, np.ndarray]:
  """The file's arrays in this project's layouts: [B, N, T, H] → [B, T, N, H], shift [M, N, H] → [N, M, H]."""
  with np.load(GOLDEN / f"attention_{name}.npz") as file:
    arrays = dict(file)
  for key, x in arrays.items():
    if x.ndim == 4:
      arrays[key] = x.transpose(0, 2, 1, 3)
    elif key in ("shift", "grad_shift"):
      arrays[key] = x.transpose(1, 0, 2)
  return arrays


def inputs_and_gradients(name: str) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
  """Inputs of our kernel and the authors' gradients, by our names; `prior` is π, [M] or [S, N, M]."""
  golden = load(name)
  inputs, gradients = {}, {}
  for prefix, arrays in (("", inputs), ("grad_", gradients)):
    arrays["query"], arrays["value"] = golden[prefix + "q"], golden[prefix + "v"]
    arrays["key"] = golden[prefix + "k1"]
    if "k2" in golden:
      arrays["key"] = np.stack([golden[prefix + "k1"], golden[prefix + "k2"]], 3)
    if "shift" in golden:
      arrays["shift"] = golden[prefix + "shift"]
    if "pi" in golden:
      arrays["prior"] = golden[prefix + "pi"]  # one for all heads
  if "pi_component1_before" in golden:
    inputs["prior"] = em_priors(golden["pi_component1_before"])
  return inputs, gradients


def em_priors(first_NS: np.ndarray) -> np.ndarray:
  return np.stack([first_NS.T, 1 - first_NS.T], -1)


@pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["softmax", "mgk", "mgk_hard", "mgk_em", "smgk", "smgk_hard", "smgk_em"])
def test_outputs_and_gradients(name, implementation):
  golden = load(name)
  inputs, expected = inputs_and_gradients(name)
  kind = name.partition("_")[0]
  options = {"mask": golden["mask"][:, None, None, :] > 0, "implementation": implementation}
  if name.endswith("hard"):
    options["estep"] = "hard"

  def attention(inputs):
    inputs = dict(inputs)
    if "prior" in inputs:
      prior = inputs.pop("prior")
      inputs["log_prior"] = jnp.log(jnp.broadcast_to(prior, (2, 2)) if prior.ndim == 1 else prior)
    return problem.function(kind, **options)(inputs)

  @jax.jit
  def value_and_gradients(inputs, cotangent):
    output, pull_back = jax.vjp(attention, inputs)
    return output, pull_back(cotangent)[0]

  with jax.enable_x64(True):
    output, gradients = value_and_gradients(inputs, golden["cotangent"])
  np.testing.assert_allclose(output, golden["out"], atol=1e-6)
  for key, gradient in expected.items():
    np.testing.assert_allclose(gradients[key], gradient, atol=1e-6, err_msg=key)


@pytest.mark.parametrize("implementation", problem.IMPLEMENTATIONS)
@pytest.mark.parametrize("name", ["mgk_em", "smgk_em"])
def test_em_step_of_the_prior(name, implementation):
  """The authors average over valid queries, and add 1e-6 to a denominator that may itself be small: hence 1e-3."""
  golden = load(name)
  inputs, _ = inputs_and_gradients(name)
  valid = golden["mask"] > 0
  with jax.enable_x64(True):
    prior = mgk_jax.em_prior(
      inputs["query"], inputs["key"], shift=inputs.get("shift"), log_prior=jnp.log(inputs["prior"]),
      mask=valid[:, None, None, :] & valid[:, None, :, None], implementation=implementation,
    )  # fmt: skip
  np.testing.assert_allclose(prior, em_priors(golden["pi_component1_after"]), atol=1e-3)
  assert np.max(np.abs(np.asarray(prior) - inputs["prior"])) > 0.05
