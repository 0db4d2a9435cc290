"""`MixtureAttention`: nnx.MultiHeadAttention with a mixture of Gaussian keys in place of its softmax."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import jax.numpy as jnp
from flax import nnx
from flax.nnx.nn import dtypes
from flax.typing import Dtype, Initializer, PrecisionLike, PromoteDtypeFn
from jaxtyping import Array, Float, Int, Shaped

from mgk_jax.kernels.attention import Implementation
from mgk_jax.nn import choices, decoding, features, folding, initializers, mixing, priors, stochastic
from mgk_jax.nn.caching import Caching
from mgk_jax.nn.choices import EStep, Kernel, Keys, Prior, PriorScope

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class MixtureAttention(Caching):
  """Multi-head attention whose weights are the posterior of a Gaussian mixture with M keys per position.

      s_ijr = log π_jr − ‖q_i − k_jr‖² / 2σ_r²,   A_ij = Σ_r exp(s_ijr) / Σ_j' Σ_r' exp(s_ij'r'),   h_i = Σ_j A_ij v_j

  The constructor and the call are those of `nnx.MultiHeadAttention`: swap the name, and the defaults give MGK with two
  components. Differences: `decode` may stay unset; rows without an allowed key attend to nothing (zeros before the
  output projection) rather than to everything; `precision` is that of the projections. With kernel="softmax" the
  parameters have the names and shapes of `nnx.MultiHeadAttention`, whose weights load and give the same outputs.
  Linen: `nnx.bridge.to_linen(MixtureAttention, num_heads=2, in_features=64, …)`; an EM prior is collection "EMPrior".

  Parameters: `query`, `key`, `value` and `out`, a LinearGeneral each; with projected keys and M > 1 the key's kernel is
  [in_kv_features, kv_heads, M, head_dim]. `shift` [heads, M, head_dim] with shifted keys. `prior`, except in softmax
  attention, with the hard E step, and with one component that has no weight by position. `log_variance` if learned.

  Args:
    num_heads, in_features, qkv_features, out_features, num_kv_heads, in_kv_features: as in nnx.MultiHeadAttention.
    num_components: M. None: 2, or 1 for kernel="softmax", which has no other choice.
    keys: "projected", k_jr = x_j W_kr (MGK), or "shifted", k_jr = x_j W_k + b_r (sMGK).
    kernel: "gaussian" (above), "linear" (Eqn 14: φ(q_i)ᵀ Σ_j Σ_r π_jr φ(k_jr) v_jᵀ, normalised) or "softmax".
    estep: "soft", or "hard" for the largest component instead of the sum (Eqn 12, no prior). Gaussian only.
    prior: "sgd", a parameter clamped to [0, 1] that starts at 1/M; "em", an `EMPrior` re-estimated from every training
      batch (see `__call__`), which with estep="hard" counts the nearest components and takes no part in the attention;
      "fixed", a `FixedPrior`.
    prior_scope: of an sgd or fixed prior: one weight per component and "head", "shared" by the heads, or per head and
      key "position". An EM prior is always per head and position.
    max_len: the longest key length; needed by priors per position.
    variance: σ², a number or one for each component. None: √head_dim.
    learn_variance: train σ² (as its logarithm), starting from `variance`: one, or M if `variance` has M.
    feature_map: φ of kernel="linear", as in `mgk_jax.mixture_linear_attention`. "favor" draws a `RandomProjection`.
    head_dim: need not be features / heads. None: qkv_features // num_heads.
    shift_init: initialiser of b, [heads, M, head_dim]: the paper's N(0, 1), or `code_shift` as in the authors' code.
    implementation: of the kernels, see `mgk_jax.mixture_attention`.
    dropout_rate: of the attention weights; kernel="linear" has none to drop and takes 0 only.
    broadcast_dropout: one dropout mask for all batch entries and heads.
    dtype, param_dtype, …: all others are those of nnx.MultiHeadAttention.

  Raises:
    ValueError, TypeError: a value that is not allowed or a combination without a meaning, with what was expected.

  Example:
    >>> attention = mgk_jax.MixtureAttention(num_heads=2, in_features=64, keys="shifted", rngs=nnx.Rngs(0))
    >>> attention(jnp.ones((8, 128, 64)), is_causal=True).shape
    (8, 128, 64)
  """

  def __init__(
    self,
    num_heads: int,
    in_features: int,
    qkv_features: int | None = None,
    out_features: int | None = None,
    num_kv_heads: int | None = None,
    in_kv_features: int | None = None,
    *,
    num_components: int | None = None,
    keys: Keys = "projected",
    kernel: Kernel = "gaussian",
    estep: EStep = "soft",
    prior: Prior = "sgd",
    prior_scope: PriorScope = "head",
    max_len: int | None = None,
    variance: float | Sequence[float] | None = None,
    learn_variance: bool = False,
    feature_map: str | Callable[[Array], Array] = choices.DEFAULT_FEATURE_MAP,
    head_dim: int | None = None,
    shift_init: Initializer = initializers.paper_shift,
    implementation: Implementation | None = None,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    broadcast_dropout: bool = True,
    dropout_rate: float = 0.0,
    deterministic: bool | None = None,
    precision: PrecisionLike = None,
    kernel_init: Initializer = nnx.initializers.lecun_normal(),
    out_kernel_init: Initializer | None = None,
    bias_init: Initializer = nnx.initializers.zeros_init(),
    out_bias_init: Initializer | None = None,
    use_bias: bool = True,
    attention_fn: None = None,
    decode: bool | None = None,
    normalize_qk: bool = False,
    qkv_promote_dtype: PromoteDtypeFn = dtypes.promote_dtype,
    out_promote_dtype: PromoteDtypeFn = dtypes.promote_dtype,
    ln_promote_dtype: PromoteDtypeFn = dtypes.promote_dtype,
    qkv_dot_general: None = None,
    out_dot_general: None = None,
    qkv_dot_general_cls: None = None,
    out_dot_general_cls: None = None,
    rngs: nnx.Rngs,
    keep_rngs: bool = True,
    kernel_metadata: Mapping[str, Any] = NO_METADATA,
    out_kernel_metadata: Mapping[str, Any] = NO_METADATA,
    bias_metadata: Mapping[str, Any] = NO_METADATA,
    out_bias_metadata: Mapping[str, Any] = NO_METADATA,
    query_ln_scale_metadata: Mapping[str, Any] = NO_METADATA,
    key_ln_scale_metadata: Mapping[str, Any] = NO_METADATA,
  ):
    choices.reject(
      attention_fn=attention_fn, qkv_dot_general=qkv_dot_general, out_dot_general=out_dot_general,
      qkv_dot_general_cls=qkv_dot_general_cls, out_dot_general_cls=out_dot_general_cls,
    )  # fmt: skip
    self.num_heads = N = choices.positive_int("num_heads", num_heads)
    self.in_features = choices.positive_int("in_features", in_features)
    self.out_features = choices.positive_int("out_features", out_features, default=in_features)
    self.in_kv_features = choices.positive_int("in_kv_features", in_kv_features, default=in_features)
    self.num_kv_heads = choices.num_kv_heads(num_kv_heads, N)
    self.head_dim = H = choices.head_dim(head_dim, qkv_features, self.in_features, N)
    self.qkv_features = N * H
    M = choices.num_components(num_components, kernel)
    choices.check(
      kernel=kernel, keys=keys, num_components=M, estep=estep, prior=prior, prior_scope=prior_scope, max_len=max_len,
      variance=variance, learn_variance=learn_variance, feature_map=feature_map, implementation=implementation,
      dropout_rate=dropout_rate,
    )  # fmt: skip
    self.mixing = mixing.Mixing(kernel, keys, M, estep, features.static(feature_map, H), implementation)
    self.variance = choices.variance(variance, M)
    self.dtype = dtype
    self.broadcast_dropout = broadcast_dropout
    self.dropout_rate = float(dropout_rate)
    self.deterministic = deterministic
    self.decode = decode

    layer = functools.partial(
      nnx.LinearGeneral, dtype=dtype, param_dtype=param_dtype, use_bias=use_bias, precision=precision, rngs=rngs
    )
    project = functools.partial(
      layer, kernel_init=kernel_init, bias_init=bias_init, promote_dtype=qkv_promote_dtype,
      kernel_metadata=kernel_metadata, bias_metadata=bias_metadata,
    )  # fmt: skip
    self.query = project(self.in_features, (N, H))
    self.key = project(self.in_kv_features, (self.num_kv_heads, *self.mixing.component_axis, H))
    self.value = project(self.in_kv_features, (self.num_kv_heads, H))
    norm = functools.partial(
      nnx.LayerNorm, H, use_bias=False, dtype=dtype, param_dtype=param_dtype, promote_dtype=ln_promote_dtype, rngs=rngs
    )
    self.query_ln = norm(scale_metadata=query_ln_scale_metadata) if normalize_qk else nnx.data(None)
    self.key_ln = norm(scale_metadata=key_ln_scale_metadata) if normalize_qk else nnx.data(None)
    self.out = layer(
      (N, H), self.out_features, axis=(-2, -1), promote_dtype=out_promote_dtype,
      kernel_init=out_kernel_init or kernel_init, bias_init=out_bias_init or bias_init,
      kernel_metadata=out_kernel_metadata or kernel_metadata, bias_metadata=out_bias_metadata or bias_metadata,
    )  # fmt: skip

    # Made after the projections, so that with equal seeds those start as nnx.MultiHeadAttention's do.
    self.shift = nnx.data(None) if keys == "projected" else nnx.Param(shift_init(rngs.params(), (N, M, H), param_dtype))
    weighted = kernel != "softmax" and (M > 1 or (prior_scope == "position" and prior != "em"))
    weighted = weighted and (estep == "soft" or prior == "em")
    self.prior = priors.make(prior, prior_scope, N, M, max_len, param_dtype) if weighted else nnx.data(None)
    start = math.sqrt(H) if self.variance is None else self.variance
    self.log_variance = nnx.Param(jnp.log(jnp.asarray(start, param_dtype))) if learn_variance else nnx.data(None)
    self.projection = features.draw(feature_map, H, rngs) if self.mixing.feature_map == "favor" else nnx.data(None)
    self.rngs = rngs.dropout.fork() if keep_rngs and dropout_rate > 0 else nnx.data(None)
    self.cached_key = self.cached_value = self.cached_peak = self.cache_index = nnx.data(None)

  def __call__(
    self,
    inputs_q: Float[Array, "*batch T D"],
    inputs_k: Float[Array, "*batch S E"] | None = None,
    inputs_v: Float[Array, "*batch S E"] | None = None,
    *,
    mask: Shaped[Array, "..."] | None = None,
    query_seq_lengths: Int[Array, "*batch"] | None = None,
    key_value_seq_lengths: Int[Array, "*batch"] | None = None,
    segment_ids: Int[Array, "*batch T"] | tuple[Int[Array, "*batch T"], Int[Array, "*batch S"]] | None = None,
    deterministic: bool | None = None,
    rngs: nnx.Rngs | nnx.RngStream | None = None,
    sow_weights: bool = False,
    decode: bool | None = None,
    is_causal: bool = False,
    out_sharding: Any = None,
    qkv_sharding: Any = None,
    input_positions: None = None,
  ) -> Float[Array, "*batch T O"]:
    """Attends from `inputs_q` to `inputs_k` with values from `inputs_v` (None: as in nnx, self-attention).

    In training mode (deterministic=False) an EM prior serves this call as it is and is then, for the positions of
    this call, replaced by the mean responsibility over the valid queries of the batch: of the global batch, where it
    is sharded under jit. Evaluation and decoding never change it.

    Args:
      inputs_q, inputs_k, inputs_v: [batch..., length, features], with any number of batch axes.
      mask: broadcastable to [batch..., heads, T, S]; what is not zero attends.
      query_seq_lengths: [batch...]; rows at or past it attend to nothing.
      key_value_seq_lengths: [batch...]; keys at or past it are not attended. Padding known by length costs nothing.
      segment_ids: [batch..., length], or a pair of these for queries and keys; a query sees the keys of its own segment
        only, as where several short sequences are packed into one.
      deterministic: False in training. Required with dropout or an EM prior, here, as the attribute or by train().
      rngs: for dropout. None: the module's own stream.
      sow_weights: sow the weights [batch..., heads, T, S] as nnx.Intermediate "attention_weights" (see `nnx.capture`).
      decode: go on from the tokens so far, which are in the cache of `init_cache`, with one or more.
      is_causal: query i sees keys j <= i. Without effect in decoding, where there is nothing else to see.
      out_sharding, qkv_sharding: of the projections' outputs; the component axis is never sharded.
    """
    choices.reject(input_positions=input_positions)
    inputs_k, inputs_v = folding.inputs(inputs_q, inputs_k, inputs_v, self.in_features, self.in_kv_features)
    batch = inputs_q.shape[:-2]
    decode = bool(self.decode if decode is None else decode)
    em_prior = self.prior if isinstance(self.prior, priors.EMPrior) and not decode else None
    matters = em_prior is not None or self.dropout_rate > 0
    training = matters and stochastic.is_training(deterministic, self.deterministic)
    dropout = self._dropout(training, rngs)

    query, key, value = (folding.fold(x, batch) for x in self._project(inputs_q, inputs_k, inputs_v, qkv_sharding))
    masks = mixing.Masks(
      folding.fold_mask(mask, batch),
      is_causal and not decode,
      folding.fold_lengths("query_seq_lengths", query_seq_lengths, batch),
      folding.fold_lengths("key_value_seq_lengths", key_value_seq_lengths, batch),
      folding.fold_segments(segment_ids, batch),
    )
    if decode:
      cache = self.read_cache(batch)
      decoding.check(cache, self.mixing, key, masks, sow_weights)
      heads, cache = self._extend(cache, query, key, value, masks.mask, dropout)
      self.write_cache(cache, batch)
      return self.out(folding.unfold(heads, batch), out_sharding=out_sharding)

    key, value = (folding.repeat_heads(x, self.num_heads) for x in (key, value))
    components = self._components(priors.log_weights(self.prior, self.num_heads, key.shape[1]))
    heads = mixing.attend(self._choice, query, key, value, components, masks, dropout)
    if sow_weights:
      sown = mixing.weights(self._choice, query, key, components, masks)
      self.sow(nnx.Intermediate, "attention_weights", folding.unfold(sown, batch))
    if training and em_prior is not None:
      updated = mixing.m_step(self._choice, query, key, components, masks)
      em_prior[...] = em_prior[...].at[: key.shape[1]].set(updated)
    return self.out(folding.unfold(heads, batch), out_sharding=out_sharding)

  def extend(
    self, inputs: Float[Array, "B T D"], cache: decoding.Cache, *, deterministic: bool | None = None, rngs: Any = None
  ) -> tuple[Float[Array, "B T O"], decoding.Cache]:
    """Causal self-attention of the tokens that follow those of a cache, and the cache with them, as a pure function.

    Segments of any lengths, one after another, give what one pass over all would. With a cache of C keys a query sees
    its own token and the C − 1 before it; linear attention sees all, and gradients reach the state of its cache.
    """
    training = self.dropout_rate > 0 and stochastic.is_training(deterministic, self.deterministic)
    query, key, value = self._project(inputs, inputs, inputs, None)
    decoding.check(cache, self.mixing, key, mixing.NO_MASKS, sow_weights=False)
    heads, cache = self._extend(cache, query, key, value, None, self._dropout(training, rngs))
    return self.out(heads), cache

  def make_cache(self, batch_size: int, size: int, dtype: Dtype | None = None) -> decoding.Cache:
    """What `extend` starts from: room for `size` keys and values, or a state whose size depends on nothing."""
    heads = self.num_heads, self.num_kv_heads, self.head_dim
    return decoding.init(self._choice, batch_size, size, *heads, dtype or self.dtype or jnp.float32)

  def _project(self, inputs_q: Any, inputs_k: Any, inputs_v: Any, sharding: Any) -> tuple[Array, Array, Array]:
    """Queries, keys (with components, if projected) and values, in one dtype."""
    query = self.query(inputs_q, out_sharding=sharding)
    key = self.key(inputs_k, out_sharding=self.mixing.key_sharding(sharding, query.ndim))
    value = self.value(inputs_v, out_sharding=sharding)
    if self.query_ln is not None and self.key_ln is not None:
      query, key = self.query_ln(query), self.key_ln(key)
    return dtypes.promote_dtype((query, key, value), dtype=self.dtype)

  def _extend(self, cache, query, key, value, mask, dropout) -> tuple[Array, decoding.Cache]:
    components = self._components(None)
    return decoding.extend(cache, self._choice, query, key, value, self.prior, components, mask, dropout)

  def _dropout(self, training: bool, rngs: Any) -> dict[str, Any]:
    rate = self.dropout_rate if training else 0.0
    return stochastic.dropout_arguments(rate, self.broadcast_dropout, self.rngs, rngs)

  @property
  def _choice(self) -> mixing.Mixing:
    """The choices that decide which kernel runs, with the random projection as it is now."""
    return dataclasses.replace(self.mixing, feature_map=features.current(self.mixing.feature_map, self.projection))

  def _components(self, log_prior: Array | None) -> mixing.Components:
    shift = None if self.shift is None else self.shift[...]
    variance = self.variance if self.log_variance is None else jnp.exp(self.log_variance[...])
    return mixing.Components(shift, log_prior, variance)
