"""Segments are the mask that says the same, in every implementation: values and gradients."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import mgk_jax
from mgk_jax.kernels import flash, pallas, pallas_gpu

B, T, N, M, H = 2, 150, 2, 2, 8


def segments(length, seed):
  """Packed sequences: ascending numbers, of which one in ten positions begins the next."""
  random = np.random.default_rng(seed)
  return jnp.asarray(np.cumsum(random.random((B, length)) < 0.1, axis=1), jnp.int32)


def as_mask(queries, keys):
  return (queries[:, :, None] == keys[:, None, :])[:, None]


def call(kind, inputs, **options):
  query, key, value, shift = inputs
  if kind == "softmax":
    return mgk_jax.softmax_attention(query, key[:, :, :, 0], value, **options)
  if kind.startswith("smgk"):
    estep = kind.partition(" ")[2] or "soft"
    return mgk_jax.shifted_mixture_attention(query, key[:, :, :, 0], value, shift, estep=estep, **options)
  return mgk_jax.mixture_attention(query, key, value, **options)


def inputs(S):
  keys = jax.random.split(jax.random.key(0), 4)
  shapes = (B, T, N, H), (B, S, N, M, H), (B, S, N, H), (N, M, H)
  return [jax.random.normal(key, shape) for key, shape in zip(keys, shapes, strict=True)]


def value_and_gradients(kind, arrays, **options):
  @jax.jit
  def run(arrays):
    output, pull_back = jax.vjp(lambda arrays: call(kind, arrays, **options), arrays)
    return output, pull_back(jnp.sin(output))

  return run(arrays)


@functools.cache
def expected(kind, is_causal):
  S = T if is_causal else 130
  ids = segments(T, 1), segments(T, 1) if is_causal else segments(S, 2)
  lengths = {"key_value_seq_lengths": np.array([S, S - 40])}
  options = {"is_causal": is_causal, **lengths}
  arrays = inputs(S)
  results = value_and_gradients(kind, arrays, mask=as_mask(*ids), implementation="reference", **options)
  return arrays, ids[0] if is_causal else ids, options, results


CASES = [("mgk", True), ("smgk", False), ("smgk hard", True), ("softmax", False)]
QUICK = {"xla": CASES, "pallas": CASES[1:3], "pallas on a GPU": CASES[::3]}


@pytest.mark.parametrize(
  ("kind", "is_causal", "platform"),
  [
    pytest.param(*case, platform, marks=() if case in quick else pytest.mark.slow)
    for platform, quick in QUICK.items()
    for case in CASES
  ],
)
def test_segments_are_a_mask(kind, is_causal, platform, monkeypatch):
  if platform == "pallas on a GPU":
    monkeypatch.setattr(pallas, "backend", lambda: flash.Backend(pallas_gpu, interpret=True))
  arrays, ids, options, results = expected(kind, is_causal)
  found = value_and_gradients(kind, arrays, segment_ids=ids, implementation=platform.split()[0], **options)
  for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(results), strict=True):
    np.testing.assert_allclose(got, wanted, atol=2e-5 * float(jnp.max(jnp.abs(wanted))))


def test_linear_attention_and_the_m_step():
  arrays = inputs(T)
  ids = segments(T, 1)
  query, key, value, _ = arrays
  for function, rest in ((mgk_jax.mixture_linear_attention, (value,)), (mgk_jax.em_prior, ())):
    options = {"implementation": "reference"} | ({} if rest else {"log_prior": None})
    with_ids = function(query, key, *rest, segment_ids=ids, **options)
    with_mask = function(query, key, *rest, mask=as_mask(ids, ids), **options)
    np.testing.assert_allclose(with_ids, with_mask, atol=1e-6)
  blocked = mgk_jax.em_prior(query, key, log_prior=None, segment_ids=ids, implementation="xla")
  np.testing.assert_allclose(blocked, with_ids, atol=1e-5)


def test_modules_take_them():
  module = mgk_jax.MixtureAttention(2, 8, rngs=nnx.Rngs(0))
  x, ids = jax.random.normal(jax.random.key(0), (B, 3, 20, 8)), segments(20, 3)
  ids = jnp.broadcast_to(ids[:, None], (B, 3, 20))
  mask = (ids[..., :, None] == ids[..., None, :])[:, :, None]
  np.testing.assert_allclose(module(x, segment_ids=ids), module(x, mask=mask), atol=1e-5)
  with pytest.raises(ValueError, match="segment_ids: expected"):
    module(x, segment_ids=ids[0])


def test_malformed():
  query, key, value, _ = inputs(T)
  with pytest.raises(ValueError, match=r"segment_ids: expected shape \[B, S\] = \[2, 150\], got \[2, 3\]"):
    mgk_jax.mixture_attention(query, key, value, segment_ids=(segments(T, 0), segments(3, 0)))
  with pytest.raises(TypeError, match="segment_ids: expected integers, got float32"):
    mgk_jax.mixture_attention(query, key, value, segment_ids=jnp.zeros((B, T)))
