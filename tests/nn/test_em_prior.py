"""The EM prior: one M step per training call, from the prior before it, over the valid queries of the whole batch."""

import os
import subprocess
import sys
import textwrap

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax.nn import Classifier, ClassifierConfig, EMPrior, MixtureAttention
from tests.nn import projecting
from tests.nn.compiling import jit

B, T, D, MAX_LEN = 3, 6, 8, 9


def normal(seed, *shape):
  return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def make(implementation="reference", **arguments):
  return projecting.from_zeros(
    MixtureAttention, 2, D, prior="em", max_len=MAX_LEN, implementation=implementation, **arguments
  )


@pytest.mark.parametrize(("keys", "implementation"), [("projected", "reference"), ("shifted", None)])
def test_one_training_call(keys, implementation):
  module = make(implementation, keys=keys, num_components=3)
  x, lengths = normal(1, B, T, D), np.array([T, 4, 2])
  masks = {"query_seq_lengths": lengths, "key_value_seq_lengths": lengths}
  problem = projecting.problem(module, x, **masks)
  expected, before = projecting.output(module, x, **masks), np.asarray(module.prior[...])
  np.testing.assert_allclose(module(x, deterministic=False, **masks), expected, atol=2e-5)  # by the prior before
  np.testing.assert_allclose(module.prior[...][:T], problem.em_prior(), atol=1e-5)
  assert np.array_equal(module.prior[...][T:], before[T:])


def test_hard_assignments_are_counted_and_not_used():
  module, x = make(estep="hard", keys="shifted"), normal(1, B, T, D)
  unweighted = MixtureAttention(2, D, estep="hard", keys="shifted", rngs=nnx.Rngs(0), implementation="reference")
  nnx.update(unweighted, nnx.state(module, nnx.Param))
  np.testing.assert_allclose(module(x, deterministic=False), unweighted(x), atol=1e-6)
  shares = np.asarray(module.prior[...][:T]) * B * T  # whole numbers: each of the B·T queries chose one component
  np.testing.assert_allclose(shares, np.round(shares), atol=1e-4)
  np.testing.assert_allclose(shares.sum(-1), B * T, atol=1e-4)
  assert np.any(np.abs(shares / (B * T) - 0.5) > 0.1)
  np.testing.assert_allclose(module(x, deterministic=True), unweighted(x), atol=1e-6)


def test_keys_that_no_query_saw_keep_their_prior():
  module = make()
  before = np.asarray(module.prior[...])
  module(normal(1, B, T, D), deterministic=False, key_value_seq_lengths=np.array([2, 3, 1]))
  after = np.asarray(module.prior[...])
  np.testing.assert_allclose(after[3:], before[3:], atol=1e-6)
  assert np.all(np.any(after[:3] != before[:3], axis=-1))


def test_only_in_training_mode():
  module, x = make(), normal(1, B, T, D)
  before = np.asarray(module.prior[...])
  with pytest.raises(ValueError, match=r"deterministic: expected True or False .*EM prior, got None"):
    module(x)
  module(x, deterministic=True)
  module.eval()
  module(x)
  assert np.array_equal(module.prior[...], before)
  module.train()
  module(x)
  assert not np.allclose(module.prior[...][:T], before[:T])
  np.testing.assert_allclose(np.sum(module.prior[...], -1), 1, atol=1e-6)


def test_inside_grad_and_jit():
  x = normal(1, B, T, D)
  eager = make(deterministic=False)
  eager(x)
  expected = np.asarray(eager.prior[...])

  module = make(deterministic=False)

  @nnx.jit
  def gradients(module, x):
    return nnx.grad(lambda module: jnp.sum(module(x) ** 2))(module)

  result = gradients(module, x)
  np.testing.assert_allclose(module.prior[...], expected, atol=1e-6)
  assert {path[0] for path, _ in nnx.to_flat_state(result)} == {"query", "key", "value", "out"}

  graphdef, params, rest = nnx.split(make(deterministic=False), nnx.Param, ...)

  def loss(params, rest, x):
    module = nnx.merge(graphdef, params, rest, copy=True)
    return jnp.sum(module(x) ** 2), nnx.state(module, EMPrior)

  _, state = jit(jax.grad(loss, has_aux=True))(params, rest, x)
  np.testing.assert_allclose(state["prior"][...], expected, atol=1e-6)


def test_padding_does_not_count():
  """Lengths, a mask and padding ids tell the model the same; queries at padding have no part in the M step."""
  config = ClassifierConfig(
    vocab_size=20, max_len=8, num_layers=1, emb_dim=8, mlp_dim=8, head_dim=4, num_classes=3, classifier_dim=8,
    attention="mgk", prior="em", dropout_rate=0.0, attention_dropout_rate=0.0, implementation="reference",
  )  # fmt: skip
  model = Classifier(config, rngs=nnx.Rngs(0))
  graphdef, state = nnx.split(model)
  tokens = np.array([[3, 1, 4, 1, 0, 0], [5, 9, 2, 6, 5, 3]], np.int32)
  lengths, mask = np.array([4, 6]), tokens != 0

  @jit
  def prior(state, tokens, **padding):
    model = nnx.merge(graphdef, state)
    model(tokens, **padding)
    return model.encoder.blocks[0].attention.prior[...]

  by_ids = prior(state, tokens)
  np.testing.assert_allclose(prior(state, tokens, lengths=lengths), by_ids, atol=1e-6)
  np.testing.assert_allclose(prior(state, np.where(mask, tokens, 7), mask=mask), by_ids, atol=1e-6)
  np.testing.assert_allclose(prior(state, np.pad(tokens, ((0, 0), (0, 2)))), by_ids, atol=1e-6)
  gap = np.where(np.arange(6) == 1, False, mask)
  assert not np.allclose(prior(state, tokens, mask=gap), by_ids, atol=1e-4)
  other = np.where(np.arange(6) == 1, 8, tokens)  # what stands in the gap is seen by nobody and asks nobody
  np.testing.assert_allclose(prior(state, other, mask=gap), prior(state, tokens, mask=gap), atol=1e-6)


def test_is_averaged_over_the_global_batch():
  """Eight devices, each with two examples, get the prior that one device gets from all sixteen."""
  program = textwrap.dedent(
    """
    import jax, jax.numpy as jnp, numpy as np
    from flax import nnx
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
    from mgk_jax.nn import MixtureAttention

    module = MixtureAttention(2, 8, keys="shifted", prior="em", max_len=4, deterministic=False, rngs=nnx.Rngs(0))
    graphdef, state = nnx.split(module)
    x = jax.random.normal(jax.random.key(0), (16, 4, 8))
    lengths = jnp.arange(16) % 4 + 1

    @jax.jit
    def prior(state, x, lengths):
      module = nnx.merge(graphdef, state)
      module(x, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
      return module.prior[...]

    assert jax.device_count() == 8
    sharding = NamedSharding(Mesh(np.array(jax.devices()), "data"), P("data"))
    one = prior(state, x, lengths)
    eight = prior(state, jax.device_put(x, sharding), jax.device_put(lengths, sharding))
    assert len(eight.sharding.device_set) == 8
    np.testing.assert_allclose(eight, one, atol=1e-6)
    assert not np.allclose(one, 0.5, atol=1e-2)
    """
  )
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=8"}
  subprocess.run([sys.executable, "-c", program], env=environment, check=True, timeout=300)
