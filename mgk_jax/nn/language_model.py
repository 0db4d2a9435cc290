"""The decoder-only Transformer of the paper's language models (Section 3.2)."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype
from jaxtyping import Array, Float, Int

from mgk_jax.nn.adaptive import AdaptiveVocabulary
from mgk_jax.nn.block import Block, Style, make_dropout
from mgk_jax.nn.config import LanguageModelConfig as LanguageModelConfig
from mgk_jax.nn.decoding import Cache

LONGEST_WAVELENGTH = 10_000
INIT_STD = 0.02

State = tuple[Cache, ...]  # of each block


def style(config: LanguageModelConfig) -> Style:
  """Blocks as in Transformer-XL: normalised last, with a ReLU, starting at N(0, 0.02²)."""
  return Style(
    norm_last=True,
    activation=jax.nn.relu,
    attention_bias=config.attention_bias,
    kernel_init=nnx.initializers.normal(INIT_STD),
    bias_init=lambda fan_in: nnx.initializers.zeros_init(),
  )


class LanguageModel(nnx.Module):
  """Predicts each word from those before it.

      x = embedding(word) · √D + sinusoid(position)
      x ← norm(x + attention(x)),   x ← norm(x + mlp(x))      for each block; causal attention, ReLU
      p(next word) = adaptive softmax of x, with the vectors of the embedding

  Dropout follows the embedding, attention, the MLP's ReLU, the MLP and the last block. In training mode until `eval()`
  is called. Positions are counted from 0 and have no bound, except that priors per position have max_len of them.

  Example:
    >>> sizes = dict(num_layers=1, emb_dim=64, mlp_dim=128, num_heads=2, head_dim=32)
    >>> config = mgk_jax.LanguageModelConfig(vocab_size=257, cutoffs=(), **sizes)
    >>> model = mgk_jax.LanguageModel(config, rngs=nnx.Rngs(0))
    >>> words = jnp.ones((8, 129), int)
    >>> model.nll(words[:, :-1], words[:, 1:], deterministic=True).shape
    (8, 128)
  """

  def __init__(self, config: LanguageModelConfig, *, rngs: nnx.Rngs):
    self.config = config
    self.vocabulary = AdaptiveVocabulary(
      config.vocab_size,
      config.emb_dim,
      config.cutoffs,
      div_val=config.div_val,
      tie_embeddings=config.tie_embeddings,
      tie_projections=config.tie_projections,
      dtype=config.dtype,
      param_dtype=config.param_dtype,
      rngs=rngs,
    )
    self.dropout = make_dropout(config.dropout_rate, rngs)
    self.blocks = nnx.List([Block(config, style(config), rngs=rngs) for _ in range(config.num_layers)])

  def hidden(
    self,
    tokens: Int[Array, "B T"],
    *,
    positions: Int[Array, "T"] | None = None,
    last_only: bool = False,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
    sow_weights: bool = False,
  ) -> Float[Array, "B T D"]:
    """What the model has to say at each position about the word after it, of which `losses` and `log_probs` are made.

    Args:
      tokens: [B, T], words by number.
      positions: [T], of the tokens; None for 0, 1, …
      last_only: return the last position alone, [B, 1, D]; the last block computes no other.
      deterministic: False for training, True for evaluation, None for what train() or eval() set.
      rngs: for dropout; None: the modules' own.
      sow_weights: store each block's attention weights, as in `MixtureAttention`.

    Raises:
      ValueError, TypeError: tokens that are not integers [B, T], or more than max_len with priors per position.
    """
    mode: dict[str, Any] = {"deterministic": deterministic, "rngs": rngs}
    x = self._embed(tokens, jnp.arange(tokens.shape[-1]) if positions is None else positions, mode)

    def apply(block: Block, x: jax.Array, rngs: nnx.Rngs | None) -> jax.Array:
      return block(x, is_causal=True, sow_weights=sow_weights, deterministic=deterministic, rngs=rngs)

    apply = nnx.remat(apply) if self.config.remat else apply
    for block in self.blocks[:-1] if last_only else self.blocks:
      x = apply(block, x, rngs)
    if last_only:
      x = self.blocks[-1](x[:, -1:], x, sow_weights=sow_weights, **mode)
    return self.dropout(x, **mode)

  def extend(
    self,
    tokens: Int[Array, "B T"],
    state: State,
    *,
    positions: Int[Array, "T"] | None = None,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
  ) -> tuple[Float[Array, "B T D"], State]:
    """`hidden` of tokens that follow those of a state, and the state with them.

    Segment after segment, whatever their lengths, this gives what one pass over all gives. Linear attention (linear,
    mlk, smlk) has a state of constant size that all earlier tokens have entered, and gradients reach it. The others
    have the keys and values of the last `cache_len` tokens, and see no further back.

    Args:
      tokens: [B, T].
      state: of the tokens before, from `init_state` or an earlier call.
      positions: [T]; None to go on where the state ends, so that all is as in one pass with positions 0, 1, …; if they
        start again with each segment, as in one pass with such positions.
      deterministic, rngs: as in `hidden`. An EM prior is not re-estimated.
    """
    mode: dict[str, Any] = {"deterministic": deterministic, "rngs": rngs}
    x = self._embed(tokens, jnp.arange(tokens.shape[-1]) + state[0].index if positions is None else positions, mode)

    def apply(block: Block, x: jax.Array, cache: Cache, rngs: nnx.Rngs | None) -> tuple[jax.Array, Cache]:
      return block.extend(x, cache, deterministic=deterministic, rngs=rngs)

    apply = nnx.remat(apply) if self.config.remat else apply
    caches = []
    for block, cache in zip(self.blocks, state, strict=True):
      x, cache = apply(block, x, cache, rngs)
      caches.append(cache)
    return self.dropout(x, **mode), tuple(caches)

  def init_state(self, batch_size: int, cache_len: int | None = None, dtype: Dtype | None = None) -> State:
    """The state before the first token.

    Args:
      batch_size: B.
      cache_len: how many tokens attention sees, its own included; None for max_len. Linear attention sees them all.
      dtype: of cached keys and values; None for that of the computation.
    """
    size = self.config.max_len if cache_len is None else cache_len
    return tuple(block.attention.make_cache(batch_size, size, dtype) for block in self.blocks)

  def nll(
    self,
    tokens: Int[Array, "B T"],
    targets: Int[Array, "B T"],
    weights: Float[Array, "B T"] | None = None,
    *,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | None = None,
  ) -> Float[Array, "B T"]:
    """−log p(target) at each position, in float32, times its weight if there are weights."""
    return self.losses(self.hidden(tokens, deterministic=deterministic, rngs=rngs), targets, weights)

  def losses(
    self, hidden: Float[Array, "*batch D"], targets: Int[Array, "*batch"], weights: Float[Array, "*batch"] | None = None
  ) -> Float[Array, "*batch"]:
    """−log p(target), in float32, times weights if there are some. Never all logits at once."""
    if weights is None:
      return self.vocabulary.nll(hidden, targets)
    # What does not count is taken for a frequent word, which costs the least.
    return self.vocabulary.nll(hidden, jnp.where(weights == 0, 0, targets)) * weights

  def log_probs(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch V"]:
    """log p of all words after each position; memory O(positions · V)."""
    return self.vocabulary.log_probs(hidden)

  def _embed(self, tokens: jax.Array, positions: jax.Array, mode: dict[str, Any]) -> jax.Array:
    check_tokens(tokens)
    x = self.vocabulary.embed(tokens)
    return self.dropout(x + sinusoids(positions, self.config.emb_dim).astype(x.dtype), **mode)


def sinusoids(positions: Int[Array, "*batch"], features: int) -> Float[Array, "*batch D"]:
  """[sin(p ω_0), sin(p ω_1), …, cos(p ω_0), …] with ω_i = 10000^(−2i/D), in float32."""
  rates = LONGEST_WAVELENGTH ** (-jnp.arange(0, features, 2) / features)
  angles = positions[..., None].astype(jnp.float32) * rates
  return jnp.concatenate([jnp.sin(angles), jnp.cos(angles)], axis=-1)[..., :features]


def check_tokens(tokens: jax.Array) -> None:
  """Raises ValueError or TypeError unless tokens are integers [B, T]."""
  if tokens.ndim != 2:
    raise ValueError(f"tokens: expected shape [B, T], got {list(tokens.shape)}")
  if not jnp.issubdtype(tokens.dtype, jnp.integer):
    raise TypeError(f"tokens: expected integers, got {tokens.dtype}")
