"""A vision Transformer: the encoder and the classifier of the Long Range Arena models, on patches of images."""

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mgk_jax.nn.block import make_linear
from mgk_jax.nn.classifier import Head
from mgk_jax.nn.config import ViTConfig
from mgk_jax.nn.encoder import STYLE, Layers


class ViT(Layers):
  """Logits of images: patches, each through one linear layer; positions; the blocks of `Encoder`; pooling; an MLP.

      x_p = W · patch_p + b + position_p,   blocks,   logits = MLP(output at the class token, or mean over patches)

  In training mode until `eval()` is called.

  Example:
    >>> config = mgk_jax.ViTConfig(num_classes=10, image_size=32, patch_size=8, num_heads=2, num_layers=1)
    >>> model = mgk_jax.ViT(config, rngs=nnx.Rngs(0))
    >>> model(jnp.ones((8, 32, 32, 3)), deterministic=True).shape
    (8, 10)
  """

  config: ViTConfig

  def __init__(self, config: ViTConfig, *, rngs: nnx.Rngs):
    _, (height, width) = config.sizes
    self.patches = make_linear(height * width * config.channels, config.emb_dim, STYLE, config, rngs, config.dtype)
    self.class_token = nnx.data(None)
    if config.pooling == "cls":
      start = nnx.initializers.normal(0.02)(rngs.params(), (config.emb_dim,), config.param_dtype)
      self.class_token = nnx.Param(start)
    super().__init__(config, rngs=rngs)
    self.head = Head(config, config.emb_dim, rngs=rngs)

  def __call__(
    self,
    images: Float[Array, "B height width channels"],
    *,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
    sow_weights: bool = False,
  ) -> Float[Array, "B C"]:
    """Logits [B, num_classes].

    Args:
      images: [B, height, width, channels], floating numbers of about unit size.
      deterministic: False for training, True for evaluation, None for what train() or eval() set.
      rngs: for dropout; None: the modules' own.
      sow_weights: store each block's attention weights, as in `MixtureAttention`; the class token is position 0.

    Raises:
      ValueError, TypeError: images of another shape, or of integers.
    """
    _check(images, self.config)
    x = self.patches(split(images, self.config.sizes[1]))
    if self.class_token is not None:
      token = jnp.broadcast_to(self.class_token[...].astype(x.dtype), (x.shape[0], 1, x.shape[2]))
      x = jnp.concatenate([token, x], axis=1)
    x = self.encode(x, None, deterministic=deterministic, rngs=rngs, sow_weights=sow_weights)
    x = x.astype(jnp.promote_types(x.dtype, jnp.float32))
    return self.head(jnp.mean(x, axis=1) if self.class_token is None else x[:, 0])


def split(images: Float[Array, "B height width channels"], patch: tuple[int, int]) -> Float[Array, "B L pixels"]:
  """The patches of images, row by row, each with its pixels row by row."""
  B, height, width, channels = images.shape
  rows, columns = height // patch[0], width // patch[1]
  x = images.reshape(B, rows, patch[0], columns, patch[1], channels)
  return jnp.einsum("brpcqk->brcpqk", x).reshape(B, rows * columns, patch[0] * patch[1] * channels)


def _check(images: jax.Array, config: ViTConfig) -> None:
  (height, width), channels = config.sizes[0], config.channels
  if images.ndim != 4 or images.shape[1:] != (height, width, channels):
    raise ValueError(f"images: expected shape [B, {height}, {width}, {channels}], got {list(images.shape)}")
  if not jnp.issubdtype(images.dtype, jnp.floating):
    raise TypeError(f"images: expected floating numbers, such as bytes / 127.5 - 1, got {images.dtype}")
