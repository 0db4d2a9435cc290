"""Wrong calls: each raises the right kind of error, with a message that names what was expected and what came."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax

B, T, S, N, M, H, V = 2, 5, 7, 3, 2, 4, 6


def zeros(*shape, dtype=np.float32):
  return np.zeros(shape, dtype)


def mixture(query=None, key=None, value=None, **options):
  query = zeros(B, T, N, H) if query is None else query
  key = zeros(B, S, N, M, H) if key is None else key
  return mgk_jax.mixture_attention(query, key, zeros(B, S, N, V) if value is None else value, **options)


def shifted(shift=None, key=None, **options):
  key = zeros(B, S, N, H) if key is None else key
  shift = zeros(N, M, H) if shift is None else shift
  return mgk_jax.shifted_mixture_attention(zeros(B, T, N, H), key, zeros(B, S, N, V), shift, **options)


def softmax(query=None, key=None, value=None, **options):
  query = zeros(B, T, N, H) if query is None else query
  key = zeros(B, S, N, H) if key is None else key
  return mgk_jax.softmax_attention(query, key, zeros(B, S, N, V) if value is None else value, **options)


def weights(query=None, key=None, **options):
  query = zeros(B, T, N, H) if query is None else query
  return mgk_jax.mixture_attention_weights(query, zeros(B, S, N, M, H) if key is None else key, **options)


def shares(query=None, key=None, **options):
  query = zeros(B, T, N, H) if query is None else query
  return mgk_jax.responsibilities(query, zeros(B, S, N, M, H) if key is None else key, **options)


def em_prior(log_prior=None, key=None, **options):
  log_prior = zeros(N, M) if log_prior is None else log_prior
  key = zeros(B, S, N, M, H) if key is None else key
  return mgk_jax.em_prior(zeros(B, T, N, H), key, log_prior=log_prior, **options)


def em_variance(log_prior=None, **options):
  log_prior = zeros(N, M) if log_prior is None else log_prior
  return mgk_jax.em_variance(zeros(B, T, N, H), zeros(B, S, N, M, H), log_prior=log_prior, **options)


WRONG_CALLS = [
  # ranks and shapes
  (mixture, {"query": zeros(B, T, H)}, ValueError, "query: expected shape [B, T, N, H], got [2, 5, 4]"),
  (mixture, {"key": zeros(B, S, N, H)}, ValueError, "key: expected shape [B, S, N, M, H], got [2, 7, 3, 4]"),
  (mixture, {"key": zeros(B, S, N, M, H + 1)}, ValueError, "key: expected shape [B, S, N, M, H] = [2, 7, 3, 2, 4] to match query, got [2, 7, 3, 2, 5]"),
  (mixture, {"key": zeros(B + 1, S, N, M, H)}, ValueError, "key: expected shape [B, S, N, M, H] = [2, 7, 3, 2, 4] to match query, got [3, 7, 3, 2, 4]"),
  (mixture, {"key": zeros(B, S, 1, M, H)}, ValueError, "key: expected shape [B, S, N, M, H] = [2, 7, 3, 2, 4] to match query, got [2, 7, 1, 2, 4]"),
  (mixture, {"value": zeros(B, T, N, V)}, ValueError, "value: expected shape [B, S, N, V] = [2, 7, 3, 6] to match query and key, got [2, 5, 3, 6]"),
  (mixture, {"value": zeros(B, S, N)}, ValueError, "value: expected shape [B, S, N, V], got [2, 7, 3]"),
  (mixture, {"key": zeros(B, S, N, 0, H)}, ValueError, "expected every axis but the batch to have at least one element, got M = 0"),
  (softmax, {"query": zeros(B, 0, N, H)}, ValueError, "expected every axis but the batch to have at least one element, got T = 0"),
  (softmax, {"key": zeros(B, S, N, M, H)}, ValueError, "key: expected shape [B, S, N, H], got [2, 7, 3, 2, 4]"),
  (shifted, {"key": zeros(B, S, N, M, H)}, ValueError, "key: expected shape [B, S, N, H], got [2, 7, 3, 2, 4]"),
  (shifted, {"shift": zeros(M, H)}, ValueError, "shift: expected shape [N, M, H], got [2, 4]"),
  (shifted, {"shift": zeros(M, N, H)}, ValueError, "shift: expected shape [N, M, H] = [3, 3, 4] to match query, got [2, 3, 4]"),
  (weights, {"shift": zeros(N, M, H)}, ValueError, "key: expected shape [B, S, N, H], got [2, 7, 3, 2, 4]"),
  (weights, {"query": zeros(B, T, N + 1, H)}, ValueError, "key: expected shape [B, S, N, M, H] = [2, 7, 4, 2, 4] to match query, got [2, 7, 3, 2, 4]"),
  (shares, {"key": zeros(B, S, N, H)}, ValueError, "key: expected shape [B, S, N, M, H], got [2, 7, 3, 4]"),
  # kinds of arrays
  (mixture, {"query": zeros(B, T, N, H, dtype=np.int32)}, TypeError, "query: expected a floating-point dtype (float32, bfloat16, …), got int32"),
  (mixture, {"query": [[1.0]]}, TypeError, "query: expected an array, got list"),
  (mixture, {"value": jnp.zeros((B, S, N, V), jnp.bfloat16)}, TypeError, "expected query, key, value of one dtype, got query float32, key float32, value bfloat16"),
  (softmax, {"value": "value"}, TypeError, "value: expected an array, got str"),
  (shifted, {"shift": zeros(N, M, H, dtype=bool)}, TypeError, "shift: expected a floating-point dtype (float32, bfloat16, …), got bool"),
  (shares, {"query": zeros(B, T, N, H, dtype=np.complex64)}, TypeError, "query: expected a floating-point dtype (float32, bfloat16, …), got complex64"),
  # prior and variance
  (mixture, {"log_prior": zeros(M)}, ValueError, "log_prior: expected shape [N, M] = [3, 2] or [S, N, M] = [7, 3, 2], got [2]"),
  (mixture, {"log_prior": zeros(T, N, M)}, ValueError, "log_prior: expected shape [N, M] = [3, 2] or [S, N, M] = [7, 3, 2], got [5, 3, 2]"),
  (shifted, {"log_prior": [[0.5, 0.5]] * N}, TypeError, "log_prior: expected an array, got list"),
  (mixture, {"log_prior": zeros(S, N, M, dtype=np.int32)}, TypeError, "log_prior: expected a floating-point dtype (float32, bfloat16, …), got int32"),
  (mixture, {"log_prior": zeros(M), "estep": "hard"}, ValueError, "log_prior: expected shape [N, M] = [3, 2] or [S, N, M] = [7, 3, 2], got [2]"),
  (mixture, {"variance": 0.0}, ValueError, "variance: expected positive finite values, got 0.0"),
  (mixture, {"variance": np.array([1.0, -1.0])}, ValueError, "variance: expected positive finite values, got [ 1. -1.]"),
  (shifted, {"variance": zeros(3) + 1}, ValueError, "variance: expected a scalar or shape [M] = [2], got [3]"),
  (weights, {"variance": zeros(N, M) + 1}, ValueError, "variance: expected a scalar or shape [M] = [2], got [3, 2]"),
  (mixture, {"variance": float("nan")}, ValueError, "variance: expected positive finite values, got nan"),
  (mixture, {"variance": jnp.array([1, 2])}, TypeError, "variance: expected a floating-point dtype, got int32"),
  (mixture, {"variance": "auto"}, TypeError, "variance: expected a number or an array, got str"),
  # masks and lengths
  (mixture, {"mask": zeros(T, S)}, TypeError, "mask: expected dtype bool (True = attend), got float32"),
  (softmax, {"mask": zeros(S, T, dtype=bool)}, ValueError, "mask: expected a shape broadcastable to [B, N, T, S] = [2, 3, 5, 7], got [7, 5]"),
  (shifted, {"mask": zeros(1, B, N, T, S, dtype=bool)}, ValueError, "mask: expected a shape broadcastable to [B, N, T, S] = [2, 3, 5, 7], got [1, 2, 3, 5, 7]"),
  (weights, {"mask": zeros(B, T, S, dtype=bool)}, ValueError, "mask: expected a shape broadcastable to [B, N, T, S] = [2, 3, 5, 7], got [2, 5, 7]"),
  (shares, {"mask": [True]}, TypeError, "mask: expected a boolean array, got list"),
  (mixture, {"is_causal": "yes"}, TypeError, "is_causal: expected a Python bool (it is static), got str"),
  (mixture, {"key_value_seq_lengths": np.array([3.0, 4.0])}, TypeError, "key_value_seq_lengths: expected integers, got float32"),
  (softmax, {"key_value_seq_lengths": np.array([3])}, ValueError, "key_value_seq_lengths: expected shape [B] = [2], got [1]"),
  (softmax, {"query_seq_lengths": np.array([[3, 4]])}, ValueError, "query_seq_lengths: expected shape [B] = [2], got [1, 2]"),
  (shifted, {"query_seq_lengths": 3}, ValueError, "query_seq_lengths: expected shape [B] = [2], got []"),
  (mixture, {"query_seq_lengths": np.array([True, False])}, TypeError, "query_seq_lengths: expected integers, got bool"),
  # names and dropout
  (mixture, {"estep": "medium"}, ValueError, "estep: expected one of ('soft', 'hard'), got 'medium'"),
  (shares, {"estep": None}, ValueError, "estep: expected one of ('soft', 'hard'), got None"),
  (mixture, {"implementation": "cuda"}, ValueError, "implementation: expected one of ('xla', 'pallas', 'cudnn', 'reference', None), got 'cuda'"),
  (softmax, {"dropout_rate": 0.1}, ValueError, "dropout_rate=0.1 needs dropout_rng: expected a jax.random key, got None"),
  (mixture, {"dropout_rate": 1.0, "dropout_rng": jax.random.key(0)}, ValueError, "dropout_rate: expected 0 <= rate < 1, got 1.0"),
  (shifted, {"dropout_rate": -0.1}, ValueError, "dropout_rate: expected 0 <= rate < 1, got -0.1"),
  (mixture, {"dropout_rate": jnp.float32(0.1)}, TypeError, "dropout_rate: expected a Python number (it is static), got ArrayImpl"),
  (mixture, {"dropout_rate": 0.1, "dropout_rng": 0}, TypeError, "dropout_rng: expected a jax.random key, got int"),
  # the EM step
  (em_prior, {"log_prior": zeros(M)}, ValueError, "log_prior: expected shape [N, M] = [3, 2] or [S, N, M] = [7, 3, 2], got [2]"),
  (em_prior, {"key": zeros(B, S, N, H)}, ValueError, "key: expected shape [B, S, N, M, H], got [2, 7, 3, 4]"),
  (em_prior, {"implementation": "fast"}, ValueError, "implementation: expected one of ('xla', 'reference', None), got 'fast'"),
  (em_prior, {"estep": "harder"}, ValueError, "estep: expected one of ('soft', 'hard'), got 'harder'"),
  (em_prior, {"shift": zeros(N, M, H)}, ValueError, "key: expected shape [B, S, N, H], got [2, 7, 3, 2, 4]"),
  (em_variance, {"variance": np.float32(-1)}, ValueError, "variance: expected positive finite values, got -1.0"),
  (em_variance, {"mask": zeros(T, S)}, TypeError, "mask: expected dtype bool (True = attend), got float32"),
]  # fmt: skip


@pytest.mark.parametrize(
  ("function", "arguments", "error", "message"),
  WRONG_CALLS,
  ids=[f"{function.__name__}-{message}" for function, _, _, message in WRONG_CALLS],
)
def test_wrong_call(function, arguments, error, message):
  with pytest.raises(error, match=f"^{re.escape(message)}$"):
    function(**arguments)


@pytest.mark.parametrize("function", [mixture, shifted, softmax, weights, shares, em_prior, em_variance])
def test_the_right_call_is_accepted(function):
  jax.eval_shape(function)


@pytest.mark.parametrize(
  "arguments",
  [
    {"variance": 2},
    {"variance": np.float64(2)},
    {"variance": np.array([1, 2])},
    {"variance": jnp.float32(2)},
    {"variance": jnp.ones(M, jnp.bfloat16)},
    {"mask": np.ones(S, bool)},
    {"mask": np.ones((), bool)},
    {"mask": np.ones((N, 1, S), bool)},
    {"is_causal": np.True_},
    {"key_value_seq_lengths": np.array([7, 3], np.uint8), "query_seq_lengths": [5, 2]},
    {"dropout_rate": 0, "dropout_rng": None},
    {"dropout_rate": 0.5, "dropout_rng": jax.random.PRNGKey(0)},
    {"log_prior": jnp.zeros((N, M), jnp.bfloat16)},
  ],
  ids=str,
)
def test_unusual_but_right_calls_are_accepted(arguments):
  assert jax.eval_shape(lambda: mixture(**arguments)).shape == (B, T, N, V)


def test_errors_are_raised_while_tracing():
  """The checks need no values, so that they hold under jit as well."""
  with pytest.raises(ValueError, match=re.escape("variance: expected a scalar or shape [M] = [2], got [3]")):
    jax.jit(lambda variance: mixture(variance=variance))(jnp.ones(3))
