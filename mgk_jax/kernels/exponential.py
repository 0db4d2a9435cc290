"""Powers of two of a tile of scores, to which on CPUs most of the time between two products goes.

Scores and log normalisers in bits, of which 2^x is the exponential, save the multiplication and the careful subtraction
with which e^x begins. XLA:CPU's own exponential takes more than twice as long. It also counts as expensive there: where
two products need weights that differ by a factor, XLA writes them, reads them and writes them again, in place of
computing them for each product.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgk_jax.kernels import dispatch

NATS = math.log(2)  # of a bit

# 2^f = 1 + f (…) for |f| ≤ 1/2, of least relative error, 9e-8; the highest power first.
_POLYNOMIAL = np.array([0.00132647, 0.00967151, 0.05550734, 0.24022242, 0.69314698, 1.0], np.float32)
_BIAS = 127  # of the exponent of a float32 number
_INTEGER = np.float32(1.5 * 2**23)  # added to a small integer, it leaves that in the lowest bits


def of_tiles(dtype: jnp.dtype) -> Callable[[jax.Array], jax.Array]:
  """The 2^x for x ≤ 127 that is the fastest for tiles of this dtype on the platform."""
  return by_polynomial if dispatch.platform() == "cpu" and dtype == jnp.float32 else jnp.exp2


def by_polynomial(x: jax.Array) -> jax.Array:
  """2^x of float32 numbers x ≤ 127, with a relative error below 2^-22 of normal numbers, and 0 below 2^-126.5."""
  x = jnp.where(x < -_BIAS, -_BIAS, x)  # a comparison that is false for NaN, which stays one
  # x = n + f, so that 2^x = 2^n 2^f.
  n = lax.round(x, lax.RoundingMethod.TO_NEAREST_EVEN)
  f = x - n
  power: jax.Array | np.float32 = _POLYNOMIAL[0]
  for coefficient in _POLYNOMIAL[1:]:
    power = power * f + coefficient
  # The bits of 2^n are its exponent, and those of 0 if n is -127.
  exponent = lax.bitcast_convert_type(n + (_INTEGER + _BIAS), jnp.int32) << 23
  return power * lax.bitcast_convert_type(exponent, jnp.float32)
