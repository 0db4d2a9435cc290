"""Ways to run modules in tests, where compiling takes all the time and running none."""

import functools

import jax
import numpy as np
from flax import nnx

jit = functools.partial(jax.jit, compiler_options={"xla_backend_optimization_level": 0})


def call(module, *inputs, **arguments):
  """module(*inputs, **arguments) in one compiled function; changes of variables are lost."""
  graphdef, state = nnx.split(module)
  arrays = {name: x for name, x in arguments.items() if isinstance(x, jax.Array | np.ndarray)}
  static = {name: x for name, x in arguments.items() if name not in arrays}
  return jit(lambda state, inputs, arrays: nnx.merge(graphdef, state)(*inputs, **arrays, **static))(
    state, inputs, arrays
  )
