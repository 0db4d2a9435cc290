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
  """

  def __call__(
    self, inputs: Float[Array, "*batch D"], *, deterministic: bool | None = None, rngs: Any = None
  ) -> Float[Array, "*batch D"]:
    """Zeros a share `rate` of the elements and scales up the others, unless `deterministic`."""
    if self.rate == 0.0 or not stochastic.is_training(deterministic, self.deterministic):
      return inputs
    own = self.rngs.dropout if isinstance(self.rngs, nnx.Rngs) else self.rngs
    arguments = stochastic.dropout_arguments(self.rate, False, own, rngs)
    row_key, column_key = jax.random.split(arguments["dropout_rng"])
    rows = jax.random.bits(row_key, inputs.shape[:-1], jnp.uint32)[..., None]
    columns = jax.random.bits(column_key, inputs.shape[-1:], jnp.uint32)
    return inputs * dropout.multiplier(rows, columns, self.rate, inputs.dtype)
