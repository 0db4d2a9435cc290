"""What restricts the pairs of a call, in the form in which kernels take it, and whether they may factor its scores."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax

from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.dropout import Dropout
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.scores import SAFE_RANGE, Scores, over_components


class Limits(NamedTuple):
  """What restricts the pairs of a head, all of it without a gradient. Parts that don't restrict are None.

  All have leading axes [B or 1, N or 1].
  """

  key_bias: jax.Array | None  # [S], 0 or −inf
  pair_mask: jax.Array | None  # [T, S or 1]
  query_length: jax.Array | None  # []
  key_length: jax.Array | None  # []
  query_segments: jax.Array | None  # [T]
  key_segments: jax.Array | None  # [S]
  dropout_rows: jax.Array | None  # [T]
  dropout_columns: jax.Array | None  # [S]


class Options(NamedTuple):
  """The static part of a call."""

  estep: str
  is_causal: bool
  dropout_rate: float = 0.0


def make(masking: Masking, dims: Dims, dtype: jnp.dtype, dropout: Dropout | None = None) -> Limits:
  """The limits of all heads."""
  key_part = masking.key_part(dims)
  return Limits(
    key_bias=None if key_part is None else jnp.where(key_part, 0, -jnp.inf).astype(dtype),
    pair_mask=masking.pair_part(),
    query_length=None if masking.query_lengths is None else masking.query_lengths[:, None],
    key_length=None if masking.key_lengths is None else masking.key_lengths[:, None],
    query_segments=None if masking.query_segments is None else masking.query_segments[:, None],
    key_segments=None if masking.key_segments is None else masking.key_segments[:, None],
    dropout_rows=None if dropout is None else dropout.rows,
    dropout_columns=None if dropout is None else dropout.columns,
  )


def can_factor(scores: Scores, limits: Limits) -> jax.Array | None:
  """Whether the factored form is safe for each head, [B, N]: min(R_u, R_w) ≤ SAFE_RANGE, derived in `scores`.

  None where there is nothing to factor.
  """
  shares_product = scores.key.shape[2] == 1 < scores.num_components
  if not shares_product or scores.row is None or scores.column is None:
    return None

  def spread(x_BNML: jax.Array) -> jax.Array:
    top, bottom = over_components(jnp.maximum, x_BNML), over_components(jnp.minimum, x_BNML)
    return jnp.where(jnp.isneginf(top), 0, top - bottom)[:, :, 0]

  row_range, column_range = spread(scores.row), spread(scores.column)
  if limits.key_bias is not None:
    column_range = jnp.where(limits.key_bias == 0, column_range, 0)
  return lax.stop_gradient(jnp.minimum(jnp.max(row_range, axis=-1), jnp.max(column_range, axis=-1)) <= SAFE_RANGE)
