"""Temporary memory of the compiled blocked kernels, forward and backward, from the compiler's own analysis."""

import jax
import jax.numpy as jnp
import pytest

from tests.kernels import problem

pytestmark = pytest.mark.usefixtures("optimised")

MIB = 2**20
KINDS = {
  "mgk": ("mgk", {}),
  "smgk": ("smgk", {}),
  "softmax": ("softmax", {}),
  "smgk-hard": ("smgk", {"estep": "hard"}),
}
N, M, H = 2, 2, 32


def temporary_bytes(name: str, length: int, dropout: bool) -> int:
  kind, options = KINDS[name]
  shapes = {"query": (1, length, N, H), "key": (1, length, N, H), "value": (1, length, N, H)}
  if kind == "mgk":
    shapes["key"] = (1, length, N, M, H)
  if kind == "smgk":
    shapes["shift"] = (N, M, H)
  if kind != "softmax":
    shapes["log_prior"], shapes["variance"] = (N, M), ()
  inputs = {name: jax.ShapeDtypeStruct(shape, jnp.float32) for name, shape in shapes.items()}
  lengths = jax.ShapeDtypeStruct((1,), jnp.int32)

  def value_and_gradients(inputs, cotangent, lengths, rng):
    masks = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
    random = {"dropout_rate": 0.1, "dropout_rng": rng} if dropout else {}
    attention = problem.function(kind, **masks, **options, **random, implementation="xla")
    output, pull_back = jax.vjp(attention, inputs)
    return output, pull_back(cotangent)

  compiled = jax.jit(value_and_gradients).lower(inputs, inputs["value"], lengths, jax.random.key(0)).compile()
  return compiled.memory_analysis().temp_size_in_bytes


@pytest.mark.parametrize("dropout", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["plain", "dropout"])
@pytest.mark.parametrize(
  "name", ["smgk", "softmax", *(pytest.param(x, marks=pytest.mark.slow) for x in ("mgk", "smgk-hard"))]
)
def test_temporary_memory_at_8192_and_when_the_length_doubles(name, dropout):
  """A single 8192 × 8192 float32 matrix of one head would be 256 MiB."""
  at_8192 = temporary_bytes(name, 8192, dropout)
  assert at_8192 < 64 * MIB, f"{at_8192 / MIB:.1f} MiB"
  at_16384 = temporary_bytes(name, 16384, dropout)
  assert at_16384 <= 2.2 * at_8192, f"{at_8192 / MIB:.1f} MiB, then {at_16384 / MIB:.1f} MiB"


def test_the_analysis_sees_the_materialised_matrix():
  """The reference needs the matrix that the blocked kernels are spared; if this were small, nothing would be proven."""
  x = jax.ShapeDtypeStruct((1, 2048, 1, 4), jnp.float32)
  attention = jax.jit(problem.function("softmax", implementation="reference"))
  compiled = attention.lower({"query": x, "key": x, "value": x}).compile()
  assert compiled.memory_analysis().temp_size_in_bytes > 2048 * 2048 * 4
