"""One layer of a Transformer, attention and an MLP, in the two styles of the paper's models."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from flax import nnx
from flax.typing import Initializer
from jaxtyping import Array, Float

from mgk_jax.nn import names
from mgk_jax.nn.config import TransformerConfig
from mgk_jax.nn.decoding import Cache
from mgk_jax.nn.dropout import Dropout

EPSILON = 1e-5  # of the layer norms


class Style(NamedTuple):
  """How blocks are built, besides what their settings say.

  Attributes:
    norm_last: normalise norm(x + f(x)), after adding, rather than x + f(norm(x)).
    activation: of the MLP.
    attention_bias: the projections of attention have biases.
    kernel_init: of all matrices.
    bias_init: of the biases of a layer, from the number of its inputs.
  """

  norm_last: bool
  activation: Callable[[jax.Array], jax.Array]
  attention_bias: bool
  kernel_init: Initializer
  bias_init: Callable[[int], Initializer]


class Block(nnx.Module):
  """One layer: attention and an MLP, each normalised and added to what it came from."""

  def __init__(self, config: TransformerConfig, style: Style, *, rngs: nnx.Rngs):
    D, F = config.emb_dim, config.mlp_dim
    self.norm_last, self.activation = style.norm_last, style.activation
    self.norm1 = make_norm(config, rngs)
    self.attention = names.from_name(
      config.attention,
      config.num_heads,
      D,
      **config.attention_arguments(),
      use_bias=style.attention_bias,
      kernel_init=style.kernel_init,
      bias_init=style.bias_init(D),
      out_bias_init=style.bias_init(config.num_heads * config.head_dim),
      broadcast_dropout=False,
      deterministic=False,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
      rngs=rngs,
    )
    self.norm2 = make_norm(config, rngs)
    self.mlp_in = make_linear(D, F, style, config, rngs, config.dtype)
    self.mlp_out = make_linear(F, D, style, config, rngs, config.dtype)
    self.dropout = make_dropout(config.dropout_rate, rngs)

  def __call__(
    self,
    x: Float[Array, "B T D"],
    context: Float[Array, "B S D"] | None = None,
    *,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
    **attention: Any,
  ) -> Float[Array, "B T D"]:
    """Applies the block to `x`, which attends to `context` or, without one, to itself.

    Args:
      x, context: residual streams, of which `x` may be some positions of `context`.
      deterministic, rngs: as in `MixtureAttention`.
      **attention: other arguments of `MixtureAttention.__call__`, such as masks.
    """
    mode: dict[str, Any] = {"deterministic": deterministic, "rngs": rngs}
    context = None if context is None else self._before(self.norm1, context)
    attended = self.attention(self._before(self.norm1, x), context, **attention, **mode)
    return self._add_and_mlp(x, attended, mode)

  def extend(
    self, x: Float[Array, "B T D"], cache: Cache, *, deterministic: bool | None = None, rngs: nnx.Rngs | None = None
  ) -> tuple[Float[Array, "B T D"], Cache]:
    """Applies the block to what follows the tokens of a cache, as `MixtureAttention.extend` does."""
    mode: dict[str, Any] = {"deterministic": deterministic, "rngs": rngs}
    attended, cache = self.attention.extend(self._before(self.norm1, x), cache, **mode)
    return self._add_and_mlp(x, attended, mode), cache

  def _add_and_mlp(self, x: jax.Array, attended: jax.Array, mode: dict[str, Any]) -> jax.Array:
    x = self._after(self.norm1, x + self.dropout(attended, **mode))
    hidden = self.activation(self.mlp_in(self._before(self.norm2, x)))
    return self._after(self.norm2, x + self.dropout(self.mlp_out(self.dropout(hidden, **mode)), **mode))

  def _before(self, norm: nnx.LayerNorm, x: jax.Array) -> jax.Array:
    return x if self.norm_last else norm(x)

  def _after(self, norm: nnx.LayerNorm, x: jax.Array) -> jax.Array:
    return norm(x) if self.norm_last else x


def make_dropout(rate: float, rngs: nnx.Rngs) -> Dropout:
  """Dropout that keeps a random stream only if it needs one."""
  return Dropout(rate, deterministic=False, rngs=rngs if rate > 0 else None)


def make_norm(config: TransformerConfig, rngs: nnx.Rngs) -> nnx.LayerNorm:
  """A layer norm over the residual stream."""
  return nnx.LayerNorm(
    config.emb_dim,
    epsilon=EPSILON,
    use_fast_variance=False,  # E[x²] − E[x]² cancels where the mean is large
    dtype=config.dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )


def make_linear(
  inputs: int, outputs: int, style: Style, config: TransformerConfig, rngs: nnx.Rngs, dtype: Any = None
) -> nnx.Linear:
  """A linear layer that starts as the style has it."""
  return nnx.Linear(
    inputs,
    outputs,
    kernel_init=style.kernel_init,
    bias_init=style.bias_init(inputs),
    dtype=dtype,
    param_dtype=config.param_dtype,
    rngs=rngs,
  )
