"""The Transformer encoder of the paper's Long Range Arena experiments, and the part of it that images share."""

import functools
from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from mgk_jax.nn import padding, priors
from mgk_jax.nn.block import Block, Style, make_dropout, make_norm
from mgk_jax.nn.config import EncoderConfig, ViTConfig
from mgk_jax.nn.initializers import uniform_bias, uniform_by_fan_in

STYLE = Style(
  norm_last=False,
  activation=functools.partial(jax.nn.gelu, approximate=False),
  attention_bias=True,
  kernel_init=uniform_by_fan_in,
  bias_init=uniform_bias,
)


class Layers(nnx.Module):
  """Adds learned positions, then blocks x + attention(norm(x)), x + mlp(norm(x)), then a norm.

  Starts as the authors' models do: positions N(0, 0.02²), all else uniform in ±1/√fan_in.
  """

  def __init__(self, config: EncoderConfig | ViTConfig, *, rngs: nnx.Rngs):
    self.config = config
    position_shape = (config.max_len, config.emb_dim)
    self.position_embedding = nnx.Param(
      nnx.initializers.normal(0.02)(rngs.params(), position_shape, config.param_dtype)
    )
    self.dropout = make_dropout(config.dropout_rate, rngs)
    self.blocks = nnx.List([Block(config, STYLE, rngs=rngs) for _ in range(config.num_layers)])
    self.norm = make_norm(config, rngs)

  def encode(
    self,
    x: Float[Array, "B L D"],
    found: padding.Padding | None,
    *,
    deterministic: bool | None,
    rngs: nnx.Rngs | None,
    sow_weights: bool,
  ) -> Float[Array, "B L D"]:
    """Encodes embeddings; where there is padding, the outputs at it are zero. Arguments as in `Encoder`."""
    x = x + self.position_embedding[...][: x.shape[1]].astype(x.dtype)
    x = self.dropout(x, deterministic=deterministic, rngs=rngs)

    def apply(block: Block, x: jax.Array, valid: Any, lengths: Any, rngs: nnx.Rngs | None) -> jax.Array:
      mask = None
      if found is not None:
        places = padding.Padding(valid, lengths, found.has_gaps)
        mask = places.attention_mask(for_queries=isinstance(block.attention.prior, priors.EMPrior))
      return block(
        x,
        mask=mask,
        query_seq_lengths=lengths,
        key_value_seq_lengths=lengths,
        is_causal=self.config.is_causal,
        sow_weights=sow_weights,
        deterministic=deterministic,
        rngs=rngs,
      )

    apply = nnx.remat(apply) if self.config.remat else apply
    valid, lengths = (None, None) if found is None else (found.valid, found.lengths)
    for block in self.blocks:
      x = apply(block, x, valid, lengths, rngs)
    x = self.norm(x)
    return x if valid is None else x * valid[..., None]


class Encoder(Layers):
  """Token and position embeddings, then blocks x + attention(norm(x)), x + mlp(norm(x)), then a norm.

  Starts as the authors' models do: embeddings N(0, 0.02²), all else uniform in ±1/√fan_in. In training mode until
  `eval()` is called.

  Example:
    >>> config = mgk_jax.EncoderConfig(vocab_size=257, max_len=128, num_layers=1)
    >>> encoder = mgk_jax.Encoder(config, rngs=nnx.Rngs(0))
    >>> encoder(jnp.ones((8, 128), int), lengths=jnp.full(8, 100), deterministic=True).shape
    (8, 128, 64)
  """

  def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
    self.token_embedding = nnx.Embed(
      config.vocab_size,
      config.emb_dim,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
      embedding_init=nnx.initializers.normal(0.02),
      rngs=rngs,
    )
    super().__init__(config, rngs=rngs)

  def __call__(
    self,
    tokens: Int[Array, "B L"],
    *,
    lengths: Int[Array, "B"] | None = None,
    mask: Bool[Array, "B L"] | None = None,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
    sow_weights: bool = False,
  ) -> Float[Array, "B L D"]:
    """Encodes sequences; the outputs at padding are zero.

    Padding is what lies past `lengths`, where `mask` is False, or else where the token is 0. What lies past an
    example's last valid position is not computed. An EM prior counts valid queries only; without `lengths` it needs a
    mask of B·L² booleans for that.

    Args:
      tokens: [B, L], L <= max_len.
      lengths: [B].
      mask: [B, L].
      deterministic: False for training, True for evaluation, None for what train() or eval() set.
      rngs: for dropout; None: the modules' own.
      sow_weights: store each block's attention weights, as in `MixtureAttention`.

    Raises:
      ValueError: more tokens than max_len, shapes that do not fit, or both lengths and a mask.
    """
    found = padding.find(tokens, lengths, mask)
    padding.check_length(tokens, self.config.max_len)
    x = self.token_embedding(tokens)
    return self.encode(x, found, deterministic=deterministic, rngs=rngs, sow_weights=sow_weights)
