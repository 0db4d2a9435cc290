"""The precision of everything between inputs and outputs."""

import jax
import jax.numpy as jnp


def at_least_float32(x: jax.Array) -> jax.Array:
  """`x` in float32, or in float64 if it is that already: scores, normalisers and sums are never less."""
  return x.astype(jnp.promote_types(x.dtype, jnp.float32))
