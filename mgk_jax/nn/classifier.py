"""An encoder with a classifier on its pooled output, for one sequence or for a pair."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from mgk_jax.nn import padding
from mgk_jax.nn.block import make_linear
from mgk_jax.nn.config import ClassifierConfig, DualEncoderConfig, ViTConfig
from mgk_jax.nn.encoder import STYLE, Encoder


class Classifier(nnx.Module):
  """Logits of one sequence: `Encoder`, pooling, and an MLP with one ReLU layer.

  Example:
    >>> config = mgk_jax.ClassifierConfig(vocab_size=257, max_len=128, num_classes=2, num_layers=1)
    >>> model = mgk_jax.Classifier(config, rngs=nnx.Rngs(0))
    >>> model(jnp.ones((8, 128), int), deterministic=True).shape
    (8, 2)
  """

  def __init__(self, config: ClassifierConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.encoder = Encoder(config.encoder(), rngs=rngs)
    self.head = Head(config, config.emb_dim, rngs=rngs)

  def __call__(
    self,
    tokens: Int[Array, "B L"],
    *,
    lengths: Int[Array, "B"] | None = None,
    mask: Bool[Array, "B L"] | None = None,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
    sow_weights: bool = False,
  ) -> Float[Array, "B C"]:
    """Logits [B, num_classes]; they do not depend on the amount of padding. Arguments as in `Encoder`."""
    pooled = pool(self.encoder, self.config, tokens, lengths, mask, deterministic, rngs, sow_weights)
    return self.head(pooled)


class DualEncoder(nnx.Module):
  """Logits of a pair: one `Encoder` for both, and an MLP on [a, b, a·b, a − b] of their pooled outputs.

  Example:
    >>> config = mgk_jax.DualEncoderConfig(vocab_size=257, max_len=128, num_layers=1)
    >>> model = mgk_jax.DualEncoder(config, rngs=nnx.Rngs(0))
    >>> model(jnp.ones((4, 128), int), jnp.ones((4, 100), int), deterministic=True).shape
    (4, 2)
  """

  def __init__(self, config: DualEncoderConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.encoder = Encoder(config.encoder(), rngs=rngs)
    self.head = Head(config, 4 * config.emb_dim, rngs=rngs)

  def __call__(
    self,
    tokens1: Int[Array, "B L1"],
    tokens2: Int[Array, "B L2"],
    *,
    lengths1: Int[Array, "B"] | None = None,
    lengths2: Int[Array, "B"] | None = None,
    mask1: Bool[Array, "B L1"] | None = None,
    mask2: Bool[Array, "B L2"] | None = None,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
    sow_weights: bool = False,
  ) -> Float[Array, "B C"]:
    """Logits [B, num_classes]. Arguments as in `Encoder`, for each sequence.

    Both are encoded as one batch of 2·B, the shorter array padded to the length of the other. An EM prior is thus
    updated once, from all of them.
    """
    pair = padding.join(tokens1, tokens2, lengths1, lengths2, mask1, mask2)
    a, b = jnp.split(pool(self.encoder, self.config, *pair, deterministic, rngs, sow_weights), 2)
    return self.head(jnp.concatenate([a, b, a * b, a - b], axis=-1))


class Head(nnx.Module):
  """The classifier: linear, ReLU, linear."""

  def __init__(self, config: ClassifierConfig | ViTConfig, inputs: int, *, rngs: nnx.Rngs):
    self.hidden = make_linear(inputs, config.classifier_dim, STYLE, config, rngs)
    self.logits = make_linear(config.classifier_dim, config.num_classes, STYLE, config, rngs)

  def __call__(self, x: Float[Array, "B D"]) -> Float[Array, "B C"]:
    """Logits in the dtype of the parameters."""
    return self.logits(jax.nn.relu(self.hidden(x)))


def pool(
  encoder: Encoder,
  config: ClassifierConfig,
  tokens: jax.Array,
  lengths: jax.Array | None,
  mask: jax.Array | None,
  deterministic: bool | None,
  rngs: nnx.Rngs | None,
  sow_weights: bool,
) -> jax.Array:
  """Encodes and pools: [B, emb_dim], summed in float32."""
  found = padding.find(tokens, lengths, mask)
  padding.check_length(tokens, config.max_len)
  mode: dict[str, Any] = {"deterministic": deterministic, "rngs": rngs, "sow_weights": sow_weights}
  if config.pooling == "cls":
    before = ((0, 0), (1, 0))
    tokens = jnp.pad(tokens.astype(jnp.int32), before, constant_values=config.vocab_size)  # the id past the vocabulary
    lengths = None if lengths is None else jnp.asarray(lengths) + 1
    mask = None if mask is None else jnp.pad(jnp.asarray(mask).astype(bool), before, constant_values=True)
    return encoder(tokens, lengths=lengths, mask=mask, **mode)[:, 0].astype(jnp.float32)
  encoded = encoder(tokens, lengths=lengths, mask=mask, **mode)
  total = jnp.sum(encoded, axis=1, dtype=jnp.promote_types(encoded.dtype, jnp.float32))
  if config.pooling == "mean":
    return total / config.max_len
  count = jnp.sum(found.valid, axis=1, keepdims=True)
  return total / jnp.maximum(count, 1)
