import dataclasses
import functools

import jax
import jax.numpy as jnp
import pytest
from flax import nnx

import mgk_jax
from mgk_jax.analysis import flops

# Nothing is run, so that widths may be large enough for products to be nearly all there is: what XLA counts besides, a
# few dozen elementwise operations for each entry of a result, is less than 1% of sums over thousands of terms. Every
# part of attention is more than 10% of the count.
WIDE = {
  "vocab_size": 16, "max_len": 1024, "num_layers": 1, "emb_dim": 512, "mlp_dim": 4096, "head_dim": 4096,
  "dropout_rate": 0.0, "attention_dropout_rate": 0.0, "implementation": "reference",
}  # fmt: skip
CASES = {
  "softmax": {"attention": "softmax"},
  "mgk": {"attention": "mgk", "num_components": 3},
  "mgk-hard": {"attention": "mgk", "estep": "hard"},
  "mgk-em": {"attention": "mgk", "prior": "em"},
  # The definition has a product for each component, as has every implementation if variances differ.
  "smgk-variances": {"attention": "smgk", "variance": (1.0, 2.0)},
  "smgk-variances-em": {"attention": "smgk", "variance": (1.0, 2.0), "prior": "em"},
  # The reference materialises weights that linear attention never forms; the other one has no loops unless causal.
  "linear": {"attention": "linear", "implementation": "xla"},
  "mlk-favor": {"attention": "mlk", "implementation": "xla", "feature_map": "favor", "head_dim": 512, "mlp_dim": 1024},
  "smlk": {"attention": "smlk", "implementation": "xla", "feature_map": "dpfp", "pooling": "cls"},
}


def xla_flops(config, batch_size, length, *, training):
  """What XLA counts in a forward pass or in a training step without the optimiser."""
  is_dual = isinstance(config, mgk_jax.DualEncoderConfig)
  model = mgk_jax.DualEncoder if is_dual else mgk_jax.Classifier
  graphdef, params, rest = nnx.split(nnx.eval_shape(lambda: model(config, rngs=nnx.Rngs(0))), nnx.Param, ...)
  tokens = [jax.ShapeDtypeStruct((batch_size, length), jnp.int32)] * (1 + is_dual)

  def forward(params, rest, tokens):
    module = nnx.merge(graphdef, params, rest, copy=True)
    return jnp.sum(module(*tokens, deterministic=not training)), nnx.state(module, mgk_jax.EMPrior)

  step = jax.grad(forward, has_aux=True) if training else forward
  return jax.jit(step).lower(params, rest, tokens).cost_analysis()["flops"]


@pytest.mark.parametrize("case", CASES)
def test_agrees_with_xla(case):
  config = mgk_jax.ClassifierConfig(**{**WIDE, "num_classes": 10, **CASES[case]})
  count = flops.training_flops(config, 2, 1024)
  assert count.forward == pytest.approx(xla_flops(config, 2, 1024, training=False), rel=0.01)
  assert count.training == pytest.approx(xla_flops(config, 2, 1024, training=True), rel=0.01)


def test_a_pair_is_two_sequences_and_a_wider_classifier():
  config = mgk_jax.DualEncoderConfig(**WIDE, attention="softmax", classifier_dim=2**15)
  count = flops.training_flops(config, 2, 16)
  assert count.classifier > 0.05 * count.forward
  assert count.training == pytest.approx(xla_flops(config, 2, 16, training=True), rel=0.01)
  assert count.num_tokens == 2 * 2 * 16


@pytest.mark.parametrize("estep", ["soft", "hard"])
def test_shifted_keys_have_one_score_product(estep):
  """In blocks, but with one example, head and block: XLA counts the bodies of loops once, and once they run."""
  T, M, H = 256, 16, 8192
  query, shift = (jax.ShapeDtypeStruct(shape, jnp.float32) for shape in ((1, T, 1, H), (1, M, H)))
  attention = jax.jit(functools.partial(mgk_jax.shifted_mixture_attention, estep=estep, implementation="xla"))
  expected = attention.lower(query, query, query, shift).compile().cost_analysis()["flops"]
  config = mgk_jax.ClassifierConfig(
    vocab_size=16, max_len=T, num_classes=10, num_layers=1, num_heads=1, head_dim=H, num_components=M, estep=estep
  )
  count = flops.training_flops(config, 1, T)
  # Elementwise work is some 2 %; 6 % of the products are those with the shifts.
  assert count.attention_scores + count.attention_values == pytest.approx(expected, rel=0.03)


def listops(**settings):
  """The paper's model for ListOps with one head."""
  return mgk_jax.ClassifierConfig(vocab_size=16, max_len=2000, num_classes=10, num_heads=1, **settings)


