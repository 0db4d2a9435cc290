"""The language model: its parameters, its causality, and that going on from a state is one pass over all."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import mgk_jax
from mgk_jax.nn import language_model
from tests.nn import projecting
from tests.nn.compiling import jit

ATTENTIONS = ("softmax", "linear", "mgk", "smgk", "mlk", "smlk")
V, T, D = 90, 70, 8  # more words than tokens, and more tokens than a chunk of linear attention
SMALL = {
  "vocab_size": V, "max_len": T, "num_layers": 2, "emb_dim": D, "mlp_dim": 12, "num_heads": 2, "head_dim": 4,
  "cutoffs": (20, 50),
}  # fmt: skip
VARIANTS = [
  *({"attention": name} for name in ATTENTIONS),
  {"attention": "mgk", "estep": "hard"},
  {"attention": "smgk", "prior": "em"},
  {"attention": "mgk", "prior_scope": "position"},
]


@functools.cache
def split(settings):
  config = mgk_jax.LanguageModelConfig(**{**SMALL, **dict(settings)})
  return nnx.split(projecting.randomise(mgk_jax.LanguageModel(config, rngs=nnx.Rngs(0))))


def make(**settings):
  """A model whose parameters are far from where they start, so that everything has an effect."""
  return nnx.merge(*split(tuple(sorted(settings.items()))))


def tokens(*shape, seed=0):
  """Words that are all different in a row."""
  random = np.random.default_rng(seed)
  return jnp.asarray(np.stack([random.permutation(V)[: shape[-1]] for _ in range(shape[0])]), jnp.int32)


@pytest.mark.parametrize("num_heads", [8, 4])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_parameters(attention, num_heads):
  """The paper's models for WikiText-103, 44 million parameters, counted from their definition."""
  words, clusters, width, layers, hidden, N, H, M = 267_735, 3, 128, 16, 2048, num_heads, 16, 2
  vocabulary = (words + clusters) * (width + 1)  # a vector and a bias for each, shared with the embedding
  keys = {"softmax": 1, "linear": 1, "mgk": M, "smgk": 1, "mlk": M, "smlk": 1}[attention]
  projections = width * N * H * (1 + keys + 1) + N * H * width  # queries, keys and values; outputs
  shifts = N * M * H if attention in ("smgk", "smlk") else 0
  priors = N * M if attention not in ("softmax", "linear") else 0
  mlp = width * hidden + hidden + hidden * width + width
  norms = 2 * 2 * width
  expected = vocabulary + layers * (projections + shifts + priors + mlp + norms)

  config = mgk_jax.LanguageModelConfig(vocab_size=words, attention=attention, num_heads=num_heads)
  model = nnx.eval_shape(lambda: mgk_jax.LanguageModel(config, rngs=nnx.Rngs(0)))
  assert sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param))) == expected


def test_parameters_of_other_vocabularies():
  """Tables by cluster with div_val, projections, and what is not tied twice."""

  def count(**settings):
    model = nnx.eval_shape(
      lambda: mgk_jax.LanguageModel(mgk_jax.LanguageModelConfig(**{**SMALL, **settings}), rngs=nnx.Rngs(0))
    )
    return sum(x.size for x in jax.tree.leaves(nnx.state(model.vocabulary, nnx.Param)))

  biases, clusters = V + 2, 2 * D
  assert count() == V * D + biases + clusters
  assert count(tie_embeddings=False) == 2 * V * D + biases + clusters
  tables, projections = 20 * 8 + 30 * 4 + 40 * 2, (8 + 4 + 2) * D
  assert count(div_val=2) == tables + projections + biases + clusters
  assert count(div_val=2, tie_projections=[False, True, True]) == tables + projections + 8 * D + biases + clusters
  assert count(cutoffs=()) == V * D + V


@pytest.mark.parametrize("settings", VARIANTS, ids=str)
def test_causality(settings):
  """The gradient of each output by each word's vector: exactly zero for words that come later, and for no other.

  Words differ, so that each has a row of the table of its own.
  """
  graph, params, rest = nnx.split(make(**settings, cutoffs=(), num_layers=1), nnx.Param, ...)
  words = tokens(1, T)
  direction = jnp.asarray(np.random.default_rng(1).normal(size=D), jnp.float32)

  @jit
  def jacobian(params):
    def outputs(table):
      model = nnx.merge(graph, params, rest, copy=True)
      model.vocabulary.tables[0][...] = table
      # As in training, where an EM prior is re-estimated; but for dropout.
      return model.hidden(words, deterministic=False, rngs=nnx.Rngs(0))[0] @ direction

    return jax.jacrev(outputs)(params["vocabulary"]["tables"][0][...])

  by_word = np.abs(np.asarray(jacobian(params))[:, words[0]]).sum(-1)  # [T outputs, T words]
  future = np.triu(np.ones((T, T), bool), 1)
  assert np.all(by_word[future] == 0)
  assert np.all(by_word[~future] > 0)


