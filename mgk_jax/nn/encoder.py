"""The Transformer encoder of the paper's Long Range Arena experiments."""

from typing import Any

import jax
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

from mgk_jax.nn import names, padding, priors
from mgk_jax.nn.config import EncoderConfig
from mgk_jax.nn.dropout import Dropout
from mgk_jax.nn.initializers import uniform_bias, uniform_by_fan_in

EPSILON = 1e-5  # of the layer norms


class Encoder(nnx.Module):
  """Token and position embeddings, then blocks x + attention(norm(x)), x + mlp(norm(x)), then a norm.

  Starts as the authors' models do: embeddings N(0, 0.02²), all else uniform in ±1/√fan_in. In training mode until
  `eval()` is called.
  """

  def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.token_embedding = nnx.Embed(
      config.vocab_size,
      config.emb_dim,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
      embedding_init=nnx.initializers.normal(0.02),
      rngs=rngs,
    )
    position_shape = (config.max_len, config.emb_dim)
    self.position_embedding = nnx.Param(
      nnx.initializers.normal(0.02)(rngs.params(), position_shape, config.param_dtype)
    )
    self.dropout = make_dropout(config.dropout_rate, rngs)
    self.blocks = nnx.List([Block(config, rngs=rngs) for _ in range(config.num_layers)])
    self.norm = make_norm(config, rngs)

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
    x = x + self.position_embedding[...][: tokens.shape[1]].astype(x.dtype)
    x = self.dropout(x, deterministic=deterministic, rngs=rngs)

    def apply(block: Block, x: jax.Array, valid: jax.Array, lengths: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
      places = padding.Padding(valid, lengths, found.has_gaps)
      return block(x, places, deterministic=deterministic, rngs=rngs, sow_weights=sow_weights)

    if self.config.remat:
      apply = nnx.remat(apply)
    for block in self.blocks:
      x = apply(block, x, found.valid, found.lengths, rngs)
    return self.norm(x) * found.valid[..., None]


class Block(nnx.Module):
  """One layer: attention and an MLP, each normalised before and added after."""

  def __init__(self, config: EncoderConfig, *, rngs: nnx.Rngs):
    D, F = config.emb_dim, config.mlp_dim
    self.is_causal = config.is_causal
    self.norm1 = make_norm(config, rngs)
    self.attention = names.from_name(
      config.attention,
      config.num_heads,
      D,
      **config.attention_arguments(),
      kernel_init=uniform_by_fan_in,
      bias_init=uniform_bias(D),
      out_bias_init=uniform_bias(config.num_heads * config.head_dim),
      broadcast_dropout=False,
      deterministic=False,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
      rngs=rngs,
    )
    self.norm2 = make_norm(config, rngs)
    self.mlp_in = make_linear(D, F, config, rngs, config.dtype)
    self.mlp_out = make_linear(F, D, config, rngs, config.dtype)
    self.dropout = make_dropout(config.dropout_rate, rngs)

  def __call__(
    self,
    x: Float[Array, "B L D"],
    padding: padding.Padding,
    *,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
    sow_weights: bool = False,
  ) -> Float[Array, "B L D"]:
    """Applies the block; `deterministic` and `rngs` as in `Encoder`."""
    mode: dict[str, Any] = {"deterministic": deterministic, "rngs": rngs}
    attended = self.attention(
      self.norm1(x),
      mask=padding.attention_mask(for_queries=isinstance(self.attention.prior, priors.EMPrior)),
      query_seq_lengths=padding.lengths,
      key_value_seq_lengths=padding.lengths,
      is_causal=self.is_causal,
      sow_weights=sow_weights,
      **mode,
    )
    x = x + self.dropout(attended, **mode)
    hidden = jax.nn.gelu(self.mlp_in(self.norm2(x)), approximate=False)
    return x + self.dropout(self.mlp_out(self.dropout(hidden, **mode)), **mode)


def make_dropout(rate: float, rngs: nnx.Rngs) -> Dropout:
  """Dropout that keeps a random stream only if it needs one."""
  return Dropout(rate, deterministic=False, rngs=rngs if rate > 0 else None)


def make_norm(config: EncoderConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
  """A layer norm over the residual stream."""
  return nnx.LayerNorm(
    config.emb_dim,
    epsilon=EPSILON,
    use_fast_variance=False,  # E[x²] − E[x]² cancels where the mean is large
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )


def make_linear(inputs: int, outputs: int, config: EncoderConfig, rngs: nnx.Rngs, dtype: Any = None) -> nnx.Linear:
  """A linear layer that starts uniform in ±1/√inputs."""
  return nnx.Linear(
    inputs,
    outputs,
    kernel_init=uniform_by_fan_in,
    bias_init=uniform_bias(inputs),
    dtype=dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )
