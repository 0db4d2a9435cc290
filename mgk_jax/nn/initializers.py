"""Initialisers with which the authors' models start."""

import math

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype, Initializer, Shape

# U(−1/√fan_in, 1/√fan_in), for the matrices of the authors' models.
uniform_by_fan_in: Initializer = nnx.initializers.variance_scaling(1 / 3, "fan_in", "uniform")

# b ~ N(0, 1), as the paper has it.
paper_shift: Initializer = nnx.initializers.normal(1.0)


def code_shift(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
  """Shifts [N, M, H] as in the authors' code: zero for the first component, N(0, 0.25) for the others."""
  return jax.random.normal(key, shape, dtype).at[:, 0].set(0) / 2


def uniform_bias(fan_in: int) -> Initializer:
  """U(−1/√fan_in, 1/√fan_in), for the biases of the authors' models."""
  limit = 1 / math.sqrt(fan_in)

  def init(key: jax.Array, shape: Shape, dtype: Dtype = jnp.float32) -> jax.Array:
    return jax.random.uniform(key, shape, dtype, -limit, limit)

  return init


SHIFTS = {"paper": paper_shift, "code": code_shift}
