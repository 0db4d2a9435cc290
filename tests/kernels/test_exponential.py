"""Powers of two by a polynomial against those of float64, over all that a score less its maximum can be."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax import compiling_for
from mgk_jax.kernels import exponential


@pytest.fixture(scope="module")
def compiled():
  return jax.jit(exponential.by_polynomial)


def test_its_relative_error_is_that_of_two_roundings(compiled):
  x = np.concatenate([np.linspace(-126, 127, 2_000_001), np.logspace(-40, 1, 100_001), -np.logspace(-40, 1, 100_001)])
  x = x.astype(np.float32)
  assert np.max(np.abs(np.asarray(compiled(x), np.float64) / np.exp2(x.astype(np.float64)) - 1)) <= 2 * 2**-23


def test_it_is_exact_at_integers(compiled):
  x = np.arange(-126, 128, dtype=np.float32)
  assert np.array_equal(compiled(x), np.exp2(x.astype(np.float64)))


def test_it_is_exact_at_zero(compiled):
  assert compiled(jnp.zeros(1)).item() == compiled(-jnp.zeros(1)).item() == 1


@pytest.mark.parametrize("x", [-126.6, -127.0, -127.4, -1e3, -1e30, np.finfo(np.float32).min, -np.inf])
def test_what_would_not_be_a_normal_number_is_zero(compiled, x):
  assert compiled(jnp.float32(x)).item() == 0


def test_between_normal_numbers_and_zero_it_stays_small_and_positive(compiled):
  x = np.linspace(-127, -126, 1001, dtype=np.float32)
  y = np.asarray(compiled(x), np.float64)
  assert np.all((y >= 0) & (y <= 2.0**-126))


@pytest.mark.parametrize("bits", [0x7FC00000, 0xFFC00000])
def test_nan_stays_nan(compiled, bits):
  assert np.isnan(compiled(np.uint32(bits).view(np.float32)).item())


def test_it_rises_with_its_argument(compiled):
  # Where n changes, the ends of two polynomials meet; they may differ by their rounding, and no more.
  middle = np.arange(-100, 100) + 0.5
  x = np.sort((middle[:, None] + np.linspace(-1e-4, 1e-4, 101)).astype(np.float32).ravel())
  y = np.asarray(compiled(x), np.float64)
  assert np.all(y[1:] >= y[:-1] * (1 - 2.5e-7))


def test_it_is_for_float32_on_cpus():
  assert exponential.of_tiles(jnp.dtype(jnp.float32)) is exponential.by_polynomial
  assert exponential.of_tiles(jnp.dtype(jnp.float64)) is jnp.exp2
  for platform in ("tpu", "gpu"):
    with compiling_for(platform):
      assert exponential.of_tiles(jnp.dtype(jnp.float32)) is jnp.exp2
