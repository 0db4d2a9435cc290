"""What `MixtureAttention` must not be asked for, and what it says then."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax.nn import MixtureAttention

B, T, S, D = 2, 5, 7, 8


def make(**arguments):
  return MixtureAttention(2, D, **arguments, rngs=nnx.Rngs(0))


@pytest.mark.parametrize(
  ("arguments", "error", "message"),
  [
    ({"kernel": "rbf"}, ValueError, r"kernel: expected one of \('gaussian', 'linear', 'softmax'\), got 'rbf'"),
    ({"keys": "shared"}, ValueError, r"keys: expected one of .*got 'shared'"),
    ({"estep": "medium"}, ValueError, r"estep: expected one of .*got 'medium'"),
    ({"prior": "none"}, ValueError, r"prior: expected one of .*got 'none'"),
    ({"prior_scope": "layer"}, ValueError, r"prior_scope: expected one of .*got 'layer'"),
    ({"prior": "em"}, ValueError, r"prior='em' keeps a prior for every key position: expected max_len=.*got None"),
    ({"prior_scope": "position"}, ValueError, r"prior_scope='position' keeps.*expected max_len=.*got None"),
    ({"num_components": 0}, ValueError, r"num_components: expected at least 1, got 0"),
    ({"num_components": 2.0}, TypeError, r"num_components: expected an int, got float"),
    ({"kernel": "softmax", "num_components": 2}, ValueError, r"kernel='softmax': expected num_components=1"),
    ({"kernel": "softmax", "keys": "shifted"}, ValueError, r"kernel='softmax': expected keys='projected'"),
    ({"kernel": "linear", "estep": "hard"}, ValueError, r"kernel='linear': expected estep='soft'.*got estep='hard'"),
    (
      {"kernel": "linear", "prior": "em", "max_len": 4},
      ValueError,
      r"kernel='linear': expected prior='sgd' or 'fixed'",
    ),
    ({"kernel": "linear", "variance": 1.0}, ValueError, r"kernel='linear': expected variance=None"),
    ({"kernel": "linear", "dropout_rate": 0.1}, ValueError, r"kernel='linear': expected dropout_rate=0 .*got .*0.1"),
    ({"kernel": "linear", "feature_map": "exp"}, ValueError, r"feature_map: expected one of .*got 'exp'"),
    ({"feature_map": "relu"}, ValueError, r"expected no feature_map \(only kernel='linear' has one\), got .*'relu'"),
    ({"variance": -1.0}, ValueError, r"variance: expected positive values, got -1.0"),
    ({"variance": (1.0, 2.0, 3.0)}, ValueError, r"variance: expected a scalar or one value for each of 2 components"),
    ({"dropout_rate": 1.0}, ValueError, r"dropout_rate: expected 0 <= rate < 1, got 1.0"),
    ({"qkv_features": 7}, ValueError, r"qkv_features: expected a multiple of num_heads=2 .*got 7"),
    (
      {"qkv_features": 8, "head_dim": 8},
      ValueError,
      r"qkv_features: expected num_heads \* head_dim = 16 or None, got 8",
    ),
    ({"num_kv_heads": 3}, ValueError, r"num_kv_heads: expected a divisor of num_heads=2, got 3"),
    (
      {"attention_fn": nnx.dot_product_attention},
      ValueError,
      r"attention_fn: expected None.*by kernel, keys and estep",
    ),
    ({"qkv_dot_general": jax.lax.dot_general}, ValueError, r"qkv_dot_general: expected None.*assign LinearGeneral"),
  ],
)
def test_constructor_errors(arguments, error, message):
  with pytest.raises(error, match=message):
    make(**arguments)


def test_call_errors():
  module, x = make(prior_scope="position", max_len=T), jnp.ones((B, T, D))
  with pytest.raises(ValueError, match=r"inputs_q: expected shape \[2, length, 8\], got \[2, 5, 6\]"):
    module(jnp.ones((B, T, 6)))
  with pytest.raises(ValueError, match=r"inputs_k: expected shape \[2, length, 8\], got \[3, 5, 8\]"):
    module(x, jnp.ones((3, T, D)))
  with pytest.raises(ValueError, match=r"expected inputs_k too"):
    module(x, None, x)
  with pytest.raises(ValueError, match=r"inputs_v: expected the length of inputs_k, 4, got 5"):
    module(x, x[:, :4], x)
  with pytest.raises(
    ValueError, match=r"mask: expected a shape broadcastable to \[2, heads, q, k\], got \[3, 1, 5, 5\]"
  ):
    module(x, mask=np.ones((3, 1, T, T), bool))
  with pytest.raises(ValueError, match=r"query_seq_lengths: expected the batch shape \[2\], got \[1\]"):
    module(x, query_seq_lengths=np.array([3]))
  with pytest.raises(ValueError, match=r"expected at most max_len=5 keys with a prior per position, got 7"):
    module(x, jnp.ones((B, S, D)))
  with pytest.raises(ValueError, match=r"(?s)input_positions: expected None.*rotary"):
    module(x, input_positions=jnp.zeros((B, T)))
