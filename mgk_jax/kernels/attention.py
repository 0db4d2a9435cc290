"""The attentions with a T×S matrix: mixtures of Gaussian keys, projected or shifted, and plain softmax."""

from collections.abc import Callable
from typing import Any, Literal

import jax
from jaxtyping import Array, Bool, Float, Int, UInt

from mgk_jax.kernels import checks, cudnn, dispatch, dropout as dropout_lib, masking, pallas, reference, scores, xla
from mgk_jax.kernels.checks import Dims

EStep = Literal["soft", "hard"]
Implementation = Literal["reference", "xla", "pallas", "cudnn"]
Lengths = Int[Array, "B"] | UInt[Array, "B"]
Segments = Int[Array, "B T"] | tuple[Int[Array, "B T"], Int[Array, "B S"]]


def mixture_attention(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N M H"],
  value: Float[Array, "B S N V"],
  *,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None = None,
  variance: float | Float[Array, ""] | Float[Array, "M"] | None = None,
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  estep: EStep = "soft",
  dropout_rate: float = 0.0,
  dropout_rng: Array | None = None,
  broadcast_dropout: bool = False,
  implementation: Implementation | None = None,
) -> Float[Array, "B T N V"]:
  """Attention whose weights are the posterior of a Gaussian mixture with M keys per position (MGK).

      s_ijr = log π_jr − ‖q_i − k_jr‖² / 2σ_r²
      A_ij  = Σ_r exp(s_ijr) / Σ_j' Σ_r' exp(s_ij'r')        estep="soft", Eqn 9
      A_ij  = max_r exp(−‖q_i − k_jr‖² / 2σ_r²) / Σ_j' max_r …   estep="hard", Eqn 12, in which the prior plays no part
      h_i   = Σ_j A_ij v_j                                    Eqn 10

  Scores and normalisers are float32 (float64 for float64 inputs) and in log space: values and gradients are finite
  however far queries are from keys, as long as squared norms are (entries up to 1e18). A query without an allowed key
  returns zeros and has zero gradients.

  Args:
    query: [B, T, N, H].
    key: [B, S, N, M, H], the M keys of each position.
    value: [B, S, N, V]; V may differ from H.
    log_prior: log π, [N, M] or [S, N, M]; need not be normalised, −inf switches a component off. None: equal weights.
    variance: σ², one positive number for all components or [M]. None: √H.
    mask: boolean, True = attend, of any shape that broadcasts to [B, N, T, S].
    is_causal: query i sees keys j <= i.
    query_seq_lengths: [B]; rows at or past it are zero.
    key_value_seq_lengths: [B]; keys at or past it are not attended. "xla" does no work for what lies past the lengths.
    estep: "soft" or "hard".
    dropout_rate: probability with which an attention weight is dropped; the same weights in every implementation.
    dropout_rng: a jax.random key; required when dropout_rate > 0.
    broadcast_dropout: drop the same pairs (i, j) in all examples and heads.
    implementation: "reference" (memory O(T·S·M); differentiable any number of times, forwards and backwards); "xla"
      (memory O(T + S); one reverse-mode derivative, as all that follow); "pallas", kernels for TPUs and NVIDIA
      GPUs (O(T + S); no dropout; on a CPU those for TPUs, interpreted and slow); "cudnn", cuDNN's attention over
      M·S keys for GPUs (one variance, soft E step, no mask, no dropout); None for the best one, as
      `explain_implementation` tells.

  Returns:
    [B, T, N, V] in the dtype of the inputs.

  Raises:
    ValueError, TypeError: a malformed argument; the message states what was expected and what came.

  Example:
    >>> query, value = jnp.ones((8, 128, 2, 32)), jnp.ones((8, 128, 2, 32))
    >>> key = jnp.ones((8, 128, 2, 2, 32))  # two keys for each position
    >>> mgk_jax.mixture_attention(query, key, value, is_causal=True).shape
    (8, 128, 2, 32)
  """
  query, key, value, dims = checks.query_key_value(query, key, value, key_letters="B S N M H")
  scale = _static_precision(variance, dims)
  log_prior, variance = checks.log_prior(log_prior, dims), checks.variance(variance, dims)
  checks.one_of("estep", estep, checks.ESTEPS)
  log_prior = None if estep == "hard" else log_prior

  return _attend(
    {
      "xla": lambda: scores.gaussian(query, key, log_prior, variance),
      "reference": lambda: reference.gaussian_scores(query, key, log_prior, variance),
    },
    scale, value, dims, mask, is_causal, query_seq_lengths, key_value_seq_lengths, segment_ids,
    estep, dropout_rate, dropout_rng, broadcast_dropout, implementation,
  )  # fmt: skip


