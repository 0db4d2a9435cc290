"""Causal linear attention by Pallas: one kernel, which computes the values and all derivatives.

With v'_j = [v_j, 1], numerator and denominator of linear attention are one prefix sum,

    P(a, b, c)_i = Σ_{j≤i} c_j (b_j·a_i),                sums_i = P(φ, Φ, v')_i,

whose derivatives, given those g by its values, are prefix sums themselves, two of them over j ≥ i (P*):

    da = P(g, c, b),         db = P*(c, g, a),         dc = P*(b, a, g).

A kernel goes through the sequence in chunks. A chunk adds the quadratic part inside of it to S a_i, where the state
S = Σ_j c_j b_jᵀ is that of all chunks before.
"""

import functools
from types import ModuleType
from typing import NamedTuple

import jax
import jax.numpy as jnp

from mgk_jax.kernels import dispatch, linear_pallas_tpu
from mgk_jax.kernels.heads import over_heads, vary_alike
from mgk_jax.kernels.linear_features import divide


class Backend(NamedTuple):
  """Where kernels run: a module with `prefix_sums`. `interpret` is that of pl.pallas_call."""

  module: ModuleType
  interpret: bool = False


def attention(
  query_BTNF: jax.Array, key_BSNF: jax.Array, value_BSNV: jax.Array, log_weight_BSN: jax.Array | None
) -> jax.Array:
  """h, [B, T, N, V], as `linear_causal.attention` gives it; on a CPU by the kernel for TPUs, interpreted.

  Raises:
    NotImplementedError: keys with weights of their own, float64 or empty arrays.
  """
  if log_weight_BSN is not None:
    raise NotImplementedError("keys with weights of their own: a prior per position, or FAVOR+")
  if value_BSNV.dtype == jnp.float64 or 0 in (*query_BTNF.shape, *value_BSNV.shape):
    raise NotImplementedError("float64 or empty arrays")
  return attend(backend(), query_BTNF, key_BSNF, value_BSNV)


def backend() -> Backend:
  """What runs on this platform."""
  platform = dispatch.platform()
  if platform == "gpu":
    from mgk_jax.kernels import linear_pallas_gpu  # needs the Triton backend, which other platforms may lack

    return Backend(linear_pallas_gpu)
  return Backend(linear_pallas_tpu, interpret=platform != "tpu")


def attend(backend: Backend, query_BTNF: jax.Array, key_BSNF: jax.Array, value_BSNV: jax.Array) -> jax.Array:
  """Attention of positive features."""
  T = query_BTNF.shape[1]

  def fit(x_BSNX: jax.Array) -> jax.Array:
    # Keys past the last query are seen by nobody, and those that are missing have no features.
    return jnp.pad(x_BSNX[:, :T], [(0, 0), (0, max(0, T - x_BSNX.shape[1])), (0, 0), (0, 0)])

  value_BTNV = jnp.concatenate([fit(value_BSNV), jnp.ones_like(query_BTNF[..., :1])], axis=-1)
  operands = (jnp.swapaxes(x, 1, 2) for x in (query_BTNF, fit(key_BSNF), value_BTNV))
  sums = jnp.swapaxes(_prefix_sums(backend, False, *vary_alike(tuple(operands))), 1, 2)
  return divide(sums[..., :-1], sums[..., -1:])


@functools.partial(jax.custom_vjp, nondiff_argnums=(0, 1))
def _prefix_sums(backend: Backend, backwards: bool, a_BNLF: jax.Array, b_BNLF: jax.Array, c_BNLV: jax.Array):
  """Σ c_j (b_j·a_i) over j <= i, or with `backwards` over j >= i: [B, N, L, V]."""
  run = functools.partial(backend.module.prefix_sums, backwards=backwards, interpret=backend.interpret)
  return over_heads(lambda operands: run(*operands), (a_BNLF, b_BNLF, c_BNLV))


def _forward(backend: Backend, backwards: bool, a, b, c):
  return _prefix_sums(backend, backwards, a, b, c), (a, b, c)


def _backward(backend: Backend, backwards: bool, operands: tuple[jax.Array, ...], g: jax.Array):
  a, b, c = operands
  along = functools.partial(_prefix_sums, backend, backwards)
  against = functools.partial(_prefix_sums, backend, not backwards)
  return along(g, c, b), against(c, g, a), against(b, a, g)


_prefix_sums.defvjp(_forward, _backward)
