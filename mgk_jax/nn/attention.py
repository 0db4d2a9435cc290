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
from flax.typing import Dtype, Initializer, PrecisionLike, PromoteDtypeFn, Shape
from jaxtyping import Array, Float, Int, Shaped

from mgk_jax.kernels.attention import Implementation
from mgk_jax.nn import choices, decoding, features, folding, initializers, mixing, priors, stochastic
from mgk_jax.nn.choices import EStep, Kernel, Keys, Prior, PriorScope

NO_METADATA: Mapping[str, Any] = MappingProxyType({})


class MixtureAttention(nnx.Module):
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
    The other arguments are those of nnx.MultiHeadAttention.

  Raises:
    ValueError, TypeError: a value that is not allowed or a combination without a meaning, with what was expected.
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
    self.cached_key: nnx.Cache | None = nnx.data(None)
    self.cached_value: nnx.Cache | None = nnx.data(None)
    self.cached_peak: nnx.Cache | None = nnx.data(None)
    self.cache_index: nnx.Cache | None = nnx.data(None)

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
      decode: one token at a time, against the cache of `init_cache`.
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
    rate = self.dropout_rate if training else 0.0
    dropout = stochastic.dropout_arguments(rate, self.broadcast_dropout, self.rngs, rngs)

    query = self.query(inputs_q, out_sharding=qkv_sharding)
    key = self.key(inputs_k, out_sharding=self.mixing.key_sharding(qkv_sharding, query.ndim))
    value = self.value(inputs_v, out_sharding=qkv_sharding)
    if self.query_ln is not None and self.key_ln is not None:
      query, key = self.query_ln(query), self.key_ln(key)
    query, key, value = dtypes.promote_dtype((query, key, value), dtype=self.dtype)

    masks = mixing.Masks(
      folding.fold_mask(mask, batch),
      is_causal and not decode,
      folding.fold_lengths("query_seq_lengths", query_seq_lengths, batch),
      folding.fold_lengths("key_value_seq_lengths", key_value_seq_lengths, batch),
      folding.fold_segments(segment_ids, batch),
    )
    choice = dataclasses.replace(self.mixing, feature_map=features.current(self.mixing.feature_map, self.projection))
    recurrent = None
    if decode:
      caches = decoding.gather(self.cached_key, self.cached_value, self.cached_peak, self.cache_index)
      decoding.check_step(caches, choice, key, batch, masks, sow_weights)
      if choice.kernel == "linear":
        recurrent = caches
      else:
        key, value, filled = decoding.extend(caches, key, value, axis=len(batch))
        masks = masks._replace(key_value_seq_lengths=jnp.full(math.prod(batch), filled))
        query, key, value = dtypes.promote_dtype((query, key, value), dtype=self.dtype)
    query, key, value = (folding.fold(x, batch) for x in (query, key, value))
    key, value = (folding.repeat_heads(x, self.num_heads) for x in (key, value))
    components = mixing.Components(
      None if self.shift is None else self.shift[...],
      priors.log_weights(self.prior, self.num_heads, key.shape[1], None if recurrent is None else recurrent.index[...]),
      self.variance if self.log_variance is None else jnp.exp(self.log_variance[...]),
    )

    if recurrent is not None:
      heads = decoding.recurrent_step(recurrent, choice, query, key, value, components, batch)
    else:
      heads = mixing.attend(choice, query, key, value, components, masks, dropout)
    if sow_weights:
      sown = mixing.weights(choice, query, key, components, masks)
      self.sow(nnx.Intermediate, "attention_weights", folding.unfold(sown, batch))
    if training and em_prior is not None:
      updated = mixing.m_step(choice, query, key, components, masks)
      em_prior[...] = em_prior[...].at[: key.shape[1]].set(updated)
    return self.out(folding.unfold(heads, batch), out_sharding=out_sharding)

  def init_cache(self, input_shape: Shape, dtype: Dtype = jnp.float32) -> None:
    """Prepares decoding of inputs [batch..., max_length, features], from the first token on.

    Gaussian and softmax kernels cache keys [batch..., max_length, kv_heads, (M,) head_dim] and values; past max_length
    the last entry is overwritten. kernel="linear" keeps a state whose size does not depend on the length.
    """
    *batch, length, _ = input_shape
    choice = dataclasses.replace(self.mixing, feature_map=features.current(self.mixing.feature_map, self.projection))
    self.cached_key, self.cached_value, self.cached_peak, self.cache_index = decoding.init(
      choice, tuple(batch), length, self.num_heads, self.num_kv_heads, self.head_dim, dtype
    )

  def set_view(
    self,
    deterministic: bool | None = None,
    decode: bool | None = None,
    batch_size: int | Shape | None = None,
    max_length: int | None = None,
  ) -> None:
    """Used by `nnx.view`.

    Args:
      deterministic: False for training.
      decode: whether to decode with a cache, which is made if there is none.
      batch_size: batch shape of that cache.
      max_length: length of that cache.
    """
    if deterministic is not None:
      self.deterministic = deterministic
    if decode is not None:
      self.decode = decode
    if decode and self.cached_key is None:
      if batch_size is None or max_length is None:
        raise TypeError(f"decode: expected batch_size and max_length of a cache, got {batch_size} and {max_length}")
      batch = (batch_size,) if isinstance(batch_size, int) else tuple(batch_size)
      self.init_cache((*batch, max_length, self.in_features), self.dtype or jnp.float32)
