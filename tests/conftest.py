"""The tests run on the CPU unless the caller chooses a platform, and most of them with code that is not optimised."""

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of what the tests do, and optimising half of compiling. Programs that tests start inherit it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")

import jax
import pytest


@pytest.fixture(scope="module")
def optimised():
  """For tests that hold kernels to their definition: compiled as for users."""
  before = jax.config.read("jax_disable_most_optimizations")
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", before)