def shifted_mixture_attention(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N H"],
  value: Float[Array, "B S N V"],
  shift: Float[Array, "N M H"],
  *,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None = None,
  variance: float | Float[Array, ""] | Float[Array, "M"] | None = None,
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  estep: EStep = "soft",
  dropout_rate: float = 0.0,
  dropout_rng: Array | None = None,
  broadcast_dropout: bool = False,
  implementation: Implementation | None = None,
) -> Float[Array, "B T N V"]:
  """`mixture_attention` with keys k_jr = k_j + b_r that are shifts of one another (sMGK).

  With one variance for all components "xla" needs a single score product and a single exponential per pair, whatever
  M is: Σ_r exp(s_ijr) factorises. Where the factors could underflow it computes in log space instead, so that the
  result is always that of the definition (`mgk_jax.kernels.scores` has the derivation and the bound).

  Args:
    query: [B, T, N, H].
    key: [B, S, N, H], one key per position.
    value: [B, S, N, V].
    shift: b, [N, M, H].
    log_prior, variance, mask, …: as in `mixture_attention`.

  Returns:
    [B, T, N, V] in the dtype of the inputs.

  Example:
    >>> query = key = value = jnp.ones((8, 128, 2, 32))
    >>> shift = jax.random.normal(jax.random.key(0), (2, 2, 32))
    >>> mgk_jax.shifted_mixture_attention(query, key, value, shift, is_causal=True).shape
    (8, 128, 2, 32)
  """
  query, key, value, dims = checks.query_key_value(query, key, value, key_letters="B S N H")
  shift, dims = _check_shift(shift, dims)
  scale = _static_precision(variance, dims)
  log_prior, variance = checks.log_prior(log_prior, dims), checks.variance(variance, dims)
  checks.one_of("estep", estep, checks.ESTEPS)
  log_prior = None if estep == "hard" else log_prior

  return _attend(
    {
      "xla": lambda: scores.shifted_gaussian(query, key, shift, log_prior, variance),
      "reference": lambda: reference.gaussian_scores(query, scores.shift_keys(key, shift), log_prior, variance),
    },
    scale, value, dims, mask, is_causal, query_seq_lengths, key_value_seq_lengths, segment_ids,
    estep, dropout_rate, dropout_rng, broadcast_dropout, implementation,
  )  # fmt: skip


def softmax_attention(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N H"],
  value: Float[Array, "B S N V"],
  *,
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  dropout_rate: float = 0.0,
  dropout_rng: Array | None = None,
  broadcast_dropout: bool = False,
  implementation: Implementation | None = None,
) -> Float[Array, "B T N V"]:
  """The baseline: softmax(q kᵀ / √H) v (Eqn 1), with the conventions of `mixture_attention`.

  Args:
    query: [B, T, N, H].
    key: [B, S, N, H].
    value: [B, S, N, V].
    mask, is_causal, …: as in `mixture_attention`.

  Returns:
    [B, T, N, V] in the dtype of the inputs.

  Example:
    >>> query, key, value = jax.random.normal(jax.random.key(0), (3, 8, 128, 2, 32))
    >>> ours = mgk_jax.softmax_attention(query, key, value)
    >>> bool(jnp.allclose(ours, jax.nn.dot_product_attention(query, key, value), atol=1e-5))
    True
  """
  query, key, value, dims = checks.query_key_value(query, key, value, key_letters="B S N H")
  return _attend(
    {
      "xla": lambda: scores.dot_product(query, key),
      "reference": lambda: reference.dot_product_scores(query, key),
    },
    dims.H**-0.5, value, dims, mask, is_causal, query_seq_lengths, key_value_seq_lengths, segment_ids,
    "soft", dropout_rate, dropout_rng, broadcast_dropout, implementation,
  )  # fmt: skip


def mixture_attention_weights(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N M H"] | Float[Array, "B S N H"],
  *,
  shift: Float[Array, "N M H"] | None = None,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None = None,
  variance: float | Float[Array, ""] | Float[Array, "M"] | None = None,
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  estep: EStep = "soft",
) -> Float[Array, "B N T S"]:
  """The posterior A_ij itself (Eqn 9 or 12), for looking at; float32. Memory O(T·S·M).

  With `shift` the keys are those of `shifted_mixture_attention`; all else as in `mixture_attention`.

  Example:
    >>> query, key = jnp.zeros((1, 1, 1, 2)), jnp.array([[0.0, 0.0], [0.0, 2.0]])[None, :, None, None]
    >>> weights = mgk_jax.mixture_attention_weights(query, key, variance=1.0)  # distances 0 and 2
    >>> [f"{weight:.3f}" for weight in weights.ravel()]
    ['0.881', '0.119']
  """
  score_BNTSM, dims = _reference_scores(query, key, shift, log_prior, variance, estep)
  where = masking.make(mask, is_causal, query_seq_lengths, key_value_seq_lengths, dims, segment_ids)
  return reference.weights(score_BNTSM, where, dims, estep)