@pytest.mark.parametrize(
  "settings",
  [
    {"attention": "mgk", "prior_scope": "position"},
    {"attention": "smgk", "estep": "hard"},
    {"attention": "mlk", "prior_scope": "position"},
    {"attention": "smlk"},
  ],
  ids=str,
)
def test_segments_are_one_pass(settings):
  """Of any lengths, a single token among them; `tests.lm.test_generate` has all attentions token by token."""
  model = make(**settings, implementation="reference")  # compiles fastest; linear segments have one form only
  words = tokens(2, T)

  @jit
  def run(words):
    state, parts = model.init_state(2), []
    for part in jnp.split(words, (3, 4), axis=1):
      hidden, state = model.extend(part, state, deterministic=True)
      parts.append(hidden)
    return jnp.concatenate(parts, axis=1), model.hidden(words, deterministic=True)

  np.testing.assert_allclose(*run(words), atol=2e-5)  # float32, in sums of another order


def test_positions_may_start_again_with_each_segment():
  model = make(attention="smlk", dropout_rate=0.0)
  words, size = tokens(2, 8), 4

  @jit
  def run(words):
    state, parts = model.init_state(2), []
    for part in jnp.split(words, 2, axis=1):
      hidden, state = model.extend(part, state, positions=jnp.arange(size))
      parts.append(hidden)
    return jnp.concatenate(parts, axis=1), model.hidden(words, positions=jnp.arange(8) % size)

  np.testing.assert_allclose(*run(words), atol=2e-5)


@pytest.mark.parametrize("attention", ["mgk", "mlk"])
def test_the_last_position_alone(attention):
  model = make(attention=attention)
  run = jit(
    lambda words: (model.hidden(words, deterministic=True), model.hidden(words, last_only=True, deterministic=True))
  )
  everything, last = run(tokens(3, T))
  np.testing.assert_allclose(last, everything[:, -1:], atol=1e-5)


def test_losses_are_of_the_next_word():
  """−log p of the targets, times weights; what p is, `tests.nn.test_adaptive` knows."""
  model = make(attention="softmax", implementation="reference")
  words, targets = tokens(2, 9), tokens(2, 9, seed=1)
  weights = jnp.asarray(np.random.default_rng(2).integers(0, 3, (2, 9)), jnp.float32)

  @jit
  def run(words):
    losses = model.nll(words, targets, weights, deterministic=True)
    return losses, model.log_probs(model.hidden(words, deterministic=True))

  losses, log_probs = run(words)
  expected = -np.take_along_axis(np.asarray(log_probs), np.asarray(targets)[..., None], axis=-1)[..., 0] * weights
  np.testing.assert_allclose(losses, expected, atol=1e-5 * np.max(np.abs(expected)))


def test_computation_in_bfloat16():
  """Outputs are in the computation's dtype, losses and parameters in float32."""
  model = make(attention="smlk", dtype="bfloat16")
  words = tokens(2, 9)
  hidden, losses = jax.eval_shape(
    lambda: (model.hidden(words, deterministic=True), model.nll(words, words, deterministic=True))
  )
  assert hidden.dtype == jnp.bfloat16 and losses.dtype == jnp.float32
  assert all(x.dtype == jnp.float32 for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


def test_sinusoids():
  expected = np.array([[np.sin(p * 10_000 ** (-2 * i / 6)) for i in range(3)] for p in (0, 1, 7)])
  found = language_model.sinusoids(jnp.array([0, 1, 7]), 6)
  np.testing.assert_allclose(found[:, :3], expected, atol=1e-6)
  np.testing.assert_allclose(found[:, 3:] ** 2 + expected**2, 1, atol=1e-6)
  assert language_model.sinusoids(jnp.arange(2), 5).shape == (2, 5)


def test_dropout_is_for_training_only():
  model = make(attention="softmax", dropout_rate=0.5, implementation="reference", num_layers=1)
  words = tokens(1, 5)
  train = jit(lambda key: model.hidden(words, deterministic=False, rngs=nnx.Rngs(dropout=key)))
  first, second = (train(jax.random.key(seed)) for seed in (0, 1))
  assert np.any(first != second)
  assert 0.2 < np.mean(np.asarray(first) == 0) < 0.8  # the last thing is dropout
  model.eval()
  evaluated, *same = jit(lambda: [model.hidden(words, **mode) for mode in ({}, {}, {"deterministic": True})])()
  assert np.all(evaluated != 0) and all(np.array_equal(evaluated, other) for other in same)


@pytest.mark.parametrize(
  ("settings", "message"),
  [
    ({"cutoffs": (20, 100)}, r"cutoffs: expected ascending numbers in \(0, vocab_size = 90\), got \[20, 100\]"),
    ({"div_val": 5}, "div_val: expected at least one dimension in each cluster"),
    ({"tie_projections": [True]}, "tie_projections: expected a bool, or one for each of 3 clusters"),
    ({"attention": "mgq"}, "attention: expected one of"),
    ({"attention": "mlk", "prior": "em"}, "EM belongs to Gaussian keys"),
  ],
)
def test_malformed_settings(settings, message):
  with pytest.raises(ValueError, match=message):
    mgk_jax.LanguageModelConfig(**{**SMALL, **settings})


def test_malformed_tokens():
  model = make(attention="mgk", prior_scope="position")
  with pytest.raises(ValueError, match=r"tokens: expected shape \[B, T\], got \[3\]"):
    model.hidden(jnp.arange(3))
  with pytest.raises(TypeError, match="tokens: expected integers, got float32"):
    model.hidden(jnp.ones((1, 3)))
  with pytest.raises(ValueError, match="expected at most max_len=70 keys with a prior per position, got 71"):
    model.hidden(tokens(1, 71), deterministic=True)
