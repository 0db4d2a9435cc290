"""The cross-entropy of a linear layer in chunks against the dense one in float64: values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import cross_entropy
from mgk_jax.kernels.cross_entropy import linear_cross_entropy

TOLERANCE = {"float32": 2e-6, "bfloat16": 2.0**-8}


def dense(hidden, weight, bias, targets, count):
  logits = hidden @ weight.T + bias
  top = logits.max(1, keepdims=True)
  normaliser = top[:, 0] + np.log(np.exp(logits - top).sum(1))
  counted = np.arange(len(hidden)) < count
  losses = np.where(counted, normaliser - logits[np.arange(len(hidden)), targets], 0)
  return losses, np.exp(logits - normaliser[:, None]) - np.eye(len(weight))[targets], counted


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(("T", "count"), [(50, None), (50, 50), (50, 17), (50, 0), (1, 1), (64, 33)])
def test_values_and_gradients(T, count, dtype, monkeypatch):
  monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", 16 * 30)  # chunks of 16 rows
  random = np.random.default_rng(T)
  arrays = [np.asarray(jnp.asarray(random.standard_normal(s), dtype), np.float64) for s in ((T, 8), (30, 8), (30,))]
  targets, cotangent = random.integers(0, 30, T), random.standard_normal(T)
  wanted, by_logits, counted = dense(*arrays, targets, T if count is None else count)
  by_logits = by_logits * (cotangent * counted)[:, None]
  hidden, weight, _ = arrays
  gradients = by_logits @ weight, by_logits.T @ hidden, by_logits.sum(0)

  @jax.jit
  def run(arrays, cotangent):
    losses, pull_back = jax.vjp(lambda *x: linear_cross_entropy(*x, jnp.asarray(targets), count), *arrays)
    return losses, pull_back(cotangent)

  losses, found = run([jnp.asarray(x, dtype) for x in arrays], jnp.asarray(cotangent, jnp.float32))
  assert losses.dtype == jnp.float32
  for got, expected in zip((losses, *found), (wanted, *gradients), strict=True):
    np.testing.assert_allclose(
      np.asarray(got, np.float64), expected, atol=TOLERANCE[dtype] * max(1, np.max(np.abs(expected)))
    )
  assert found[0].dtype == found[1].dtype == found[2].dtype == dtype


def test_rows_that_do_not_count_cost_nothing_and_do_no_harm():
  """Not even if they are not finite."""
  hidden = jnp.ones((4, 2)).at[2:].set(jnp.nan)
  losses, gradient = jax.value_and_grad(
    lambda h: jnp.sum(linear_cross_entropy(h, jnp.eye(2), jnp.zeros(2), jnp.array([0, 1, 7, -3]), 2))
  )(hidden)
  assert np.isfinite(losses) and np.all(np.isfinite(gradient)) and not np.any(gradient[2:])


def test_large_logits_are_safe():
  loss = linear_cross_entropy(jnp.full((1, 1), 1e4), jnp.array([[1.0], [-1.0]]), jnp.zeros(2), jnp.array([1]))
  np.testing.assert_allclose(loss, [2e4])
