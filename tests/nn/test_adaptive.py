"""The adaptive softmax is a probability over all words, and its loss that of the dense form: values and gradients."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax.kernels import cross_entropy
from mgk_jax.nn.adaptive import AdaptiveVocabulary
from tests.nn.compiling import jit

VOCABULARY = 50


def make(cutoffs=(10, 14, 40), div_val=1, **arguments):
  vocabulary = AdaptiveVocabulary(VOCABULARY, 8, cutoffs, div_val=div_val, rngs=nnx.Rngs(0), **arguments)
  for parameter in jax.tree.leaves(nnx.state(vocabulary), is_leaf=lambda x: isinstance(x, nnx.Variable)):
    parameter[...] = jax.random.normal(jax.random.key(parameter.size), parameter.shape)
  return vocabulary


def hidden_and_targets(*shape, only=None):
  targets = jax.random.randint(jax.random.key(1), shape, 0, VOCABULARY)
  targets = targets if only is None else jnp.full(shape, only)
  return jax.random.normal(jax.random.key(0), (*shape, 8)), targets


@pytest.mark.parametrize(("cutoffs", "div_val"), [((), 1), ((10,), 1), ((10, 14, 40), 2)])
def test_a_probability_over_all_words(cutoffs, div_val):
  vocabulary = make(cutoffs, div_val)
  log_probs = jit(vocabulary.log_probs)(hidden_and_targets(5)[0])
  assert log_probs.shape == (5, VOCABULARY)
  np.testing.assert_allclose(jnp.sum(jnp.exp(log_probs), axis=-1), 1, atol=1e-5)


UNTIED = {"tie_embeddings": False, "tie_projections": [False, True, False, True]}


@pytest.mark.parametrize(
  ("cutoffs", "div_val", "only", "ties"),  # all sorts of words, or only one, of which there are more than a chunk holds
  [((10, 14, 40), 2, None, UNTIED), ((10, 14, 40), 1, 45, {}), ((10,), 1, 3, {}), ((), 1, None, {})],
)
def test_the_loss_is_that_of_the_dense_form(cutoffs, div_val, only, ties, monkeypatch):
  monkeypatch.setattr(cross_entropy, "CHUNK_LOGITS", 16 * 10)  # chunks of 16 of the 120 rows in the last cluster
  graph, state = nnx.split(make(cutoffs, div_val, **ties))
  hidden, targets = hidden_and_targets(4, 30, only=only)

  def dense(vocabulary, hidden):
    return -jnp.take_along_axis(vocabulary.log_probs(hidden), targets[..., None], axis=-1)[..., 0]

  def value_and_gradients(losses):
    def weighted(state, hidden):
      found = losses(nnx.merge(graph, state), hidden)
      return jnp.sum(found * jnp.cos(jnp.arange(120).reshape(4, 30))), found

    return jit(jax.value_and_grad(weighted, argnums=(0, 1), has_aux=True))(state, hidden)

  found = value_and_gradients(lambda vocabulary, hidden: vocabulary.nll(hidden, targets))
  expected = value_and_gradients(dense)
  for got, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
    np.testing.assert_allclose(got, wanted, atol=1e-5 * float(jnp.max(jnp.abs(wanted), initial=1)))


def test_without_cutoffs_it_is_a_plain_softmax():
  vocabulary = make(())
  hidden, targets = hidden_and_targets(7)
  logits = hidden @ vocabulary.tables[0][...].T + vocabulary.bias[...]
  expected = -jax.nn.log_softmax(logits)[jnp.arange(7), targets]
  np.testing.assert_allclose(vocabulary.nll(hidden, targets), expected, atol=1e-5)


def test_embeddings_are_rows_of_the_tables():
  vocabulary = make(dtype=jnp.bfloat16)
  table = jnp.concatenate([table[...] for table in vocabulary.tables])
  tokens = jnp.arange(VOCABULARY).reshape(5, 10)
  embedded = vocabulary.embed(tokens)
  assert embedded.dtype == jnp.bfloat16
  np.testing.assert_allclose(embedded.astype(float), table[tokens] * 8**0.5, rtol=0.01)


def test_softmax_of_its_own():
  """Without ties the embedding has no part in the loss, nor the softmax in the embedding."""
  vocabulary = make(div_val=2, tie_embeddings=False, tie_projections=False)
  hidden, targets = hidden_and_targets(5)
  loss, vectors = vocabulary.nll(hidden, targets), vocabulary.embed(targets)
  vocabulary.tables[0][...] += 1
  vocabulary.projections[1][...] += 1
  assert np.array_equal(vocabulary.nll(hidden, targets), loss)
  assert not np.array_equal(vocabulary.embed(targets), vectors)
  vectors = vocabulary.embed(targets)
  vocabulary.softmax_tables[0][...] += 1
  assert not np.array_equal(vocabulary.nll(hidden, targets), loss)
  assert np.array_equal(vocabulary.embed(targets), vectors)


def test_logits_are_never_all_there():
  """Temporary memory of values and derivatives against that of one array of words × vocabulary."""
  words, size = 4096, 30_000
  graph, state = nnx.split(AdaptiveVocabulary(size, 8, (1_000, 10_000), rngs=nnx.Rngs(0)))
  targets = jnp.zeros(words, jnp.int32)
  gradient = jax.grad(lambda state, hidden: jnp.sum(nnx.merge(graph, state).nll(hidden, targets)), argnums=(0, 1))
  compiled = jax.jit(gradient).lower(state, jnp.zeros((words, 8))).compile()
  assert compiled.memory_analysis().temp_size_in_bytes < words * size * 4 / 3


def test_parameters():
  """WikiText-103 at 128 dimensions: a vector and a bias for each word, and for each of the three rarer clusters."""
  vocabulary = nnx.eval_shape(lambda: AdaptiveVocabulary(267_735, 128, (20_000, 40_000, 200_000), rngs=nnx.Rngs(0)))
  count = sum(x.size for x in jax.tree.leaves(nnx.state(vocabulary, nnx.Param)))
  assert count == (267_735 + 3) * (128 + 1)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    ({"cutoffs": (10, 5)}, "cutoffs: expected ascending"),
    ({"cutoffs": (10, 50)}, "cutoffs: expected ascending"),
    ({"cutoffs": (10, 20), "div_val": 4}, "div_val: expected at least one dimension"),
  ],
)
def test_malformed(arguments, message):
  with pytest.raises(ValueError, match=message):
    make(**arguments)
