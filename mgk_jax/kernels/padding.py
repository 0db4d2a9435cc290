"""Arrays filled up to whole blocks."""

import jax
import jax.numpy as jnp


def fill_up(x: jax.Array, multiple: int, *, axis: int = -1, fill: float = 0) -> jax.Array:
  """`x` with `fill` behind its end, so that the length of `axis` is a multiple; `x` itself if it is one already."""
  missing = -x.shape[axis] % multiple
  if not missing:
    return x
  widths = [(0, 0)] * x.ndim
  widths[axis] = (0, missing)
  return jnp.pad(x, widths, constant_values=fill)