def responsibilities(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N M H"] | Float[Array, "B S N H"],
  *,
  shift: Float[Array, "N M H"] | None = None,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None = None,
  variance: float | Float[Array, ""] | Float[Array, "M"] | None = None,
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  estep: EStep = "soft",
) -> Float[Array, "B N T S M"]:
  """γ_ijr, how much component r of key j accounts for query i (Eqn 11); float32, zero where masked. Memory O(T·S·M).

  estep="hard" assigns each pair to its nearest component, in equal shares where several are equally near, without
  regard to the prior. All else as in `mixture_attention_weights`.

  Example:
    >>> query, key = jnp.zeros((1, 1, 1, 2)), jnp.array([[0.0, 0.0], [0.0, 2.0]])[None, None, None]
    >>> shares = mgk_jax.responsibilities(query, key, variance=1.0)  # one key of two components
    >>> [f"{share:.3f}" for share in shares.ravel()]
    ['0.881', '0.119']
  """
  score_BNTSM, dims = _reference_scores(query, key, shift, log_prior, variance, estep)
  where = masking.make(mask, is_causal, query_seq_lengths, key_value_seq_lengths, dims, segment_ids)
  return reference.responsibilities(score_BNTSM, where, dims, estep)


def _reference_scores(query, key, shift, log_prior, variance, estep) -> tuple[jax.Array, Dims]:
  query, key, dims = check_mixture(query, key, shift)
  log_prior, variance = checks.log_prior(log_prior, dims), checks.variance(variance, dims)
  checks.one_of("estep", estep, checks.ESTEPS)
  key = key if shift is None else scores.shift_keys(key, shift)
  return reference.gaussian_scores(query, key, None if estep == "hard" else log_prior, variance), dims


def check_mixture(query, key, shift) -> tuple[jax.Array, jax.Array, Dims]:
  """Checks query and key, with a component axis of their own or by `shift`, where there are no values."""
  query, key, _, dims = checks.query_key_value(
    query, key, None, key_letters="B S N M H" if shift is None else "B S N H"
  )
  return (query, key, dims) if shift is None else (query, key, _check_shift(shift, dims)[1])


def _check_shift(shift, dims: Dims) -> tuple[jax.Array, Dims]:
  shift = checks.float_array("shift", shift)
  checks.rank("shift", shift, "N M H")
  dims = dims._replace(M=shift.shape[1])
  checks.shape("shift", shift, "N M H", dims)
  return shift, dims


def _static_precision(variance: Any, dims: Dims) -> float | None:
  """1/σ² as a Python number, or None if it is an array, whose value may not be known yet."""
  if variance is None:
    return dims.H**-0.5
  return 1 / float(variance) if isinstance(variance, int | float) and variance > 0 else None


def _attend(
  score_of, scale, value, dims, mask, is_causal, query_lengths, key_lengths, segment_ids, estep, dropout_rate,
  dropout_rng, broadcast_dropout, implementation,
) -> jax.Array:  # fmt: skip
  """Checks what all attentions have in common and runs the implementation on its own kind of scores."""
  where = masking.make(mask, is_causal, query_lengths, key_lengths, dims, segment_ids)
  checks.dropout(dropout_rate, dropout_rng)
  dropout = dropout_lib.make(dropout_rate, dropout_rng, dims, broadcast=broadcast_dropout)

  def without_dropout(run: Callable[[], jax.Array]) -> jax.Array:
    if dropout is not None:
      raise NotImplementedError("dropout of attention weights")
    return run()

  fused: Literal["cudnn", "xla"] = "cudnn" if dispatch.platform() == "gpu" else "xla"
  out = dispatch.run(
    implementation,
    {
      "xla": lambda: xla.attention(score_of["xla"](), value, where, dims, estep, dropout),
      "pallas": lambda: without_dropout(lambda: pallas.attention(score_of["xla"](), value, where, dims, estep)),
      "cudnn": lambda: without_dropout(
        lambda: cudnn.attention(score_of["xla"](), scale, value, where, dims, estep, fused=fused)
      ),
      "reference": lambda: reference.attention(score_of["reference"](), value, where, dims, estep, dropout),
    },
  )
  return out.astype(value.dtype)
