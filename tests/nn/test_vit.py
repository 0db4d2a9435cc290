"""`ViT`: what it computes, from any attention, and what it does not accept."""

import dataclasses
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax import ViT, ViTConfig
from mgk_jax.nn import names, vit
from tests.nn.compiling import call, jit

SMALL = {
  "num_classes": 3,
  "image_size": (8, 12),
  "patch_size": (4, 2),
  "num_layers": 1,
  "emb_dim": 6,
  "mlp_dim": 10,
  "num_heads": 2,
  "head_dim": 4,
  "classifier_dim": 5,
}
IMAGES = np.random.default_rng(0).normal(size=(2, 8, 12, 3)).astype(np.float32)


def make(**settings):
  model = ViT(ViTConfig(**SMALL | settings), rngs=nnx.Rngs(0))
  model.eval()
  return model


def definition(model, images):
  """The logits of a model of one block with MGK, in float64, from its parameters and the equations."""
  parameters = {
    ".".join(map(str, path)): np.float64(v[...]) for path, v in nnx.to_flat_state(nnx.state(model, nnx.Param))
  }

  def linear(name, x, axes=1):
    return np.tensordot(x, parameters[f"{name}.kernel"], axes) + parameters[f"{name}.bias"]

  def norm(name, x):
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)
    return x * parameters[f"{name}.scale"] + parameters[f"{name}.bias"]

  def gelu(x):
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2

  patches = [[image[r : r + 4, c : c + 2].ravel() for r in (0, 4) for c in range(0, 12, 2)] for image in images]
  x = linear("patches", np.float64(patches))
  if model.config.pooling == "cls":
    x = np.stack([np.concatenate([parameters["class_token"][None], row]) for row in x])
  x = x + parameters["position_embedding"]
  y = norm("blocks.0.norm1", x)
  query, key, value = (linear(f"blocks.0.attention.{name}", y) for name in ("query", "key", "value"))
  distances = np.sum((query[:, :, None, :, None] - key[:, None]) ** 2, axis=-1)  # [B, T, S, N, M]
  scores = np.sum(parameters["blocks.0.attention.prior"] * np.exp(-distances / (2 * math.sqrt(4))), axis=-1)
  weights = scores / np.sum(scores, axis=2, keepdims=True)
  x = x + linear("blocks.0.attention.out", np.einsum("btsn,bsnh->btnh", weights, value), axes=2)
  x = x + linear("blocks.0.mlp_out", gelu(linear("blocks.0.mlp_in", norm("blocks.0.norm2", x))))
  x = norm("norm", x)
  pooled = x[:, 0] if model.config.pooling == "cls" else x.mean(axis=1)
  return linear("head.logits", np.maximum(linear("head.hidden", pooled), 0))


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_the_definition(pooling):
  model = make(attention="mgk", pooling=pooling)
  model.blocks[0].attention.prior[...] = jnp.asarray([[0.2, 0.8], [0.7, 0.3]])
  np.testing.assert_allclose(call(model, IMAGES), definition(model, IMAGES), atol=1e-5)


@pytest.mark.parametrize("attention", names.VARIANTS)
def test_every_attention_trains_all_of_its_parameters(attention):
  model = make(attention=attention, dropout_rate=0.0, attention_dropout_rate=0.0, implementation="reference")

  @jit
  def gradients(model, images):
    return nnx.grad(lambda model: jnp.sum(model(images, deterministic=False) ** 2))(model)

  for path, gradient in nnx.to_flat_state(gradients(model, IMAGES)):
    assert np.all(np.isfinite(gradient[...])), path
    assert np.any(gradient[...] != 0), path


def test_positions_are_learned_and_patches_have_no_order_without_them():
  model = make(pooling="mean")
  flipped = IMAGES.reshape(2, 2, 4, 12, 3)[:, ::-1].reshape(IMAGES.shape)  # the rows of patches, not of pixels
  assert not np.allclose(call(model, IMAGES), call(model, flipped), atol=1e-5)
  model.position_embedding[...] = jnp.zeros_like(model.position_embedding[...])
  np.testing.assert_allclose(call(model, IMAGES), call(model, flipped), atol=1e-6)


def test_an_em_prior_has_a_row_for_each_position():
  model = make(prior="em", attention="mgk", implementation="reference")
  prior = model.blocks[0].attention.prior
  assert prior.shape == (13, 2, 2)  # 2 × 6 patches and the class token

  @nnx.jit
  def train(model):
    model(IMAGES, deterministic=False)

  train(model)
  assert np.all(np.abs(prior[...] - 0.5).max(axis=(1, 2)) > 1e-6)


def test_bfloat16_and_remat():
  expected = call(make(), IMAGES)
  np.testing.assert_allclose(call(make(remat=True), IMAGES), expected, atol=1e-6)
  half = make(dtype=jnp.bfloat16)
  assert half.patches.kernel.dtype == jnp.float32
  np.testing.assert_allclose(call(half, IMAGES), expected, atol=0.05)  # roundings to 8 bits


def test_weights_of_the_class_token():
  model = make(implementation="reference")
  _, weights = nnx.capture(model, nnx.Intermediate)(IMAGES, deterministic=True, sow_weights=True)
  (weights,) = jax.tree.leaves(weights)
  assert weights.shape == (2, 2, 13, 13)
  np.testing.assert_allclose(jnp.sum(weights, axis=-1), 1.0, atol=1e-5)


def test_sizes():
  assert ViTConfig(num_classes=10).max_len == 65
  assert ViTConfig(num_classes=10, pooling="mean").max_len == 64
  settings = ViTConfig(num_classes=10, image_size=[16, 8], patch_size=8)  # a list, as it comes out of JSON
  assert (settings.image_size, settings.patch_size, settings.max_len) == ((16, 8), (8, 8), 3)
  assert hash(settings) == hash(dataclasses.replace(settings))
  assert vit.split(jnp.zeros((1, 16, 8, 3)), (8, 8)).shape == (1, 2, 192)


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"patch_size": 5}, ValueError, "patch_size: expected divisors of image_size=(8, 12), got (5, 5)"),
    ({"image_size": (8, 8, 3)}, ValueError, "image_size: expected an int or two, got (8, 8, 3)"),
    ({"image_size": "32"}, TypeError, "image_size: expected an int, got str"),
    ({"patch_size": 0}, ValueError, "patch_size: expected at least 1, got 0"),
    ({"channels": 1.0}, TypeError, "channels: expected an int, got float"),
    ({"pooling": "masked_mean"}, ValueError, "pooling: expected one of ('cls', 'mean'), got 'masked_mean'"),
    ({"attention": "gmk"}, ValueError, "attention: expected one of"),
  ],
)
def test_settings_that_are_not_allowed(settings, error, message):
  with pytest.raises(error, match=re.escape(message)):
    ViTConfig(**SMALL | settings)


def test_images_that_do_not_fit():
  model = make()
  with pytest.raises(ValueError, match=re.escape("images: expected shape [B, 8, 12, 3], got [2, 12, 8, 3]")):
    model(jnp.zeros((2, 12, 8, 3)))
  with pytest.raises(
    TypeError, match=re.escape("images: expected floating numbers, such as bytes / 127.5 - 1, got uint8")
  ):
    model(jnp.zeros((2, 8, 12, 3), jnp.uint8))
