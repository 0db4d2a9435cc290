"""Wrong calls of linear attention: the right kind of error, with what was expected and what came."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import linear, linear_state
from mgk_jax.kernels.linear_state import LinearState

B, T, S, N, M, H, V = 2, 5, 7, 3, 2, 4, 6


def zeros(*shape, dtype=np.float32):
  return np.zeros(shape, dtype)


def mixture(query=None, key=None, value=None, **options):
  query = zeros(B, T, N, H) if query is None else query
  key = zeros(B, S, N, M, H) if key is None else key
  return linear.mixture_linear_attention(query, key, zeros(B, S, N, V) if value is None else value, **options)


def plain(query=None, key=None, value=None, **options):
  query = zeros(B, T, N, H) if query is None else query
  key = zeros(B, S, N, H) if key is None else key
  return linear.linear_attention(query, key, zeros(B, S, N, V) if value is None else value, **options)


def state(key=None, value=None, **options):
  key, value = zeros(B, S, N, M, H) if key is None else key, zeros(B, S, N, V) if value is None else value
  return linear_state.mixture_linear_attention_state(key, value, **options)


def step(state=None, query=None, key=None, value=None, **options):
  state = LinearState.init(B, N, H, V) if state is None else state
  query = zeros(B, 1, N, H) if query is None else query
  key = zeros(B, 1, N, M, H) if key is None else key
  value = zeros(B, 1, N, V) if value is None else value
  return linear_state.mixture_linear_attention_step(state, query, key, value, **options)


WRONG_CALLS = [
  (mixture, {"query": zeros(B, T, H)}, ValueError, "query: expected shape [B, T, N, H], got [2, 5, 4]"),
  (mixture, {"key": zeros(B, S, N, H)}, ValueError, "key: expected shape [B, S, N, M, H], got [2, 7, 3, 4]"),
  (mixture, {"key": zeros(B, S, 2, M, H)}, ValueError, "[2, 7, 3, 2, 4] to match query, got [2, 7, 2, 2, 4]"),
  (mixture, {"value": zeros(B, T, N, V)}, ValueError, "[2, 7, 3, 6] to match query and key, got [2, 5, 3, 6]"),
  (mixture, {"value": zeros(B, S, N, V, dtype=np.float16)}, TypeError, "of one dtype, got query float32"),
  (mixture, {"query": zeros(B, T, N, H, dtype=np.int32)}, TypeError, "query: expected a floating-point dtype"),
  (mixture, {"query": [[0.0]]}, TypeError, "query: expected an array, got list"),
  (mixture, {"log_prior": zeros(M, N)}, ValueError, "[3, 2] or [S, N, M] = [7, 3, 2], got [2, 3]"),
  (mixture, {"log_prior": 0.5}, TypeError, "log_prior: expected an array, got float"),
  (mixture, {"mask": np.ones((B, N, T, T), bool)}, ValueError, "[2, 3, 5, 7], got [2, 3, 5, 5]"),
  (mixture, {"mask": zeros(T, S)}, TypeError, "mask: expected dtype bool (True = attend), got float32"),
  (mixture, {"is_causal": 1}, TypeError, "is_causal: expected a Python bool (it is static), got int"),
  (mixture, {"query_seq_lengths": np.ones(3, int)}, ValueError, "query_seq_lengths: expected shape [B] = [2], got [3]"),
  (mixture, {"key_value_seq_lengths": zeros(B)}, TypeError, "key_value_seq_lengths: expected integers, got float32"),
  (mixture, {"implementation": "fast"}, ValueError, "one of ('xla', 'pallas', 'reference', None), got 'fast'"),
  (mixture, {"feature_map": "exp"}, ValueError, "expected one of ('elu', 'relu', 'favor', 'dpfp'), got 'exp'"),
  (
    mixture, {"mask": np.ones((T, S), bool), "implementation": "xla"}, NotImplementedError,
    "expected a mask that is the same for all queries, of shape [B|1, N|1, 1, S|1], got [1, 1, 5, 7]",
  ),
  (plain, {"key": zeros(B, S, N, M, H)}, ValueError, "key: expected shape [B, S, N, H], got [2, 7, 3, 2, 4]"),
  (plain, {"query": zeros(B, T, N, 5)}, ValueError, "key: expected shape [B, S, N, H] = [2, 7, 3, 5]"),
  (plain, {"value": zeros(B, S, N, 0)}, ValueError, "at least one element, got V = 0"),
  (state, {"key": zeros(B, S, N, H)}, ValueError, "key: expected shape [B, S, N, M, H], got [2, 7, 3, 4]"),
  (state, {"value": zeros(B, 1, N, V)}, ValueError, "value: expected shape [B, S, N, V] = [2, 7, 3, 6]"),
  (state, {"mask": np.ones((T, S), bool)}, ValueError, "[B, N, T, S] = [2, 3, 1, 7], got [5, 7]"),
  (step, {"query": zeros(B, 2, N, H)}, ValueError, "expected as many keys as queries, got query length T = 2"),
  (step, {"key": zeros(B, 3, N, M, H), "value": zeros(B, 3, N, V)}, ValueError, "and key length S = 3"),
  (step, {"log_prior": zeros(S, N, M)}, ValueError, "[3, 2] or [S, N, M] = [1, 3, 2], got [7, 3, 2]"),
  (step, {"state": zeros(B, N, H, V)}, TypeError, "state: expected a LinearState, got ndarray"),
  (step, {"feature_map": "dpfp"}, ValueError, "kv of shape [B, N, F, V] = [2, 3, 8, 6], got [2, 3, 4, 6]"),
  (step, {"feature_map": "cos"}, ValueError, "expected one of ('elu', 'relu', 'favor', 'dpfp'), got 'cos'"),
]  # fmt: skip


@pytest.mark.parametrize(("call", "arguments", "error", "message"), WRONG_CALLS)
def test_wrong_calls(call, arguments, error, message):
  with pytest.raises(error) as caught:
    call(**arguments)
  assert message in str(caught.value)


@pytest.mark.parametrize("call", [mixture, plain, step])
def test_right_calls(call):
  """The calls that the table varies are right themselves."""
  result = call()
  out = result[0] if isinstance(result, tuple) else result
  assert out.shape[0] == B and out.shape[2:] == (N, V) and jnp.all(jnp.isfinite(out))


@pytest.mark.parametrize("is_causal", [False, True])
def test_empty_batch(is_causal):
  query, key, value = zeros(0, T, N, H), zeros(0, S, N, M, H), zeros(0, S, N, V)
  gradient = jax.jit(
    jax.grad(lambda key: jnp.sum(linear.mixture_linear_attention(query, key, value, is_causal=is_causal)))
  )
  assert gradient(key).shape == key.shape
