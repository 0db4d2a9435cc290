"""The definition of a whole `MixtureAttention`, in float64 numpy, from its parameters."""

import jax.numpy as jnp
import numpy as np
from flax import nnx

from mgk_jax.nn import EMPrior, FixedPrior
from tests.kernels import definition


def array(variable):
  return np.asarray(variable[...], np.float64)


def project(layer, x, axes=1):
  kernel = array(layer.kernel)
  out = np.tensordot(np.asarray(x, np.float64), kernel, axes=axes)
  return out if layer.bias is None else out + array(layer.bias)


def problem(module, inputs_q, inputs_k=None, inputs_v=None, **masks):
  """The attention problem [B, T, N, H] that the module's parameters pose; see `tests.kernels.definition`."""
  inputs_k = inputs_q if inputs_k is None else inputs_k
  inputs_v = inputs_k if inputs_v is None else inputs_v
  query, key, value = project(module.query, inputs_q), project(module.key, inputs_k), project(module.value, inputs_v)
  softmax = module.mixing.kernel == "softmax"
  if not softmax and module.shift is None and key.ndim == 4:
    key = key[:, :, :, None]
  log_prior = None
  if module.prior is not None:
    prior = array(module.prior)
    prior = prior[: key.shape[1]] if prior.ndim == 3 else np.broadcast_to(prior, (module.num_heads, prior.shape[-1]))
    with np.errstate(divide="ignore"):
      log_prior = np.log(np.clip(prior, 0, 1))
  variance = module.variance if module.log_variance is None else np.exp(array(module.log_variance))
  return definition.Attention(
    query, key, value, shift=None if module.shift is None else array(module.shift), log_prior=log_prior,
    variance=variance, estep=module.mixing.estep, dot_product=softmax, **masks,
  )  # fmt: skip


def output(module, *inputs, **masks):
  """What the module should return, [B, T, D]."""
  return project(module.out, problem(module, *inputs, **masks).output, axes=2)


def randomise(module, seed=0):
  """Gives every parameter and prior a random value of a size that it might have."""
  rng = np.random.default_rng(seed)
  for path, variable in nnx.to_flat_state(nnx.state(module, (nnx.Param, EMPrior, FixedPrior))):
    if path[-1] == "prior":
      value = rng.uniform(0.05, 1.1, variable.shape)  # some above 1, where it is clamped
      value = value / value.sum(-1, keepdims=True) if isinstance(variable, EMPrior) else value
    elif path[-1] == "kernel":
      value = rng.normal(size=variable.shape) / np.sqrt(np.prod(variable.shape[: 2 if "out" in path else 1]))
    else:
      value = rng.normal(size=variable.shape)
    variable[...] = jnp.asarray(value, variable.dtype)
  return module


def from_zeros(make, *arguments, **keywords):
  """A `MixtureAttention` with `randomise`d parameters; zeros are quicker to start from than jax.random."""
  zeros = nnx.initializers.zeros_init()
  return randomise(make(*arguments, kernel_init=zeros, **{"shift_init": zeros, **keywords}, rngs=nnx.Rngs(0)))
