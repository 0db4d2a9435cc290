"""The schedule against the learning rates that the authors' code wrote down, and by its corners."""

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.training import one_cycle, one_cycle_adamw

GOLDEN = Path(__file__).parents[1] / "golden" / "model_softmax.npz"
SETTINGS = {"warmup_steps": 5, "total_steps": 20}  # of the golden runs, with a peak of 1e-3


def test_learning_rates_are_the_authors():
  golden = np.load(GOLDEN)["learning_rate"]
  optimizer = one_cycle_adamw(1e-3, **SETTINGS)
  state, rates, momenta = optimizer.init(jnp.zeros(1)), [], []
  for _ in golden:
    _, state = optimizer.update(jnp.ones(1), state, jnp.zeros(1))
    rates.append(float(state.hyperparams["learning_rate"]))
    momenta.append(float(state.hyperparams["b1"]))
  np.testing.assert_allclose(rates, golden, rtol=2e-6)
  assert momenta[0] == pytest.approx(0.95) and momenta[4] == min(momenta) == pytest.approx(0.85)
  # b1 and the learning rate move against each other: both are linear in the step on either side of the peak.
  np.testing.assert_allclose(np.diff(momenta)[:4], -0.025, rtol=1e-4)
  np.testing.assert_allclose(np.diff(momenta)[4:], 0.1 / 15, rtol=1e-4)


def test_corners():
  schedule = one_cycle(1.0, 5.0, 0.0, warmup_steps=3, total_steps=8)
  np.testing.assert_allclose([schedule(step) for step in (0, 1, 2, 3, 7, 100)], [1, 3, 5, 4, 0, 0], atol=1e-6)
  np.testing.assert_allclose([one_cycle(1.0, 5.0, 0.0, warmup_steps=1, total_steps=2)(i) for i in (0, 1)], [5, 0])


def test_a_constant_b1():
  optimizer = one_cycle_adamw(1e-3, **SETTINGS, b1=0.9)
  assert optimizer.init(jnp.zeros(1)).hyperparams["b1"] == pytest.approx(0.9)


@pytest.mark.parametrize(("warmup", "total"), [(0, 5), (5, 5), (6, 5)])
def test_impossible_warmup(warmup, total):
  with pytest.raises(ValueError, match=rf"expected 1 <= warmup_steps < total_steps, got {warmup} and {total}"):
    one_cycle(0.0, 1.0, 0.0, warmup_steps=warmup, total_steps=total)
