"""The scores of shifted keys, in the form of each platform, against ‖q − k − b‖² in float64, with their gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from mgk_jax.kernels import dispatch, scores

B, T, N, M, H = 2, 5, 3, 2, 4


@pytest.mark.parametrize("platform", ["cpu", "gpu", "tpu"])
def test_shifted_keys(platform):
  random = np.random.default_rng(0)
  query, key = random.standard_normal((2, B, T, N, H))
  shift, cotangent = random.standard_normal((N, M, H)), random.standard_normal((B, N, M, T, T))
  variance, log_prior = 0.7, np.log(random.dirichlet(np.ones(M), N))

  def definition(query, key, shift):
    keys = key[:, :, :, None] + shift
    distance = jnp.sum((query[:, :, None, :, None] - keys[:, None]) ** 2, -1)
    return jnp.einsum("btsnm->bnmts", log_prior - distance / (2 * variance))

  def bilinear(query, key, shift):
    x = scores.shifted_gaussian(query, key, shift, jnp.asarray(log_prior), jnp.asarray(variance))
    product = jnp.einsum("bnth,bnsh->bnts", x.query, x.key[:, :, 0]) * x.scale[0]
    terms = x.row[..., :, None] + x.column[..., None, :] + x.shared[:, :, None, None, :]
    own = jnp.einsum("btnh,btnh->bnt", query, query) / (2 * variance)  # which cancels in the posterior
    return product[:, :, None] + terms - own[:, :, None, :, None]

  with jax.enable_x64(True), dispatch.compiling_for(platform):
    operands = [jnp.asarray(x) for x in (query, key, shift)]
    found, expected = (jax.vjp(function, *operands) for function in (bilinear, definition))
    np.testing.assert_allclose(found[0], expected[0], atol=1e-12)
    for by_found, by_expected in zip(
      found[1](jnp.asarray(cotangent)), expected[1](jnp.asarray(cotangent)), strict=True
    ):
      np.testing.assert_allclose(by_found, by_expected, atol=1e-11)
