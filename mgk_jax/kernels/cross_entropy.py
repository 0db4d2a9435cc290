"""The cross-entropy of a linear layer, whose logits are never there all at once.

    ℓ_t = log Σ_c exp(z_tc) − z_ty,   z_tc = h_t · w_c + b_c,   y = target_t

goes through the rows in chunks, forwards and backwards, and only through those that count: what comes after the first
`count` rows costs nothing, so that a caller can put the rows that matter first. The gradient computes a chunk's logits
once more, dz_tc = g_t (exp(z_tc − log Σ) − [c = y]), and adds its parts to the derivatives in place.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int

from mgk_jax.kernels.precision import at_least_float32

CHUNK_LOGITS = 2**23  # of one chunk: 32 MiB in float32
LARGEST_CHUNK = 1024


def linear_cross_entropy(
  hidden: Float[Array, "T D"],
  weight: Float[Array, "C D"],
  bias: Float[Array, "C"],
  targets: Int[Array, "T"],
  count: Int[Array, ""] | int | None = None,
) -> Float[Array, "T"]:
  """ℓ, [T], in float32 (float64 for float64 inputs); zero, with zero gradients, from row `count` on.

  Temporary memory besides derivatives: O(T + CHUNK_LOGITS).

  Args:
    hidden: [T, D].
    weight: [C, D].
    bias: [C].
    targets: [T], each in [0, C); without meaning from row `count` on.
    count: how many rows there are to compute; None for all.
  """
  T = hidden.shape[0]
  count = jnp.asarray(T if count is None else count, jnp.int32)
  return _cross_entropy(hidden, weight, bias, targets.astype(jnp.int32), count)


@jax.custom_vjp
def _cross_entropy(hidden_TD, weight_CD, bias_C, targets_T, count) -> jax.Array:
  return _forward(hidden_TD, weight_CD, bias_C, targets_T, count)[0]


def _forward(hidden_TD, weight_CD, bias_C, targets_T, count):
  chunks = _Chunks(hidden_TD.shape[0], weight_CD.shape[0])
  counted = jnp.arange(hidden_TD.shape[0]) < count
  hidden, targets = chunks.pad(jnp.where(counted[:, None], hidden_TD, 0)), chunks.pad(targets_T)

  def step(i, carry):
    losses, normalisers = carry
    logits = _logits(chunks.rows(hidden, i), weight_CD, bias_C)
    normaliser = jax.nn.logsumexp(logits, axis=1)
    of_target = jnp.take_along_axis(logits, chunks.rows(targets, i)[:, None], axis=1)[:, 0]
    return chunks.set(losses, i, normaliser - of_target), chunks.set(normalisers, i, normaliser)

  dtype = jnp.promote_types(hidden_TD.dtype, jnp.float32)
  empty = (jnp.zeros(len(hidden), dtype),) * 2
  losses, normalisers = lax.fori_loop(0, chunks.number(count), step, empty)
  losses = jnp.where(counted, losses[: len(counted)], 0)
  return losses, (hidden_TD, weight_CD, bias_C, targets_T, count, normalisers)


def _backward(residuals, by_loss_T: jax.Array):
  hidden_TD, weight_CD, bias_C, targets_T, count, normalisers = residuals
  T, C = hidden_TD.shape[0], weight_CD.shape[0]
  chunks = _Chunks(T, C)
  counted = jnp.arange(hidden_TD.shape[0]) < count
  hidden, targets = chunks.pad(jnp.where(counted[:, None], hidden_TD, 0)), chunks.pad(targets_T)
  by_loss = chunks.pad(jnp.where(counted, by_loss_T, 0))

  def step(i, carry):
    by_hidden, by_weight, by_bias = carry
    rows = chunks.rows(hidden, i)
    probabilities = jnp.exp(_logits(rows, weight_CD, bias_C) - chunks.rows(normalisers, i)[:, None])
    is_target = jnp.arange(C) == chunks.rows(targets, i)[:, None]
    by_logits = jnp.where(is_target, probabilities - 1, probabilities) * chunks.rows(by_loss, i)[:, None]
    by_hidden = chunks.set(by_hidden, i, by_logits @ at_least_float32(weight_CD))
    by_weight = by_weight + by_logits.T @ at_least_float32(rows)
    return by_hidden, by_weight, by_bias + jnp.sum(by_logits, axis=0)

  dtype = by_loss.dtype
  empty = jnp.zeros(hidden.shape, dtype), jnp.zeros(weight_CD.shape, dtype), jnp.zeros(bias_C.shape, dtype)
  by_hidden, by_weight, by_bias = lax.fori_loop(0, chunks.number(count), step, empty)
  operands = (hidden_TD, weight_CD, bias_C)
  found = (by_hidden[:T], by_weight, by_bias)
  return *(x.astype(operand.dtype) for x, operand in zip(found, operands, strict=True)), None, None


_cross_entropy.defvjp(_forward, _backward)


def _logits(rows_RD: jax.Array, weight_CD: jax.Array, bias_C: jax.Array) -> jax.Array:
  dtype = jnp.promote_types(rows_RD.dtype, jnp.float32)
  return jnp.einsum("rd,cd->rc", rows_RD, weight_CD, preferred_element_type=dtype) + bias_C.astype(dtype)


class _Chunks:
  """T rows, cut so that the logits of a chunk for C classes have a bounded size."""

  def __init__(self, T: int, C: int):
    self.size = min(T, LARGEST_CHUNK, max(8, CHUNK_LOGITS // C))
    self.total = -(-T // self.size) * self.size

  def number(self, count: jax.Array) -> Any:
    return -(-count // self.size)

  def pad(self, x: jax.Array) -> jax.Array:
    return jnp.pad(x, [(0, self.total - x.shape[0])] + [(0, 0)] * (x.ndim - 1))

  def rows(self, x: jax.Array, i: Any) -> jax.Array:
    return lax.dynamic_slice_in_dim(x, i * self.size, self.size)

  def set(self, x: jax.Array, i: Any, rows: jax.Array) -> jax.Array:
    return lax.dynamic_update_slice_in_dim(x, rows.astype(x.dtype), i * self.size, 0)
