"""How words are chosen: greedy, by temperature, among the likeliest."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from lm.sampling import Sampling, sample

P = np.array([[0.1, 0.4, 0.05, 0.3, 0.15], [0.2, 0.2, 0.2, 0.2, 0.2]])
DRAWS = 4000


def frequencies(**settings):
  """How often each word is chosen, [2, 5]."""
  log_probs = jnp.log(jnp.asarray(P, jnp.float32))
  keys = jax.random.split(jax.random.key(0), DRAWS)
  words = jax.jit(jax.vmap(lambda key: sample(log_probs, key, Sampling(**settings))))(keys)
  return np.stack([np.bincount(column, minlength=5) for column in np.asarray(words).T]) / DRAWS


@pytest.mark.parametrize(
  ("settings", "expected"),
  [
    ({}, P[0]),
    ({"temperature": 0.5}, P[0] ** 2 / np.sum(P[0] ** 2)),
    ({"top_k": 2}, np.array([0, 0.4, 0, 0.3, 0]) / 0.7),
    ({"top_k": 99}, P[0]),
    ({"top_p": 0.69}, np.array([0, 0.4, 0, 0.3, 0]) / 0.7),
    ({"top_p": 0.71}, np.array([0, 0.4, 0, 0.3, 0.15]) / 0.85),
    ({"top_p": 1e-9}, [0, 1, 0, 0, 0]),
    ({"top_p": 1.0}, P[0]),
    ({"top_k": 3, "top_p": 0.8}, np.array([0, 0.4, 0, 0.3, 0]) / 0.7),  # 0.7 of 0.85 suffice
    ({"temperature": 0.0}, [0, 1, 0, 0, 0]),
    ({"temperature": 0.0, "excluded": (1, 4)}, [0, 0, 0, 1, 0]),
    ({"excluded": (0, 1)}, np.array([0, 0, 0.05, 0.3, 0.15]) / 0.5),
  ],
)
def test_frequencies(settings, expected):
  """Within four standard deviations of the mean of 4,000 draws."""
  found = frequencies(**settings)[0]
  spread = np.sqrt(np.asarray(expected) * (1 - np.asarray(expected)) / DRAWS)
  assert np.all(np.abs(found - expected) <= 4 * spread)


def test_rows_are_independent_and_ties_go_to_the_first():
  assert np.array_equal(frequencies(temperature=0.0)[1], [1, 0, 0, 0, 0])
  assert np.all(np.abs(frequencies()[1] - 0.2) < 0.03)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"temperature": -1.0}, r"temperature: expected 0 \(greedy\) or a positive number, got -1.0"),
    ({"temperature": float("nan")}, "temperature: expected"),
    ({"top_k": 0}, "top_k: expected at least 1, got 0"),
    ({"top_p": 0.0}, "top_p: expected a probability above 0, got 0.0"),
    ({"top_p": 1.5}, "top_p: expected a probability above 0, got 1.5"),
  ],
)
def test_malformed(settings, message):
  with pytest.raises(ValueError, match=message):
    Sampling(**settings)
