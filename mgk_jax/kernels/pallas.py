"""The Pallas kernels of the platform; on a CPU those for TPUs, interpreted."""

import jax

from mgk_jax.kernels import dispatch, flash, pallas_tpu
from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.scores import Scores


def attention(scores: Scores, value_BSNV: jax.Array, masking: Masking, dims: Dims, estep: str) -> jax.Array:
  """h_i = Σ_j A_ij v_j, [B, T, N, V].

  Raises:
    NotImplementedError: the kernels cannot do it.
  """
  return flash.attention(backend(), scores, value_BSNV, masking, dims, estep)


def backend() -> flash.Backend:
  """What `flash` runs on this platform."""
  platform = dispatch.platform()
  if platform == "gpu":
    from mgk_jax.kernels import pallas_gpu  # needs the Triton backend, which other platforms may lack

    return flash.Backend(pallas_gpu)
  return flash.Backend(pallas_tpu, interpret=platform != "tpu")
