"""Attention scores as one bilinear form, the shape in which the fast implementations compute them.

Every attention here has the log score of query i and component r of key j

    s_ijr = q_i · κ_jr + u_ir + w_jr + c_j                                       (up to a constant of row i)

1. Gaussian, variances σ_r²: κ_jr = k_jr / σ_r², w_jr = log π_jr − ‖k_jr‖² / 2σ_r², u_ir = −‖q_i‖² / 2σ_r². With one
   variance for all components u is the same for every r and cancels in the posterior: there is no u. c = 0.
2. Gaussian, keys k_j + b_r, one variance: κ_jr = k_j / σ² is shared by the components, so one product serves all;
   w_jr = log π_jr − k_j·b_r / σ², c_j = −‖k_j‖² / 2σ² and u_ir = (q_i·b_r − ‖b_r‖² / 2) / σ². c is kept apart since
   it cancels between components, which it could not do exactly once it is rounded together with w.
3. Softmax attention: M = 1, κ_j = k_j / √H, and neither u, w nor c.

Case 2 factorises. With û_i = max_r u_ir and ŵ_j = max_r w_jr,

    Σ_r exp(s_ijr) = exp(û_i) · exp(q_i·κ_j + ŵ_j + c_j) · E_ij,   E_ij = Σ_r exp(u_ir − û_i) · exp(w_jr − ŵ_j),

where exp(û_i) cancels in the posterior: one product and one exponential per pair, and a sum of M products of numbers
that were computed once per row and once per column. Both factors of each product lie in [0, 1], and a product
underflows where u and w pull in opposite directions. Let R_u = max_ir (û_i − u_ir) and R_w = max_jr (ŵ_j − w_jr). The
component that is largest for query i contributes exp(w_jr − ŵ_j) ≥ exp(−R_w), the one that is largest for key j at
least exp(−R_u); hence

    exp(−min(R_u, R_w)) ≤ E_ij ≤ M.

`factors` is safe where min(R_u, R_w) ≤ SAFE_RANGE. Terms that underflow are below 1.2e-38 ≈ exp(−87.3), so they
change E_ij, and likewise the normaliser Σ_j exp(q_i·κ_j + ŵ_j + c_j − max_j(…)) E_ij ≥ exp(−SAFE_RANGE), by less than a
factor 1 ± (S·M) exp(60 − 87.3): far below the rounding of float32. Elsewhere s_ijr is computed for every r.
"""

import dataclasses
import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp

from mgk_jax.kernels import dispatch
from mgk_jax.kernels.exponential import NATS
from mgk_jax.kernels.heads import vary_alike
from mgk_jax.kernels.precision import at_least_float32

SAFE_RANGE = 60.0  # nats


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scores:
  """s_ijr = scale_r (query_i · key_jr) + row_ir + column_jr + shared_j, so that κ_jr = scale_r key_jr.

  Attributes:
    query: [B, N, T, H], in the dtype of the inputs, as the key: what is bfloat16 can be multiplied as such.
    key: [B, N, K, S, H] with K = M, or K = 1 when all components share the product.
    row: u, [B, N, M, T], or None for zeros; this and what follows in float32 or float64.
    column: w, [B, N, M, S], or None for zeros.
    shared: c, [B, N, S], or None for zeros; only where K = 1.
    scale: [K], or None for ones.
  """

  query: jax.Array
  key: jax.Array
  row: jax.Array | None
  column: jax.Array | None
  shared: jax.Array | None = None
  scale: jax.Array | None = None

  def in_bits(self) -> "Scores":
    """s_ijr / log 2, the scores as logarithms to the base 2, with the scale in the keys, in float32 or float64."""
    query, key = at_least_float32(self.query), at_least_float32(self.key)
    scale = 1 / NATS if self.scale is None else self.scale[:, None, None] / NATS
    row, column, shared = (None if x is None else x / NATS for x in (self.row, self.column, self.shared))
    return Scores(query, key * scale, row, column, shared)

  @property
  def num_components(self) -> int:
    """M."""
    return self.key.shape[2] if self.column is None else self.column.shape[2]


def gaussian(query_BTNH: jax.Array, key_BSNMH: jax.Array, log_prior: jax.Array | None, variance: jax.Array) -> Scores:
  """The scores of `mixture_attention` (case 1 above)."""
  query, key = at_least_float32(query_BTNH), at_least_float32(key_BSNMH)
  precision = 1 / variance.astype(query.dtype)
  column = -jnp.einsum("bsnmh,bsnmh->bnms", key, key) / 2 * jnp.broadcast_to(precision, key.shape[3:4])[:, None]
  if log_prior is not None:
    column = column + _prior_by_column(log_prior, key.shape[1], query.dtype)
  row = None
  if variance.ndim:
    norm = jnp.einsum("btnh,btnh->bnt", query, query)
    row = -norm[:, :, None] / 2 * precision[:, None]
  scale = jnp.broadcast_to(precision, key.shape[3:4])
  return Scores(*_by_head(query_BTNH, key_BSNMH), row, column, scale=scale)


