"""Products on the tensor cores of GPUs, which multiply bfloat16 or float16 and add up in float32.

A float32 number is the sum of three in bfloat16, to the last bit: x = x₀ + x₁ + x₂, |x₁| ≤ 2⁻⁸ |x|, |x₂| ≤ 2⁻¹⁶ |x|. A
product of two are the six products x_i y_j with i + j ≤ 2: those left out sum to at most 2⁻²³ |x y|, one unit in the
last place, and on average to far less. (The two parts that TF32 needs would lose 2⁻²¹ at the same cost.) The parts of a
kernel's inputs are computed once, before the kernel.
"""

import functools
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import lax
from jax.experimental import pallas as pl

SMALLEST_SIDE = 16  # of a product

Parts = Sequence[jax.Array]  # arrays whose sum is meant


def split(x: jax.Array) -> jax.Array:
  """The parts of an input as its first axis: three of bfloat16 for float32, else itself."""
  if x.dtype != jnp.float32:
    return x[None]
  parts = []
  for _ in range(3):
    part = lax.reduce_precision(x, exponent_bits=8, mantissa_bits=7)  # not a cast and back, which XLA may leave out
    parts.append(part.astype(jnp.bfloat16))
    x = x - part
  return jnp.stack(parts)


def like(other: Parts, x: jax.Array) -> Parts:
  """A tile in parts as those of what it is to be multiplied with."""
  if len(other) == 1:
    return [x.astype(other[0].dtype)]
  parts = []
  for _ in range(2):
    bits = lax.bitcast_convert_type(x, jnp.int32) + 2**15  # rounds to the upper half of the bits
    part = lax.bitcast_convert_type(bits & -(2**16), jnp.float32)
    parts.append(part.astype(jnp.bfloat16))
    x = x - part
  return [*parts, x.astype(jnp.bfloat16)]


def dot(a: Parts, b: Parts, *, turned: bool = False) -> jax.Array:
  """a b, or with `turned` a bᵀ; of parts the smallest products first."""
  dimensions = (((1,), (1 if turned else 0,)), ((), ()))
  orders = [(i, j) for order in reversed(range(len(a))) for i in range(order + 1) for j in [order - i]]
  products = (lax.dot_general(a[i], b[j], dimensions, preferred_element_type=jnp.float32) for i, j in orders)
  return functools.reduce(jnp.add, products)


def padded_width(size: int) -> int:
  """The least power of two that holds `size` and that a product can have as its side."""
  return max(SMALLEST_SIDE, pl.next_power_of_2(size))
