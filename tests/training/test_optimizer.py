"""Schedules against the learning rates that the authors' code wrote down and against their formulas, AdamW by hand."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.training import make_optimizer, one_cycle, one_cycle_adamw

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


# The learning rate of step n with a warm-up of w of s steps, as the papers and programs that these are from have it.
FORMULAS = {
  "one_cycle": lambda n, w, s: np.interp(n, [0, w - 1, s - 1], [1 / 25, 1, 1 / 25e4]),
  "rsqrt": lambda n, w, s: min(1.0, n / w) / np.sqrt(max(n, w)),
  "cosine": lambda n, w, s: n / w if n < w else (1 + np.cos(np.pi * min(n - w, s - w) / (s - w))) / 2,
  "constant": lambda n, w, s: min(1.0, n / w),
}


def optimizer_of(schedule, **changes):
  b1_peak = {"b1_peak": 0.85} if schedule == "one_cycle" else {}
  settings = {"learning_rate": 2e-3, "warmup_steps": 7, "num_steps": 40, "b1": 0.95, "b2": 0.999, "eps": 1e-6}
  return make_optimizer(schedule=schedule, **settings | b1_peak | changes)


@pytest.mark.parametrize("schedule", FORMULAS)
def test_schedules(schedule):
  _, rate = optimizer_of(schedule)
  steps = range(50)  # past the end as well
  expected = [2e-3 * FORMULAS[schedule](step, 7, 40) for step in steps]
  np.testing.assert_allclose([float(rate(step)) for step in steps], expected, rtol=2e-5, atol=2e-9)


def test_the_golden_run_by_its_settings():
  """`make_optimizer` as a config names it gives the authors' learning rates."""
  golden = np.load(GOLDEN)["learning_rate"]
  _, rate = optimizer_of("one_cycle", learning_rate=1e-3, warmup_steps=5, num_steps=20)
  np.testing.assert_allclose([float(rate(step)) for step in range(len(golden))], golden, rtol=2e-6)


@pytest.mark.parametrize("schedule", ["rsqrt", "cosine", "constant"])
def test_no_warmup(schedule):
  _, rate = optimizer_of(schedule, warmup_steps=0)
  assert float(rate(0)) == float(rate(1 if schedule == "rsqrt" else 0)) == pytest.approx(2e-3)
  assert float(rate(4)) == pytest.approx(
    2e-3 * {"rsqrt": 0.5, "cosine": (1 + np.cos(np.pi / 10)) / 2, "constant": 1}[schedule]
  )


GRADIENTS = np.random.default_rng(0).normal(size=(12, 5)) * np.array([1e-3, 0.1, 1.0, 10.0, 0.0])


@pytest.mark.parametrize("schedule", FORMULAS)
@pytest.mark.parametrize("clip_norm", [0.0, 2.0])
def test_adamw_by_hand(schedule, clip_norm):
  """Twelve updates in float64 by the formulas of Adam, with decoupled weight decay, b1 as scheduled, and clipping."""
  optimizer, _ = optimizer_of(schedule, weight_decay=0.3, b2=0.9, eps=1e-3, clip_norm=clip_norm)
  params = {"a": jnp.arange(3.0), "b": jnp.array([-2.0, 4.0])}
  expected = np.concatenate([params["a"], params["b"]]).astype(np.float64)
  state, mean, square = optimizer.init(params), np.zeros(5), np.zeros(5)
  for step, gradient in enumerate(GRADIENTS):
    gradients = {"a": jnp.asarray(gradient[:3], jnp.float32), "b": jnp.asarray(gradient[3:], jnp.float32)}
    updates, state = optimizer.update(gradients, state, params)
    params = jax.tree.map(jnp.add, params, updates)

    norm = np.linalg.norm(gradient)
    if clip_norm and norm > clip_norm:
      gradient = gradient * clip_norm / norm
    b1 = np.interp(step, [0, 6, 39], [0.95, 0.85, 0.95]) if schedule == "one_cycle" else 0.95
    mean, square = b1 * mean + (1 - b1) * gradient, 0.9 * square + 0.1 * gradient**2
    unbiased = (mean / (1 - b1 ** (step + 1))) / (np.sqrt(square / (1 - 0.9 ** (step + 1))) + 1e-3)
    expected = expected - 2e-3 * FORMULAS[schedule](step, 7, 40) * (unbiased + 0.3 * expected)
  np.testing.assert_allclose(np.concatenate([params["a"], params["b"]]), expected, rtol=1e-5, atol=1e-7)


def test_small_gradients_are_not_clipped():
  gradient, params = jnp.array([0.3, 0.4]), jnp.zeros(2)
  updates = []
  for clip_norm in (0.0, 0.6, 0.4):
    optimizer, _ = optimizer_of("constant", warmup_steps=0, eps=1.0, clip_norm=clip_norm)
    updates.append(np.asarray(optimizer.update(gradient, optimizer.init(params), params)[0]))
  np.testing.assert_array_equal(updates[0], updates[1])
  assert np.all(np.abs(updates[2]) < np.abs(updates[0]))


@pytest.mark.parametrize(
  ("schedule", "changes", "message"),
  [
    ("linear", {}, r"schedule: expected one of .*one_cycle.*rsqrt.*cosine.*constant.*, got 'linear'"),
    ("one_cycle", {"b1_peak": None}, r"b1_peak: expected a number with schedule='one_cycle' only, got None with 'one"),
    ("cosine", {"b1_peak": 0.8}, r"b1_peak: expected a number with schedule='one_cycle' only, got 0.8 with 'cosine'"),
    ("cosine", {"learning_rate": -1.0}, r"learning_rate: expected no negative number, got -1.0"),
    ("cosine", {"clip_norm": -1.0}, r"clip_norm: expected no negative number, got -1.0"),
    ("cosine", {"warmup_steps": -1}, r"warmup_steps: expected no negative number, got -1"),
    ("cosine", {"weight_decay": -0.1}, r"weight_decay: expected no negative number, got -0.1"),
    ("cosine", {"eps": float("nan")}, r"eps: expected no negative number, got nan"),
    ("constant", {"b1": 1.0}, r"b1: expected a number >= 0 and < 1, got 1.0"),
    ("one_cycle", {"b1_peak": -0.1}, r"b1_peak: expected a number >= 0 and < 1, got -0.1"),
    ("rsqrt", {"b2": 1.5}, r"b2: expected a number >= 0 and < 1, got 1.5"),
    ("one_cycle", {"warmup_steps": 40}, r"expected 1 <= warmup_steps < total_steps, got 40 and 40"),
    ("one_cycle", {"warmup_steps": 0}, r"expected 1 <= warmup_steps < total_steps, got 0 and 40"),
  ],
)
def test_impossible_settings(schedule, changes, message):
  with pytest.raises(ValueError, match=message):
    optimizer_of(schedule, **changes)
