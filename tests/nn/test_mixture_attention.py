"""`MixtureAttention` against the definition in numpy, for what its arguments can say; and what they must not say."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.sharding import NamedSharding, PartitionSpec

from mgk_jax.kernels import feature_maps
from mgk_jax.nn import EMPrior, FixedPrior, MixtureAttention, RandomProjection, code_shift, from_name
from tests.nn import projecting
from tests.nn.compiling import call, jit

B, T, S, D, E = 2, 5, 7, 8, 6


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def make(**arguments):
  return projecting.from_zeros(MixtureAttention, 2, D, **arguments)


@pytest.mark.parametrize(
  "arguments",
  [
    {},
    {"num_components": 3, "head_dim": 5, "out_features": 3},
    {"num_components": 1},
    {"keys": "shifted", "num_components": 3},
    {"keys": "shifted", "shift_init": code_shift, "prior_scope": "shared"},
    {"estep": "hard"},
    {"estep": "hard", "keys": "shifted", "variance": 2.0},
    {"prior": "fixed"},
    {"prior_scope": "position", "max_len": 9},
    {"prior": "em", "max_len": 9, "deterministic": True},
    {"variance": [1.0, 3.0], "learn_variance": True},
    {"keys": "shifted", "variance": (1.0, 3.0)},
    {"use_bias": False, "qkv_features": 12},
    {"kernel": "softmax"},
  ],
  ids=lambda arguments: ",".join(f"{name}={getattr(x, '__name__', x)}" for name, x in arguments.items()),
)
def test_is_the_definition(arguments):
  module = make(**arguments, in_kv_features=E, implementation="reference")
  x, y, z = normal(1, B, T, D), normal(2, B, S, E), normal(3, B, S, E)
  masks = {"mask": np.random.default_rng(4).random((B, 1, T, S)) < 0.7, "key_value_seq_lengths": np.array([S, 4])}
  np.testing.assert_allclose(call(module, x, y, z, **masks), projecting.output(module, x, y, z, **masks), atol=2e-5)


@pytest.mark.parametrize("name", ["linear", "mlk", "smlk"])
def test_linear_kernels_are_equation_14(name):
  module = projecting.from_zeros(from_name, name, 2, D, feature_map="relu")
  x = normal(1, B, T, D)
  query, key, value = (projecting.project(getattr(module, part), x) for part in ("query", "key", "value"))
  key = key if key.ndim == 5 else key[:, :, :, None]
  key = key if module.shift is None else key + projecting.array(module.shift)
  prior = np.ones((2, 1)) if module.prior is None else np.clip(projecting.array(module.prior), 0, 1)
  features = np.einsum("nm,bsnmh->bsnh", prior, np.maximum(key, 0))
  weights = np.einsum("btnh,bsnh->bnts", np.maximum(query, 0), features)
  weights /= np.maximum(weights.sum(-1, keepdims=True), 1e-30)
  expected = projecting.project(module.out, np.einsum("bnts,bsnh->btnh", weights, value), axes=2)
  got, intermediates = nnx.capture(module, nnx.Intermediate)(x, sow_weights=True)
  np.testing.assert_allclose(got, expected, atol=2e-5)
  np.testing.assert_allclose(intermediates["attention_weights"][0], weights, atol=1e-5)


@pytest.mark.parametrize("name", ["softmax", "mgk", "smgk"])
def test_sown_weights(name):
  module = projecting.from_zeros(from_name, name, 2, D, implementation="reference")
  x = normal(1, 3, B, T, D)
  _, intermediates = nnx.capture(module, nnx.Intermediate)(x, is_causal=True, sow_weights=True)
  (weights,) = intermediates["attention_weights"]
  expected = projecting.problem(module, x.reshape(-1, T, D), is_causal=True).weights
  np.testing.assert_allclose(weights, expected.reshape(3, B, 2, T, T), atol=1e-6)


@pytest.mark.parametrize("batch", [(), (4,), (2, 3)])
def test_leading_axes(batch):
  module = make(implementation="reference")
  x = normal(1, *batch, T, D)
  flat = x.reshape(-1, T, D)
  mask = np.random.default_rng(2).random((*batch, 1, T, T)) < 0.7
  lengths = np.random.default_rng(3).integers(1, T + 1, batch)
  got = call(module, x, mask=mask, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
  expected = projecting.output(
    module, flat, mask=mask.reshape(-1, 1, T, T),
    query_seq_lengths=lengths.reshape(-1), key_value_seq_lengths=lengths.reshape(-1),
  )  # fmt: skip
  np.testing.assert_allclose(got, expected.reshape(x.shape), atol=2e-5)
  causal = nnx.make_causal_mask(jnp.ones((*batch, T)))  # numbers, not booleans
  np.testing.assert_allclose(call(module, x, mask=causal), call(module, x, is_causal=True), atol=1e-6)


@pytest.mark.parametrize(
  "arguments", [{"learn_variance": True}, {"keys": "shifted", "prior_scope": "position", "max_len": T}], ids=str
)
def test_gradients_are_finite_and_reach_every_parameter(arguments):
  module = make(**arguments)
  prior = np.array(module.prior[...])
  prior[..., 0, :] = 0.0, 1.2  # clamped on both sides
  module.prior[...] = jnp.asarray(prior)
  graphdef, params, rest = nnx.split(module, nnx.Param, ...)
  gradients = jit(jax.grad(lambda params, x: jnp.sum(nnx.merge(graphdef, params, rest)(x) ** 2)))(
    params, normal(1, B, T, D)
  )
  for path, gradient in nnx.to_flat_state(gradients):
    assert np.all(np.isfinite(gradient[...])), path
    assert np.any(np.asarray(gradient[...]) != 0), path
  gradient = np.asarray(gradients["prior"][...])
  assert np.all(gradient[..., 0, :] == 0)
  assert np.any(gradient[..., 1, :] != 0)


def test_bfloat16():
  module = make(keys="shifted", dtype=jnp.bfloat16)
  x = normal(1, B, T, D)
  got = call(module, x)
  assert got.dtype == jnp.bfloat16
  # inputs, parameters and results are rounded to 8 bits, in sums of 8 products of size 1
  np.testing.assert_allclose(got.astype(np.float32), projecting.output(module, x), atol=0.06)


def test_dropout():
  x = normal(1, B, T, D)
  module = make(dropout_rate=0.5, broadcast_dropout=False, implementation="reference")
  with pytest.raises(ValueError, match=r"deterministic: expected True or False.*got None"):
    module(x)
  np.testing.assert_allclose(module(x, deterministic=True), projecting.output(module, x), atol=2e-5)
  first, second = module(x, deterministic=False), module(x, deterministic=False)
  assert not np.allclose(first, second)
  module.eval()
  assert np.array_equal(module(x), module(x))
  module.train()
  same = [module(x, rngs=nnx.Rngs(dropout=1)) for _ in range(2)]
  assert np.array_equal(*same)
  streamless = make(dropout_rate=0.5, keep_rngs=False, deterministic=False)
  with pytest.raises(ValueError, match=r"rngs: expected nnx.Rngs"):
    streamless(x)


def test_broadcast_dropout_drops_the_same_pairs_everywhere():
  for broadcast in (True, False):
    module = make(
      dropout_rate=0.5,
      broadcast_dropout=broadcast,
      deterministic=False,
      head_dim=D,
      use_bias=False,
      implementation="reference",
    )
    # Each token's value is a unit vector, and the output shows head 0's weights.
    x = np.broadcast_to(np.eye(D, dtype=np.float32), (2, D, D))
    module.value.kernel[...] = jnp.asarray(np.broadcast_to(x[0, :, None], (D, 2, D)))
    module.out.kernel[...] = jnp.asarray(np.stack([x[0], np.zeros((D, D), np.float32)]))
    dropped = np.asarray(call(module, x)) == 0
    assert 0.2 < np.mean(dropped) < 0.8
    assert np.array_equal(dropped[0], dropped[1]) == broadcast


def test_parameters_by_variant():
  def shapes(**arguments):
    return {"/".join(path): variable.shape for path, variable in nnx.to_flat_state(nnx.state(make(**arguments)))}

  softmax = shapes(kernel="softmax")
  assert softmax == {f"{name}/kernel": (D, 2, 4) for name in ("query", "key", "value")} | {
    f"{name}/bias": (2, 4) for name in ("query", "key", "value")
  } | {"out/kernel": (2, 4, D), "out/bias": (D,)}
  assert shapes(num_components=1) == softmax
  assert shapes() == {**softmax, "key/kernel": (D, 2, 2, 4), "key/bias": (2, 2, 4), "prior": (2, 2)}
  assert shapes(keys="shifted", num_components=3) == {**softmax, "shift": (2, 3, 4), "prior": (2, 3)}
  assert shapes(estep="hard", keys="shifted") == {**softmax, "shift": (2, 2, 4)}
  assert shapes(keys="shifted", prior_scope="shared")["prior"] == (1, 2)
  assert shapes(prior="em", max_len=9)["prior"] == (9, 2, 2)
  assert shapes(learn_variance=True)["log_variance"] == ()
  assert shapes(learn_variance=True, variance=(1, 2))["log_variance"] == (2,)
  assert isinstance(make(prior="em", max_len=9).prior, EMPrior)
  assert isinstance(make(prior="fixed").prior, FixedPrior)


def test_start():
  module = MixtureAttention(2, D, keys="shifted", head_dim=512, rngs=nnx.Rngs(0), num_components=4)
  assert np.all(module.prior[...] == 0.25)
  assert abs(np.std(module.shift[...]) - 1) < 0.05
  shift = code_shift(jax.random.key(0), (2, 2, 512))
  assert np.all(shift[:, 0] == 0)
  assert abs(np.std(shift[:, 1]) - 0.5) < 0.05


def test_favor_projection_is_drawn_saved_and_redrawable():
  first, second = (MixtureAttention(2, D, kernel="linear", feature_map="favor", rngs=nnx.Rngs(s)) for s in (0, 1))
  assert isinstance(first.projection, RandomProjection)
  assert not np.allclose(first.projection[...], second.projection[...])
  x = normal(1, B, T, D)
  before = first(x)
  nnx.update(second, nnx.state(first))
  np.testing.assert_allclose(call(second, x), before, atol=1e-6)
  second.projection[...] = feature_maps.favor(jax.random.key(7), 4).projection
  assert not np.allclose(second(x), before, atol=1e-4)
  given = feature_maps.favor(jax.random.key(7), 4)
  module = MixtureAttention(2, D, kernel="linear", feature_map=given, rngs=nnx.Rngs(0))
  np.testing.assert_allclose(module(x), second(x), atol=1e-6)


def test_functional_use():
  module = make(keys="shifted")
  x = normal(1, B, T, D)
  expected = projecting.output(module, x)
  np.testing.assert_allclose(call(module, x), expected, atol=2e-5)
  np.testing.assert_allclose(nnx.jit(lambda module, x: module(x))(module, x), expected, atol=2e-5)


def test_shardings_of_the_projections_get_a_component_axis():
  spec = PartitionSpec("data", None, "model", None)
  mixing = make().mixing
  assert mixing.key_sharding(spec, 4) == PartitionSpec("data", None, "model", None, None)
  assert mixing.key_sharding(PartitionSpec("data"), 4) == PartitionSpec("data")
  assert mixing.key_sharding(None, 4) is None
  assert make(keys="shifted").mixing.key_sharding(spec, 4) == spec
  named = NamedSharding(jax.make_mesh((1, 1), ("data", "model")), spec)
  assert mixing.key_sharding(named, 4).spec == PartitionSpec("data", None, "model", None, None)


def test_named_variants():
  for name, (kernel, keys, components) in {
    "softmax": ("softmax", "projected", 1), "linear": ("linear", "projected", 1), "mgk": ("gaussian", "projected", 2),
    "smgk": ("gaussian", "shifted", 2), "mlk": ("linear", "projected", 2), "smlk": ("linear", "shifted", 2),
  }.items():  # fmt: skip
    mixing = from_name(name, 2, D, rngs=nnx.Rngs(0)).mixing
    assert (mixing.kernel, mixing.keys, mixing.num_components) == (kernel, keys, components)
  module = from_name("smgk", num_heads=2, in_features=D, num_components=3, prior="em", max_len=9, rngs=nnx.Rngs(0))
  assert module.prior.shape == (9, 2, 3)
  with pytest.raises(ValueError, match=r"name: expected one of \('softmax', 'linear', 'mgk', .*got 'mkg'"):
    from_name("mkg", 2, D, rngs=nnx.Rngs(0))
  with pytest.raises(ValueError, match="'linear' means num_components=1: expected that or nothing, got 2"):
    from_name("linear", 2, D, num_components=2, rngs=nnx.Rngs(0))