def shifted_gaussian(
  query_BTNH: jax.Array, key_BSNH: jax.Array, shift_NMH: jax.Array, log_prior: jax.Array | None, variance: jax.Array
) -> Scores:
  """The scores of `shifted_mixture_attention` (case 2; with unequal variances the products differ: case 1)."""
  if variance.ndim:
    return gaussian(query_BTNH, shift_keys(key_BSNH, shift_NMH), log_prior, variance)
  query, key, shift = (at_least_float32(x) for x in (query_BTNH, key_BSNH, shift_NMH))
  shift = shift.astype(query.dtype)
  precision = 1 / variance.astype(query.dtype)
  query, key, shift = vary_alike((query, key, shift))
  row = (_times_shifts(query, shift) - jnp.einsum("nmh,nmh->nm", shift, shift)[:, :, None] / 2) * precision
  column, shared = -_times_shifts(key, shift) * precision, -_square_norms(key) / 2 * precision
  if log_prior is not None:
    column = column + _prior_by_column(log_prior, key.shape[1], query.dtype)
  return Scores(*_by_head(query_BTNH, key_BSNH[:, :, :, None]), row, column, shared, precision[None])


def _times_shifts(x_BLNH: jax.Array, shift_NMH: jax.Array) -> jax.Array:
  """x_l·b_r, [B, N, M, L]."""
  if dispatch.platform() == "gpu":  # whose products read x as it lies
    return jnp.einsum("blnh,nmh->bnml", x_BLNH, shift_NMH)
  return _turned_times_shifts(x_BLNH, shift_NMH)


def _square_norms(x_BLNH: jax.Array) -> jax.Array:
  """‖x_l‖², [B, N, L]."""
  return jnp.einsum("blnh,blnh->bnl", x_BLNH, x_BLNH) if dispatch.platform() == "gpu" else _turned_square_norms(x_BLNH)


# XLA:CPU takes long for products with few rows or columns unless positions are the last axis of all that is multiplied,
# and long to turn what it has computed so. Hence derivatives of their own, for a single result each: JAX's `vmap` would
# count those by one that is not mapped beside one that is for every example. TPUs need less memory with it, too.


@jax.custom_vjp
def _turned_times_shifts(x_BLNH: jax.Array, shift_NMH: jax.Array) -> jax.Array:
  x_BNHL = jnp.einsum("blnh->bnhl", x_BLNH)
  shift_BNMH = shift_NMH + jnp.zeros_like(x_BNHL[..., :1].swapaxes(2, 3))  # on the devices of each example
  return shift_BNMH @ x_BNHL


def _by_times_shifts(operands: tuple[jax.Array, jax.Array], by: jax.Array) -> tuple[jax.Array, jax.Array]:
  x, shift = operands
  parts = [jnp.einsum("bnl,nh->blnh", by[:, :, r], shift[:, r]) for r in range(shift.shape[1])]
  return functools.reduce(jnp.add, parts), jnp.sum(jnp.einsum("bnml,blnh->bnmh", by, x), axis=0)


_turned_times_shifts.defvjp(lambda *operands: (_turned_times_shifts(*operands), operands), _by_times_shifts)


@jax.custom_vjp
def _turned_square_norms(x_BLNH: jax.Array) -> jax.Array:
  squares = jnp.einsum("blnh->bnhl", x_BLNH) ** 2
  return (jnp.ones_like(squares[..., :1].swapaxes(2, 3)) @ squares)[:, :, 0]


_turned_square_norms.defvjp(
  lambda x: (_turned_square_norms(x), x), lambda x, by: (2 * jnp.einsum("bnl,blnh->blnh", by, x),)
)


def dot_product(query_BTNH: jax.Array, key_BSNH: jax.Array) -> Scores:
  """The scores of `softmax_attention` (case 3)."""
  scale = jnp.full(1, query_BTNH.shape[-1] ** -0.5, jnp.promote_types(query_BTNH.dtype, jnp.float32))
  return Scores(*_by_head(query_BTNH, key_BSNH[:, :, :, None]), None, None, scale=scale)


def _by_head(query_BTNH: jax.Array, key_BSNKH: jax.Array) -> tuple[jax.Array, jax.Array]:
  return jnp.einsum("btnh->bnth", query_BTNH), jnp.einsum("bsnkh->bnksh", key_BSNKH)


def over_components(function: Callable[[jax.Array, jax.Array], jax.Array], x_BNML: jax.Array) -> jax.Array:
  """`function` of all components, [B, N, 1, L], one after the other: XLA:CPU takes long to begin with a small sum."""
  return functools.reduce(function, [x_BNML[:, :, r : r + 1] for r in range(x_BNML.shape[2])])


def shift_keys(key_BSNH: jax.Array, shift_NMH: jax.Array) -> jax.Array:
  """k_jr = k_j + b_r, [B, S, N, M, H], added in float32."""
  return at_least_float32(key_BSNH)[:, :, :, None] + shift_NMH


def _prior_by_column(log_prior: jax.Array, S: int, dtype: jnp.dtype) -> jax.Array:
  """The prior [N, M] or [S, N, M] as [N, M, S]."""
  log_prior = log_prior.astype(dtype)
  if log_prior.ndim == 3:
    return jnp.einsum("snm->nms", log_prior)
  # By a product with ones, so that the derivative is one too: XLA:CPU takes long to begin with a small sum.
  return jnp.einsum("nm,s->nms", log_prior, jnp.ones(S, dtype))
