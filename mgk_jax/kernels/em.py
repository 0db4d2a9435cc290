"""The M step of expectation maximisation for the mixture of keys: priors (setting B of the paper) and variances."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float

from mgk_jax.kernels import (
  blocks,
  checks,
  dispatch,
  exponential,
  limits as limits_lib,
  masking,
  operands as operands_lib,
  reference,
  scores as scores_lib,
  tiles,
)
from mgk_jax.kernels.attention import EStep, Implementation, Lengths, Segments, check_mixture
from mgk_jax.kernels.blocks import Heads, Place, Start
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.heads import context, vary_alike
from mgk_jax.kernels.lanes import Keeper
from mgk_jax.kernels.limits import Limits, Options
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.scores import Scores


def em_prior(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N M H"] | Float[Array, "B S N H"],
  *,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None,
  shift: Float[Array, "N M H"] | None = None,
  variance: float | Float[Array, ""] | Float[Array, "M"] | None = None,
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  estep: EStep = "soft",
  implementation: Implementation | None = None,
) -> Float[Array, "S N M"]:
  """The priors after one M step: π_jr = Σ_bi γ_bijr / Σ_bi 1, over the queries of the batch that may attend to key j.

  γ are the `responsibilities` under the present prior (Eqn 11), or the hard assignments. A key that no query of the
  batch may attend to keeps its present prior. Nothing is differentiated through it.

  Args:
    query: [B, T, N, H].
    key: [B, S, N, M, H], or [B, S, N, H] with `shift` [N, M, H].
    log_prior: the present log π, [N, M] or [S, N, M]; None: equal weights.
    variance, mask, is_causal, query_seq_lengths, key_value_seq_lengths, segment_ids, estep: as in `mixture_attention`.
    implementation: "xla" (memory O(B·S·M), cost that follows the lengths), "reference" (O(T·S·M)), None for the best.

  Returns:
    π, [S, N, M] in float32, summing to 1 over the components.

  Example:
    >>> query = jnp.array([0.0, 0.0, 1.0])[None, :, None, None]  # two of three queries lie on the first component
    >>> key = jnp.array([0.0, 1.0])[None, None, None, :, None]
    >>> prior = mgk_jax.em_prior(query, key, log_prior=None, variance=0.01)
    >>> [f"{weight:.3f}" for weight in prior.ravel()]
    ['0.667', '0.333']
  """
  counts, _, dims = _statistics(
    query, key, shift, log_prior, variance, mask, is_causal, query_seq_lengths, key_value_seq_lengths, segment_ids,
    estep, implementation, moments=False,
  )  # fmt: skip
  counts_SNM = jnp.einsum("bnms->snm", counts)
  total = jnp.sum(counts_SNM, axis=-1, keepdims=True)
  present = jnp.zeros((dims.N, dims.M)) if log_prior is None else lax.stop_gradient(jnp.asarray(log_prior))
  alive = jnp.any(present > -jnp.inf, axis=-1, keepdims=True)  # all components may have been switched off
  present = jnp.where(alive, jax.nn.softmax(jnp.where(alive, present.astype(counts.dtype), 0), axis=-1), 0)
  return jnp.where(total > 0, counts_SNM / jnp.where(total > 0, total, 1), present)


def em_variance(
  query: Float[Array, "B T N H"],
  key: Float[Array, "B S N M H"] | Float[Array, "B S N H"],
  *,
  log_prior: Float[Array, "N M"] | Float[Array, "S N M"] | None,
  shift: Float[Array, "N M H"] | None = None,
  variance: float | Float[Array, ""] | Float[Array, "M"] | None = None,
  mask: Bool[Array, "..."] | None = None,
  is_causal: bool = False,
  query_seq_lengths: Lengths | None = None,
  key_value_seq_lengths: Lengths | None = None,
  segment_ids: Segments | None = None,
  estep: EStep = "soft",
  implementation: Implementation | None = None,
) -> Float[Array, "M"]:
  """The variances after one M step (Eqn 13): σ_r² = Σ_bij γ_bijr ‖q_bi − k_bjr‖² / (H Σ_bij γ_bijr), over all heads.

  This is the maximum-likelihood variance of an isotropic Gaussian about the present keys, which are learned by
  gradient and not by an M step of their own; Eqn 13 leaves out the division by the H dimensions. A component that
  accounts for no query keeps its variance. Arguments as in `em_prior`.

  Returns:
    σ², [M], float32.

  Example:
    >>> query, key = jnp.array([-1.0, 1.0])[None, :, None, None], jnp.zeros((1, 1, 1, 1, 1))
    >>> mgk_jax.em_variance(query, key, log_prior=None)
    Array([1.], dtype=float32)
  """
  counts, moments, dims = _statistics(
    query, key, shift, log_prior, variance, mask, is_causal, query_seq_lengths, key_value_seq_lengths, segment_ids,
    estep, implementation, moments=True,
  )  # fmt: skip
  keys = lax.stop_gradient(jnp.asarray(key) if shift is None else scores_lib.shift_keys(key, shift))
  keys = jnp.einsum("bsnmh->bnmsh", keys).astype(counts.dtype)
  first, second = moments[..., :-1], moments[..., -1]
  distance = second - 2 * jnp.einsum("bnmsh,bnmsh->bnms", first, keys)
  distance = distance + counts * jnp.einsum("bnmsh,bnmsh->bnms", keys, keys)
  total = jnp.einsum("bnms->m", counts)
  present = jnp.broadcast_to(lax.stop_gradient(checks.variance(variance, dims)).astype(counts.dtype), (dims.M,))
  estimate = jnp.einsum("bnms->m", distance) / (dims.H * jnp.where(total > 0, total, 1))
  return jnp.where(total > 0, estimate, present)


def _statistics(
  query,
  key,
  shift,
  log_prior,
  variance,
  mask,
  is_causal,
  query_lengths,
  key_lengths,
  segment_ids,
  estep,
  implementation,
  *,
  moments,
) -> tuple[jax.Array, jax.Array, Dims]:
  """Σ_i γ_ijr, [B, N, M, S], and with `moments` Σ_i γ_ijr [q_i, ‖q_i‖²], [B, N, M, S, H + 1]."""
  query, key, dims = check_mixture(query, key, shift)
  log_prior, variance = checks.log_prior(log_prior, dims), checks.variance(variance, dims)
  checks.one_of("estep", estep, checks.ESTEPS)
  where = masking.make(mask, is_causal, query_lengths, key_lengths, dims, segment_ids)
  query, key, shift, log_prior, variance = lax.stop_gradient((query, key, shift, log_prior, variance))
  log_prior = None if estep == "hard" else log_prior

  def materialised() -> tuple[jax.Array, jax.Array]:
    keys = key if shift is None else scores_lib.shift_keys(key, shift)
    score_BNTSM = reference.gaussian_scores(query, keys, log_prior, variance)
    gamma = reference.responsibilities(score_BNTSM, where, dims, estep)
    features = _features(jnp.einsum("btnh->bnth", query).astype(gamma.dtype), moments)
    return jnp.einsum("bntsm->bnms", gamma), jnp.einsum("bntsm,bntf->bnmsf", gamma, features)

  def blocked() -> tuple[jax.Array, jax.Array]:
    if shift is None:
      scores = scores_lib.gaussian(query, key, log_prior, variance)
    else:
      scores = scores_lib.shifted_gaussian(query, key, shift, log_prior, variance)
    return _blocked_statistics(scores.in_bits(), where, dims, estep, moments)

  implementation = "xla" if implementation in ("pallas", "cudnn") else implementation  # the M step has no other
  counts, sums = dispatch.run(implementation, {"xla": blocked, "reference": materialised})
  return counts, sums, dims


def _features(query: jax.Array, moments: bool) -> jax.Array:
  """What is averaged under the responsibilities: [q, ‖q‖²], or nothing."""
  return jnp.concatenate([query, jnp.sum(query**2, -1, keepdims=True)], -1) if moments else query[..., :0]


def _blocked_statistics(
  scores: Scores, where: Masking, dims: Dims, estep: str, moments: bool
) -> tuple[jax.Array, jax.Array]:
  options, limits = Options(estep, where.is_causal), limits_lib.make(where, dims, scores.query.dtype)
  return _compiled_statistics(options, moments, context(), scores, limits)


@functools.partial(jax.jit, static_argnums=(0, 1, 2), inline=True)
def _compiled_statistics(
  options: Options, moments: bool, traced_for: Any, scores: Scores, limits: Limits
) -> tuple[jax.Array, jax.Array]:
  """For calls outside of `jax.jit`, which would trace all loops every time; inside, as if it were not there."""
  del traced_for
  features, M = _features(scores.query, moments), scores.num_components
  assert scores.column is not None
  alive = scores.column > -jnp.inf
  lowest = float(jnp.finfo(features.dtype).min) / 4  # for what is switched off: differences of −inf would be NaN
  scores = dataclasses.replace(scores, column=jnp.maximum(scores.column, lowest))
  if scores.key.shape[2] == 1:  # a product that the components share cancels in γ
    scores = Scores(scores.query[..., :0], scores.key[..., :0], scores.row, scores.column)
  elif M == 2:  # γ follows from the difference of two scores, which is one product
    row, column = (None if x is None else x[:, :, 1:] - x[:, :, :1] for x in (scores.row, scores.column))
    scores = Scores(scores.query, scores.key[:, :, 1:] - scores.key[:, :, :1], row, column)
  prepared, factored = operands_lib.prepare(scores, limits, options), limits_lib.can_factor(scores, limits)
  kernel = functools.partial(_statistics_of_heads, M)
  counts, sums = blocks.map_heads(kernel, options, vary_alike((prepared, features, limits, factored)))
  if limits.key_bias is not None:
    alive = alive & (limits.key_bias == 0)[:, :, None]
  return jnp.where(alive, counts, 0), jnp.where(alive[..., None], sums, 0)


def _statistics_of_heads(M: int, heads: Heads, features_BNTF: jax.Array) -> tuple[jax.Array, jax.Array]:
  """The sums, [B, N, M, S] and [B, N, M, S, F]; with M − 1 scores, these are differences to the first one."""
  form = heads.form
  attending = (jnp.arange(form.padded_T) < form.T).astype(features_BNTF.dtype)
  attending = heads.attending(jnp.broadcast_to(attending, (*features_BNTF.shape[:2], form.padded_T)), 0)[..., None]
  features = jnp.concatenate([form.pad_rows(features_BNTF, -2), attending], axis=-1) * attending
  F, exp = features.shape[-1], exponential.of_tiles(features.dtype)
  counts_only = F == 1  # then the first component is what the others leave of all

  def tile(place: Place, sums: jax.Array, keep: Keeper) -> jax.Array:
    allowed = heads.allowed(place)
    scores: list[jax.Array] = []
    if heads.mixing is None:
      zeros = jnp.zeros((M - form.components, 1, 1), features.dtype)
      scores = [*zeros, *heads.scores(place, keep, allowed=None)]
    gamma = tiles.responsibilities(scores, heads.options.estep, heads.tile_mixing(place), exp)
    gamma = [tile if allowed is None else jnp.where(allowed, tile, 0) for tile in gamma]
    mine, parts = keep(heads.rows(features, place, -2)), []
    if counts_only:
      gamma = gamma[1:]
      if allowed is None:
        parts = [jnp.broadcast_to(keep(jnp.sum(mine, axis=0)), (form.key_size, F))]
      else:
        every = jnp.broadcast_to(allowed, (form.key_size, form.query_size))
        gamma = [every.astype(mine.dtype), *gamma]
    # Products, since XLA:CPU does not vectorise a sum along the fast axis of what it computes on the way.
    parts += [keep(keep(tile) @ mine) for tile in gamma]
    return heads.add(sums, place, jnp.concatenate(parts), of_keys=True)

  start = Start((M * form.key_size, F), of_keys=True)
  sums = form.join(operands_lib.join(heads.visit(tile, start, by_queries=False)), M)
  if counts_only:
    first = jnp.maximum(sums[:, :, :1] - jnp.sum(sums[:, :, 1:], axis=2, keepdims=True), 0)
    sums = jnp.concatenate([first, sums[:, :, 1:]], axis=2)
  return sums[..., -1], sums[..., :-1]
