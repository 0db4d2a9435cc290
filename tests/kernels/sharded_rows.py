"""A program for eight devices: the adaptive softmax where words are cut over them, compared with one device.

Run by test_sharded_rows in a process of its own:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.kernels.sharded_rows
"""

import re

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P

import mgk_jax
from mgk_jax.nn.adaptive import AdaptiveVocabulary

VOCABULARY, FEATURES = 512, 16


def main() -> None:
  assert jax.device_count() == 8
  vocabulary = AdaptiveVocabulary(VOCABULARY, FEATURES, (16, 64), div_val=2, rngs=nnx.Rngs(0))
  graphdef, params = nnx.split(vocabulary)
  params = jax.tree.map(lambda x: x * 5, params)  # so that words differ
  keys = jax.random.split(jax.random.key(1), 3)
  hidden = jax.random.normal(keys[0], (8, 24, FEATURES))
  # Frequent words more often, and rows of a device without any rare word.
  words = jnp.floor(VOCABULARY ** jax.random.uniform(keys[1], (8, 24))).astype(jnp.int32).at[0].set(3) % VOCABULARY
  weights = jax.random.uniform(keys[2], (8, 24))

  def loss(params, hidden, words, weights):
    losses = nnx.merge(graphdef, params).nll(hidden, words)
    return jnp.sum(losses * weights), losses

  gradient = jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)
  (_, expected), expected_grads = jax.jit(gradient)(params, hidden, words, weights)
  for data, model in ((8, 1), (4, 2), (2, 4)):
    mesh = jax.make_mesh((data, model), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def sharded(*arguments, mesh=mesh):
      with mgk_jax.sharded_heads(mesh, batch="data", heads="model"):
        return gradient(*arguments)

    rows = NamedSharding(mesh, P("data"))
    placed = [jax.device_put(params, NamedSharding(mesh, P())), *jax.device_put((hidden, words, weights), rows)]
    compiled = jax.jit(sharded).lower(*placed).compile()
    (_, losses), grads = compiled(*placed)
    np.testing.assert_allclose(losses, expected, atol=1e-5)
    for got, want in zip(jax.tree.leaves(grads), jax.tree.leaves(expected_grads), strict=True):
      np.testing.assert_allclose(got, want, atol=2e-5)  # sums over devices in another order
    # Logits exist for the words that a device holds: 192 / 8 rows, never for all of them.
    sizes = {int(size) for size in re.findall(r"f32\[(\d+),18\]", compiled.as_text())}
    assert sizes and max(sizes) <= 24, sizes
  print("all equal")


if __name__ == "__main__":
  main()
