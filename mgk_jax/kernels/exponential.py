"""The exponential of a tile of scores, to which on CPUs most of the time between two products goes.

XLA:CPU's own takes about twice as long as this one. It also counts as expensive there: where two products need weights
that differ by a factor, XLA writes them, reads them and writes them again, in place of computing them for each product.
"""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from mgk_jax.kernels import dispatch

# e^f = 1 + f + f² (…) for |f| ≤ log(2) / 2, of least relative error, 1.05e-7; the highest power first.
_POLYNOMIAL = np.array([0.00831252, 0.0418902, 0.16667115, 0.49999231, 1.0, 1.0], np.float32)
# log 2 in two parts, of which the first has so few bits that its products with integers are exact.
_LOG_2 = np.float32(0.693359375)
_LOG_2_REST = np.float32(math.log(2) - 0.693359375)
_LOG2_E = np.float32(1 / math.log(2))
_INTEGER = np.float32(1.5 * 2**23)  # added to a small integer, it leaves that in the lowest bits
_LOWEST, _HIGHEST = np.float32(-87.3), np.float32(88.7)  # of a result that is a normal number


def of_tiles(dtype: jnp.dtype) -> Callable[[jax.Array], jax.Array]:
  """The exponential that is the fastest for tiles of this dtype on the platform."""
  return by_polynomial if dispatch.platform() == "cpu" and dtype == jnp.float32 else jnp.exp


def by_polynomial(x: jax.Array) -> jax.Array:
  """e^x of float32 numbers with a relative error below 2^-22; 0 where that would not be a normal number."""
  # x = n log 2 + f, so that e^x = 2^n e^f; n is added to the exponent of e^f.
  n = lax.round(x * _LOG2_E, lax.RoundingMethod.TO_NEAREST_EVEN)
  f = (x - n * _LOG_2) - n * _LOG_2_REST
  power: jax.Array | np.float32 = _POLYNOMIAL[0]
  for coefficient in _POLYNOMIAL[1:]:
    power = power * f + coefficient
  exponent = lax.bitcast_convert_type(n + _INTEGER, jnp.int32) << 23
  result = lax.bitcast_convert_type(lax.bitcast_convert_type(power, jnp.int32) + exponent, jnp.float32)
  # Comparisons that are false for NaN, which stays one.
  return jnp.where(x < _LOWEST, 0, jnp.where(x > _HIGHEST, jnp.inf, result))
