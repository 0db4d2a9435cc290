"""Decoding token by token gives the rows of the parallel causal pass."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax.nn import MixtureAttention, from_name
from tests.nn import projecting
from tests.nn.compiling import call, jit

B, T, D = 2, 6, 8


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def decode(module, x, **arguments):
  """All outputs, one token at a time in one compiled step."""
  module.init_cache(x.shape)
  graphdef, state = nnx.split(module)

  @jit
  def step(state, token):
    module = nnx.merge(graphdef, state)
    out = module(token, decode=True, **arguments)
    return out, nnx.state(module)

  outputs = []
  for i in range(x.shape[-2]):
    out, state = step(state, x[..., i : i + 1, :])
    outputs.append(out)
  nnx.update(module, state)
  return jnp.concatenate(outputs, axis=-2)


@pytest.mark.parametrize(
  ("name", "batch", "arguments"),
  [
    ("softmax", (B,), {}),
    ("linear", (2, 3), {}),
    ("mgk", (2, 3), {"prior": "em", "max_len": T, "deterministic": True}),
    ("smgk", (B,), {"prior_scope": "position", "max_len": 9, "num_kv_heads": 1}),
    ("smgk", (), {"estep": "hard"}),
    ("mlk", (B,), {"prior_scope": "position", "max_len": T}),
    ("mlk", (B,), {"feature_map": "favor", "num_kv_heads": 1}),
    ("smlk", (), {"num_components": 3}),
  ],
  ids=str,
)
def test_steps_are_the_causal_pass(name, batch, arguments):
  module = projecting.from_zeros(from_name, name, 2, D, **arguments)
  x = normal(1, *batch, T, D)
  np.testing.assert_allclose(decode(module, x), call(module, x, is_causal=True), atol=2e-5)
  assert module.cache_index[...] == T


def test_what_the_caches_hold():
  def shapes(**arguments):
    module = MixtureAttention(2, D, rngs=nnx.Rngs(0), **arguments)
    module.init_cache((B, 100, D))
    return {"/".join(path): x.shape for path, x in nnx.to_flat_state(nnx.state(module, nnx.Cache))}

  values = {"cached_value": (B, 100, 2, 4), "cache_index": ()}
  assert shapes() == {"cached_key": (B, 100, 2, 2, 4), **values}
  assert shapes(keys="shifted") == {"cached_key": (B, 100, 2, 4), **values}
  state = {"cached_key": (B, 2, 4), "cached_value": (B, 2, 4, 4), "cached_peak": (B, 2), "cache_index": ()}
  assert shapes(kernel="linear") == state
  assert shapes(kernel="linear", num_kv_heads=1) == state


def test_a_mask_applies_to_the_cache():
  module = projecting.from_zeros(MixtureAttention, 2, D)
  x = normal(1, B, T, D)
  mask = np.ones((B, 1, 1, T), bool)
  mask[0, ..., 0] = False  # the first example began one token later
  expected = call(module, x, mask=mask, is_causal=True)
  np.testing.assert_allclose(decode(module, x, mask=mask), expected, atol=2e-5)


@pytest.mark.parametrize(
  ("name", "arguments"),
  [("mgk", {"prior_scope": "position", "max_len": T}), ("smgk", {"estep": "hard", "num_kv_heads": 1})],
)
def test_a_full_cache_slides(name, arguments):
  """Whether tokens come one by one or several at once, a query sees the last C of them, its own included."""
  C = 4
  module = projecting.from_zeros(from_name, name, 2, D, **arguments, implementation="reference")
  x = normal(1, B, T, D)
  age = np.arange(T)[:, None] - np.arange(T)
  expected = call(module, x, mask=(age >= 0) & (age < C))

  @jit
  def run(x):
    outputs = []
    for lengths in ([5, 1], [2, 1, 3]):
      cache, parts = module.make_cache(B, C), []
      for part in jnp.split(x, np.cumsum(lengths)[:-1], axis=1):
        out, cache = module.extend(part, cache)
        parts.append(out)
      outputs.append(jnp.concatenate(parts, axis=1))
    return outputs

  for found in run(x):
    np.testing.assert_allclose(found, expected, atol=2e-5)


def test_decoding_leaves_an_em_prior_alone():
  module = projecting.from_zeros(MixtureAttention, 2, D, prior="em", max_len=T)
  before = np.asarray(module.prior[...])
  decode(module, normal(1, B, T, D), deterministic=False)
  assert np.array_equal(module.prior[...], before)


def test_errors():
  module = MixtureAttention(2, D, rngs=nnx.Rngs(0), decode=True)
  token = normal(1, B, 1, D)
  with pytest.raises(ValueError, match=r"expected an initialised cache, got none; call init_cache"):
    module(token)
  module.init_cache((B, T, D))
  with pytest.raises(ValueError, match=r"expected no mask \(2 tokens at once\), got one"):
    module(normal(1, B, 2, D), mask=np.ones((B, 1, 2, T), bool))
  with pytest.raises(ValueError, match=r"expected the batch axes of the cache, .*, got \[3\]"):
    module(normal(1, 3, 1, D))
  with pytest.raises(ValueError, match=r"expected no sequence lengths"):
    module(token, key_value_seq_lengths=np.array([1, 1]))
  with pytest.raises(TypeError, match=r"expected batch_size and max_length of a cache, got None and 5"):
    nnx.view(MixtureAttention(2, D, rngs=nnx.Rngs(0)), decode=True, max_length=5)
  linear = MixtureAttention(2, D, kernel="linear", rngs=nnx.Rngs(0), decode=True)
  linear.init_cache((B, T, D))
  with pytest.raises(ValueError, match=r"expected no mask \(linear attention keeps no tokens apart\), got one"):
    linear(token, mask=np.ones((B, 1, 1, T), bool))
