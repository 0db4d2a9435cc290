"""The cross-entropy of a linear layer, whose logits are never there all at once.

    ℓ_t = log Σ_c exp(z_tc) − z_ty,   z_tc = h_t · w_c + b_c,   y = target_t

goes through the rows in chunks, forwards and backwards, and only through those that count: what comes after the first
`count` rows costs nothing, so that a caller can put the rows that matter first. The gradient computes a chunk's logits
once more, dz_tc = g_t (exp(z_tc − log Σ) − [c = y]), and adds its parts to the derivatives in place. What concerns the
targets, z_ty and [c = y], is a gather and a scatter of T rows, apart from the chunks.
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
  hidden_TD = jnp.where(counted[:, None], hidden_TD, 0)
  hidden = chunks.pad(hidden_TD)

  def step(i, normalisers):
    logits = _logits(chunks.rows(hidden, i), weight_CD, bias_C)
    peak = jnp.max(logits, axis=1)
    return chunks.set(normalisers, i, peak + jnp.log(jnp.sum(jnp.exp(logits - peak[:, None]), axis=1)))

  dtype = jnp.promote_types(hidden_TD.dtype, jnp.float32)
  normalisers = lax.fori_loop(0, chunks.number(count), step, jnp.zeros(len(hidden), dtype))
  # The targets' logits by themselves: to pick them out of all would read those once more.
  of_target = jnp.sum(hidden_TD.astype(dtype) * weight_CD[targets_T].astype(dtype), axis=1) + bias_C[targets_T]
  losses = jnp.where(counted, normalisers[: len(counted)] - of_target, 0)
  return losses, (hidden_TD, weight_CD, bias_C, targets_T, count, normalisers)


def _backward(residuals, by_loss_T: jax.Array):
  hidden_TD, weight_CD, bias_C, targets_T, count, normalisers = residuals
  T = hidden_TD.shape[0]
  chunks = _Chunks(T, weight_CD.shape[0])
  by_loss_T = jnp.where(jnp.arange(T) < count, by_loss_T, 0)
  weight = at_least_float32(weight_CD)
  # With a column of ones beside the rows the same product sums the derivatives by the biases.
  rows_TD = jnp.concatenate([at_least_float32(hidden_TD), jnp.ones((T, 1), weight.dtype)], axis=1)
  hidden, rows, by_loss = chunks.pad(hidden_TD), chunks.pad(rows_TD), chunks.pad(by_loss_T)

  def step(i, carry):
    by_hidden, by_weight = carry
    logits = _logits(chunks.rows(hidden, i), weight_CD, bias_C)
    share = jnp.exp(logits - chunks.rows(normalisers, i)[:, None]) * chunks.rows(by_loss, i)[:, None]
    return chunks.set(by_hidden, i, share @ weight), by_weight + share.T @ chunks.rows(rows, i)

  empty = jnp.zeros(hidden.shape, weight.dtype), jnp.zeros((weight.shape[0], rows.shape[1]), weight.dtype)
  by_hidden, by_weight = lax.fori_loop(0, chunks.number(count), step, empty)
  by_hidden = by_hidden[:T] - by_loss_T[:, None] * weight[targets_T]
  by_weight = by_weight.at[targets_T].add(-by_loss_T[:, None] * rows_TD)
  operands, found = (hidden_TD, weight_CD, bias_C), (by_hidden, by_weight[:, :-1], by_weight[:, -1])
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
