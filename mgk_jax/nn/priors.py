"""The mixture's prior π as a variable: learned by gradient, re-estimated by EM, or fixed."""

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype


class EMPrior(nnx.Variable):
  """π re-estimated by the M step, [max_len, N, M]. Not a parameter: no gradient reaches it."""


class FixedPrior(nnx.Variable):
  """π that nothing changes. It starts at equal weights; assign to it for any other choice."""


def make(kind: str, scope: str, num_heads: int, num_components: int, max_len: int | None, dtype: Dtype) -> nnx.Variable:
  """The variable of a prior, at equal weights 1/M.

  Its shape is [N, M] for scope "head", [1, M] for "shared" (by all heads) and [max_len, N, M] for "position"; an EM
  prior is always per position.
  """
  shape: tuple[int, ...] = (1 if scope == "shared" else num_heads, num_components)
  if kind == "em" or scope == "position":
    assert max_len is not None  # checked in `choices.check`
    shape = (max_len, num_heads, num_components)
  if kind == "em":
    dtype = jnp.promote_types(dtype, jnp.float32)  # responsibilities near 1 need the digits
  variable: type[nnx.Variable] = {"sgd": nnx.Param, "em": EMPrior, "fixed": FixedPrior}[kind]
  return variable(jnp.full(shape, 1 / num_components, dtype))


def log_weights(prior: nnx.Variable | None, num_heads: int, length: int) -> jax.Array | None:
  """log π of the first `length` keys: [N, M] or [length, N, M]; None for no prior.

  Raises:
    ValueError: a prior per position, and more keys than it has positions.
  """
  if prior is not None and prior[...].ndim == 3 and length > prior.shape[0]:
    raise ValueError(f"expected at most max_len={prior.shape[0]} keys with a prior per position, got {length}")
  return log_weights_at(prior, num_heads, slice(length))


def log_weights_at(prior: nnx.Variable | None, num_heads: int, positions: jax.Array | slice) -> jax.Array | None:
  """log π of the keys at `positions` [S]: [N, M] or [S, N, M]. Positions past the last one have its prior."""
  if prior is None:
    return None
  value = prior[...]
  if value.ndim == 2:
    return log_clamped(jnp.broadcast_to(value, (num_heads, value.shape[-1])))
  if isinstance(positions, slice):
    return log_clamped(value[positions])
  return log_clamped(value[jnp.clip(positions, 0, len(value) - 1)])


def log_clamped(prior: jax.Array) -> jax.Array:
  """log(clip(π, 0, 1)), −inf where π <= 0, with zero gradient outside (0, 1] instead of log's infinite one at 0."""
  inside = jnp.where(prior > 1, 1.0, prior)
  positive = inside > 0
  return jnp.where(positive, jnp.log(jnp.where(positive, inside, 1.0)), -jnp.inf)
