"""The Pallas kernels compiled, forward and backward, for TPUs and GPUs that are not there.

Needs the extra aot-tpu, or aot-cuda; machines whose compiler is not installed are skipped.
"""

import jax
import jax.numpy as jnp
import pytest

import mgk_jax
from mgk_jax.training import targets
from mgk_jax.training.failures import TrainingStopped

pytestmark = pytest.mark.aot

B, N, M = 8, 4, 2
KINDS = ("softmax", "mgk", "smgk", "mgk hard", "smgk hard", "mlk")


def attention(kind, query, key, value, shift, lengths):
  name, _, estep = kind.partition(" ")
  options = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths, "implementation": "pallas"}
  if name == "softmax":
    return mgk_jax.softmax_attention(query, key[:, :, :, 0], value, **options)
  if name == "mlk":
    return mgk_jax.mixture_linear_attention(query, key, value, is_causal=True, **options)
  if name == "mgk":
    return mgk_jax.mixture_attention(query, key, value, estep=estep or "soft", **options)
  return mgk_jax.shifted_mixture_attention(query, key[:, :, :, 0], value, shift, estep=estep or "soft", **options)


@pytest.mark.parametrize("head_dim", [32, 64, 128])
@pytest.mark.parametrize("length", [2048, 4096, 16384])
@pytest.mark.parametrize("machine", ["v5e:2x2", "v5p:2x2x1", "v6e:2x2", "a100x1", "h100x1"])
@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward(kind, machine, length, head_dim):
  try:
    target = targets.find(machine)
  except TrainingStopped as error:
    pytest.skip(str(error))
  sharding = jax.sharding.SingleDeviceSharding(target.devices[0])

  def abstract(shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  query = abstract((B, length, N, head_dim))
  operands = (query, abstract((B, length, N, M, head_dim)), query, abstract((N, M, head_dim), jnp.float32))

  def loss(query, key, value, shift, lengths):
    return jnp.sum(attention(kind, query, key, value, shift, lengths).astype(jnp.float32) ** 2)

  with mgk_jax.compiling_for(target.platform):
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3)))
    compiled = gradient.lower(*operands, abstract((B,), jnp.int32)).compile()
  needed = compiled.memory_analysis().temp_size_in_bytes
  scores = B * N * length * length * 2  # bytes of one bfloat16 array of all pairs
  print(f"{kind}, {machine}, N={length}, D={head_dim}: {needed / 2**20:.0f} MiB of temporary memory")
  assert ("xla.gpu.triton" if target.platform == "gpu" else "tpu_custom_call") in compiled.as_text()
  assert needed < scores or length == 2048
