"""The tests run on the CPU unless the caller chooses a platform, and most of them with code that is not optimised."""

import os
import shutil
import tempfile

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling is most of what the tests do, and optimising half of compiling. Programs that tests start inherit it.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
# What one process has compiled, the others of a test run need not: many train the same small models.
_CACHE = None
if "JAX_COMPILATION_CACHE_DIR" not in os.environ:
  _CACHE = os.environ["JAX_COMPILATION_CACHE_DIR"] = tempfile.mkdtemp(prefix="mgk_jax_tests_")
  os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.5")

import jax  # noqa: E402
import pytest  # noqa: E402


def pytest_unconfigure():
  """Only the process that has made the cache deletes it, after all others."""
  if _CACHE is not None:
    shutil.rmtree(_CACHE, ignore_errors=True)


@pytest.fixture(scope="module")
def optimised():
  """For tests that hold kernels to their definition: compiled as for users."""
  before = jax.config.read("jax_disable_most_optimizations")
  jax.config.update("jax_disable_most_optimizations", False)
  yield
  jax.config.update("jax_disable_most_optimizations", before)
