"""Dropout of activations at the price of a hash an element."""

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from jaxtyping import Array, Float

from mgk_jax.kernels import dropout
from mgk_jax.nn import stochastic


class Dropout(nnx.Dropout):
  """`nnx.Dropout` with masks made as the attention kernels make theirs: random words for rows and columns, hashed.

  nnx.Dropout draws a random word for each element, which takes a quarter of a training step of a small model on a CPU.
  As there, a mask depends on the key alone and not on how the inputs are sharded. `broadcast_dims` is not supported.

  Raises:
    ValueError: a rate outside [0, 1], or `broadcast_dims`.
  """

  def __init__(self, rate: float, **arguments: Any):
    super().__init__(rate, **arguments)
    if not 0 <= rate <= 1:
      raise ValueError(f"rate: expected a number from 0 to 1, got {rate}")
    if self.broadcast_dims:
      raise ValueError(f"broadcast_dims: expected none, got {self.broadcast_dims}; nnx.Dropout has them")

  def __call__(
    self, inputs: Float[Array, "*batch D"], *, deterministic: bool | None = None, rngs: Any = None
  ) -> Float[Array, "*batch D"]:
    """Zeros a share `rate` of the elements and scales up the others, unless `deterministic`."""
    if self.rate == 0.0 or not stochastic.is_training(deterministic, self.deterministic):
      return inputs
    if self.rate == 1.0:
      return jnp.zeros_like(inputs)
    key = rngs[self.rng_collection] if isinstance(rngs, nnx.Rngs) else rngs
    if not isinstance(key, jax.Array):
      key = stochastic.dropout_arguments(self.rate, False, self.rngs, key)["dropout_rng"]
    row_key, column_key = jax.random.split(key)
    rows = jax.random.bits(row_key, inputs.shape[:-1], jnp.uint32)[..., None]
    columns = jax.random.bits(column_key, inputs.shape[-1:], jnp.uint32)
    return inputs * dropout.multiplier(rows, columns, self.rate, inputs.dtype)
