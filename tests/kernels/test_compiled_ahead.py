"""The Pallas kernels compiled, forward and backward, for TPUs and GPUs that are not there.

    pytest -m aot -s tests/kernels/test_compiled_ahead.py    # -s shows the table of temporary memory

Needs the extra aot-tpu, or aot-cuda; machines whose compiler is not installed are skipped.
"""

import functools
import time

import jax
import jax.numpy as jnp
import pytest

import mgk_jax
from mgk_jax.analysis import table
from mgk_jax.training import targets
from mgk_jax.training.failures import TrainingStopped

pytestmark = pytest.mark.aot

B, N, M = 8, 4, 2
KINDS = ("softmax", "mgk", "smgk", "mgk hard", "smgk hard", "causal mlk")
MACHINES = ("v5e:2x2", "v5p:2x2x1", "v6e:2x2", "a100x1", "h100x1")
LENGTHS = (2048, 4096, 16384)
HEAD_DIMS = (32, 64, 128)


def attention(kind, query, key, value, shift, **options):
  if kind == "softmax":
    return mgk_jax.softmax_attention(query, key[:, :, :, 0], value, **options)
  if kind == "causal mlk":
    return mgk_jax.mixture_linear_attention(query, key, value, **options | {"is_causal": True})
  options["estep"] = "hard" if kind.endswith("hard") else "soft"
  if kind.startswith("smgk"):
    return mgk_jax.shifted_mixture_attention(query, key[:, :, :, 0], value, shift, **options)
  return mgk_jax.mixture_attention(query, key, value, **options)


@functools.cache
def machine_or_skip(name):
  try:
    return targets.find(name)
  except TrainingStopped as error:
    pytest.skip(str(error))


def compile_gradient(kind, target, length, head_dim, limits, is_causal=False):
  """Compiles forward and backward pass; `limits` are int32 arguments of an attention by their names and shapes."""
  sharding = jax.sharding.SingleDeviceSharding(target.devices[0])

  def abstract(shape, dtype=jnp.bfloat16):
    return jax.ShapeDtypeStruct(shape, dtype, sharding=sharding)

  def loss(query, key, value, shift, limits):
    options = {"is_causal": is_causal, "implementation": "pallas", **limits}
    return jnp.sum(attention(kind, query, key, value, shift, **options).astype(jnp.float32) ** 2)

  query = abstract((B, length, N, head_dim))
  operands = (query, abstract((B, length, N, M, head_dim)), query, abstract((N, M, head_dim), jnp.float32))
  limits = {name: abstract(shape, jnp.int32) for name, shape in limits.items()}
  with mgk_jax.compiling_for(target.platform):
    compiled = jax.jit(jax.grad(loss, argnums=(0, 1, 2, 3))).lower(*operands, limits).compile()
  assert ("xla.gpu.triton" if target.platform == "gpu" else "tpu_custom_call") in compiled.as_text()
  return compiled


@pytest.fixture(scope="module")
def found():
  """Collects temporary memory by machine, length, kind and head dimension, and shows it in the end."""
  figures = {}
  started = time.monotonic()
  yield figures
  if figures:
    rows = [
      [machine, f"{length}"]
      + [" / ".join(figures.get((machine, length, kind, size), "?") for size in HEAD_DIMS) for kind in KINDS]
      for machine, length in dict.fromkeys(key[:2] for key in sorted(figures))
    ]
    print(f"\n\nMiB of temporary memory at D = {' / '.join(map(str, HEAD_DIMS))}, B={B}, {N} heads, M={M}, bfloat16\n")
    print(table.markdown(["machine", "N", *KINDS], rows))
    print(f"\n{len(figures)} programs compiled in {(time.monotonic() - started) / 60:.0f} minutes")


@pytest.mark.parametrize("head_dim", HEAD_DIMS)
@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("kind", KINDS)
def test_forward_and_backward(kind, machine, length, head_dim, found):
  lengths = {"query_seq_lengths": (B,), "key_value_seq_lengths": (B,)}
  compiled = compile_gradient(kind, machine_or_skip(machine), length, head_dim, lengths)
  needed = compiled.memory_analysis().temp_size_in_bytes
  found[machine, length, kind, head_dim] = f"{needed / 2**20:.0f}"
  scores = B * N * length * length * 2  # bytes of one bfloat16 array of all pairs
  assert needed < scores or length == 2048


@pytest.mark.parametrize("machine", ["v5e:2x2", "a100x1"])
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "causal mlk"])
def test_causal_attention_of_packed_sequences(kind, machine):
  limits = {"segment_ids": (B, 1000), "query_seq_lengths": (B,), "key_value_seq_lengths": (B,)}
  compile_gradient(kind, machine_or_skip(machine), 1000, 64, limits, is_causal=True)


@pytest.mark.parametrize("machine", ["v5e:2x2", "a100x1"])
@pytest.mark.parametrize("kind", ["softmax", "smgk"])
def test_without_lengths(kind, machine):
  compile_gradient(kind, machine_or_skip(machine), 1000, 64, {})
