"""Swapping nnx.MultiHeadAttention for `MixtureAttention(kernel="softmax")`: the same weights give the same outputs."""

import inspect

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax.nn import MixtureAttention
from tests.nn.compiling import call

B, T, S, D, E = 2, 5, 7, 8, 6


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def both(num_heads=2, **arguments):
  theirs = nnx.MultiHeadAttention(num_heads, D, decode=False, rngs=nnx.Rngs(0), **arguments)
  for i, variable in enumerate(v for path, v in nnx.to_flat_state(nnx.state(theirs, nnx.Param)) if path[-1] == "bias"):
    variable[...] = normal(i, *variable.shape)
  ours = MixtureAttention(num_heads, D, kernel="softmax", rngs=nnx.Rngs(1), **arguments)
  nnx.update(ours, nnx.state(theirs, nnx.Param))
  return theirs, ours


def compare(theirs, ours, *inputs, **arguments):
  np.testing.assert_allclose(call(ours, *inputs, **arguments), call(theirs, *inputs, **arguments), atol=1e-5)


def test_constructor_and_call_have_its_arguments():
  for method in ("__init__", "__call__", "init_cache", "set_view"):
    theirs = inspect.signature(getattr(nnx.MultiHeadAttention, method)).parameters
    ours = inspect.signature(getattr(MixtureAttention, method)).parameters
    assert [name for name in ours if name in theirs] == list(theirs), method
    for name, parameter in theirs.items():
      assert ours[name].kind == parameter.kind, name
      if name not in ("attention_fn", "kernel_init", "bias_init") and not name.endswith("_metadata"):
        assert ours[name].default == parameter.default, name


def test_equal_seeds_start_equal():
  theirs = nnx.MultiHeadAttention(2, D, rngs=nnx.Rngs(0))
  ours = MixtureAttention(2, D, kernel="softmax", rngs=nnx.Rngs(0))
  for (path, a), (other_path, b) in zip(
    nnx.to_flat_state(nnx.state(theirs)), nnx.to_flat_state(nnx.state(ours)), strict=True
  ):
    assert path == other_path
    assert np.array_equal(a[...], b[...])


def test_self_attention_with_masks():
  theirs, ours = both()
  x = normal(1, B, T, D)
  mask = np.random.default_rng(2).random((B, 1, T, T)) < 0.7
  mask |= np.eye(T, dtype=bool)  # a row without an allowed key is zero here and the mean of the values there
  compare(theirs, ours, x, mask=mask)
  compare(theirs, ours, x, is_causal=True)
  compare(theirs, ours, normal(3, T, D))


def test_cross_attention_with_other_sizes():
  theirs, ours = both(in_kv_features=E, qkv_features=12, out_features=3, use_bias=False, normalize_qk=True)
  compare(theirs, ours, normal(1, B, T, D), normal(2, B, S, E), normal(3, B, S, E))


def test_grouped_heads():
  theirs, ours = both(num_heads=4, num_kv_heads=2)
  compare(theirs, ours, normal(1, B, T, D))


def test_dtype():
  theirs, ours = both(dtype=jnp.bfloat16)
  x = normal(1, B, T, D)
  a, b = call(theirs, x), call(ours, x)
  assert a.dtype == b.dtype == jnp.bfloat16
  np.testing.assert_allclose(a.astype(np.float32), b.astype(np.float32), atol=0.03)  # roundings to 8 bits


@pytest.mark.parametrize("by_view", [False, True])
def test_decoding(by_view):
  theirs, ours = both()
  x = normal(1, B, 4, D)
  theirs.decode = True
  theirs.init_cache(x.shape)
  if by_view:
    ours = nnx.view(ours, decode=True, batch_size=B, max_length=4)
  else:
    ours.decode = True
    ours.init_cache(x.shape)
  assert ours.cached_key.shape == theirs.cached_key.shape
  for i in range(4):
    np.testing.assert_allclose(ours(x[:, i : i + 1]), theirs(x[:, i : i + 1]), atol=1e-5)