def test_counts_by_hand():
  """2 layers, 64 wide, one head of 32, 2 components, 3 sequences of 2,000 tokens."""
  layers, B, T = 2, 3, 2000
  tokens = layers * B * T
  common = {"mlp": tokens * 2 * (64 * 128 + 128 * 64), "classifier": B * 2 * (64 * 128 + 128 * 10), "num_tokens": B * T}
  pair = layers * B * T**2 * 2 * 32
  shifted = tokens * 2 * (2 * 32) * 2
  expected = {
    "softmax": ({}, 4, pair, pair, 0),
    "mgk": ({}, 5, 2 * pair, pair, 0),
    "smgk": ({}, 4, pair + shifted + pair // 32 * 2, pair, 0),
    "mlk": ({}, 5, tokens * 2 * 32 * 33, tokens * 2 * 32 * 33, 0),
    "smgk em": ({"prior": "em"}, 4, pair + shifted + pair // 32 * 2, pair, pair // 32 * 2),
    "smgk hard em": ({"prior": "em", "estep": "hard"}, 4, pair + shifted, pair, 0),
    "mgk hard em": ({"prior": "em", "estep": "hard"}, 5, 2 * pair, pair, 2 * pair),
  }
  for name, (settings, projections, scores, values, em) in expected.items():
    assert flops.training_flops(listops(attention=name.split()[0], **settings), B, T) == flops.Flops(
      projections=tokens * 2 * 64 * 32 * projections,
      random_features=0,
      attention_scores=scores,
      attention_values=values,
      em=em,
      **common,
    )


def test_half_the_heads_with_shifted_keys_cost_little_more_than_half():
  softmax = flops.training_flops(dataclasses.replace(listops(attention="softmax"), num_heads=2), 32, 2000)
  smgk = flops.training_flops(listops(attention="smgk"), 32, 2000)
  assert 0.5 < smgk.training / softmax.training < 0.6


def test_causal_attention_counts_the_pairs_that_it_sees():
  T = 6
  sees = sum(j <= i for i in range(T) for j in range(T))
  for attention in ("softmax", "mgk", "smgk"):
    causal, full = (
      flops.training_flops(listops(attention=attention, is_causal=is_causal), 1, T) for is_causal in (True, False)
    )
    assert causal.attention_values * T**2 == full.attention_values * sees
  shifts = 2 * 2 * T * 2 * (2 * 32)  # 2 layers, queries and keys
  assert (causal.attention_scores - shifts) * T**2 == (full.attention_scores - shifts) * sees


def test_causal_linear_attention_costs_what_decoding_costs():
  H = 512
  token = jax.ShapeDtypeStruct((1, 1, 1, H), jnp.float32)
  key = jax.ShapeDtypeStruct((1, 1, 1, 2, H), jnp.float32)
  state = jax.eval_shape(lambda: mgk_jax.LinearState.init(1, 1, H, H))
  step = jax.jit(mgk_jax.mixture_linear_attention_step).lower(state, token, key, token).cost_analysis()["flops"]
  config = mgk_jax.ClassifierConfig(
    vocab_size=16, max_len=8, num_classes=10, num_layers=1, num_heads=1, head_dim=H, attention="mlk", is_causal=True
  )
  count = flops.training_flops(config, 1, 8)
  # A step also decays and adds the state, three operations for an entry beside the products' four.
  assert count.attention_scores + count.attention_values == pytest.approx(8 * step * 4 / 7, rel=0.02)


@pytest.mark.parametrize("attention", ["softmax", "smgk", "mlk"])
def test_per_token(attention):
  short, long = (flops.training_flops(listops(attention=attention), 4, length) for length in (1000, 2000))
  assert short.forward_per_token == short.forward / 4000
  grows = long.forward_per_token > 1.2 * short.forward_per_token
  assert grows == (attention != "mlk")


@pytest.mark.parametrize(
  ("batch_size", "length", "error", "message"),
  [
    (0, 8, ValueError, "batch_size: expected at least 1, got 0"),
    (2, 8.0, TypeError, "length: expected an int, got float"),
    (2, 2001, ValueError, "length: expected at most max_len=2000, got 2001"),
  ],
)
def test_sizes_that_the_model_does_not_take(batch_size, length, error, message):
  with pytest.raises(error, match=message):
    flops.training_flops(listops(), batch_size, length)


def test_other_settings_are_refused():
  with pytest.raises(TypeError, match="expected a ClassifierConfig or DualEncoderConfig, got EncoderConfig"):
    flops.training_flops(listops().encoder(), 1, 8)


def test_language_models():
  """By the shapes of the matrices that a word goes through, counted from the model itself."""
  shares = [0.5, 0.3, 0.2]
  sizes = {"vocab_size": 60, "cutoffs": (10, 30), "emb_dim": 16, "mlp_dim": 24, "num_layers": 2, "num_heads": 2}
  for div_val in (1, 2):
    config = mgk_jax.LanguageModelConfig(attention="softmax", head_dim=4, max_len=8, div_val=div_val, **sizes)
    model = nnx.eval_shape(lambda config=config: mgk_jax.LanguageModel(config, rngs=nnx.Rngs(0)))
    count = flops.language_model_flops(config, 3, 8, shares)
    block = model.blocks[0]
    matrices = [getattr(block.attention, name).kernel for name in ("query", "key", "value", "out")]
    products = sum(2 * x.size for x in (*matrices, block.mlp_in.kernel, block.mlp_out.kernel))
    vocabulary = model.vocabulary
    head = vocabulary.tables[0].size + (vocabulary.cluster_weight.shape[0] * vocabulary.tables[0].shape[1])
    tails = sum(share * table.size for share, table in zip(shares[1:], list(vocabulary.tables)[1:], strict=True))
    projections = [x.size for x in vocabulary.projections]
    if projections:  # of each word's embedding, of the head, and of the tails
      tails += sum(share * size for share, size in zip(shares, projections, strict=True))
      tails += projections[0] + sum(share * size for share, size in zip(shares[1:], projections[1:], strict=True))
    attention = 2 * 2 * 2 * 4 * (8 * 9 // 2) * 2  # scores and values, 2 heads of 4, pairs up to each word, 2 layers
    expected = 3 * 8 * (2 * products + 2 * (head + tails)) + 3 * attention
    assert count.forward == pytest.approx(expected, rel=0.02)  # shares are rounded to whole numbers
    assert count.num_tokens == 24 and count.training == 3 * count.forward
  zipf = flops.language_model_flops(config, 3, 8)
  assert zipf.projections == count.projections and 0.5 < zipf.classifier / count.classifier < 2
  with pytest.raises(ValueError, match="shares: expected one for each of 3 clusters, got 2"):
    flops.language_model_flops(config, 3, 8, shares[:2])
