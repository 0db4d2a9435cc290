"""`Encoder`, `Classifier` and `DualEncoder`: padding, pooling, sizes and settings."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from mgk_jax.nn import Classifier, ClassifierConfig, DualEncoder, DualEncoderConfig, Encoder, EncoderConfig
from tests.nn.compiling import call, jit

SMALL = {
  "vocab_size": 30, "max_len": 64, "num_layers": 1, "emb_dim": 8, "mlp_dim": 16, "head_dim": 4,
  "implementation": "reference",
}  # fmt: skip
LENGTHS = np.array([20, 13, 1])


def tokens(length, seed=0):
  """Three sequences of 20, 13 and 1 tokens, in an array of `length`."""
  ids = np.random.default_rng(seed).integers(1, 30, (3, length)).astype(np.int32)
  return np.where(np.arange(length) < LENGTHS[:, None], ids, 0)


def classifier(**settings):
  model = Classifier(ClassifierConfig(**{**SMALL, "num_classes": 3, "classifier_dim": 8, **settings}), rngs=nnx.Rngs(0))
  model.eval()
  return model


def count(model):
  return sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))


@pytest.mark.parametrize("attention", ["softmax", "linear", "mgk", "smgk", "mlk", "smlk"])
def test_padding_does_not_matter(attention):
  model = classifier(attention=attention, implementation=None if attention == "smgk" else "reference")
  ids = tokens(20)
  by_length = call(model, ids, lengths=LENGTHS)
  assert by_length.shape == (3, 3)
  assert np.all(np.isfinite(by_length))
  np.testing.assert_allclose(call(model, np.pad(ids, ((0, 0), (0, 44)))), by_length, atol=1e-5)  # by the ids


@pytest.mark.parametrize("pooling", ["mean", "masked_mean", "cls"])
def test_pooling(pooling):
  model = classifier(pooling=pooling)
  ids = tokens(20)
  logits = call(model, ids, lengths=LENGTHS)
  np.testing.assert_allclose(
    call(model, np.pad(ids, ((0, 0), (0, 44))), mask=np.pad(ids != 0, ((0, 0), (0, 44)))), logits, atol=1e-5
  )
  if pooling == "cls":
    assert model.encoder.token_embedding.embedding.shape == (31, 8)
    assert model.encoder.position_embedding.shape == (65, 8)
    with_cls = np.concatenate([np.full((3, 1), 30, np.int32), ids], axis=1)
    pooled = call(model.encoder, with_cls)[:, 0]
  else:
    encoded = np.asarray(call(model.encoder, ids))
    assert np.all(encoded[ids == 0] == 0)
    pooled = encoded.sum(1) / (64 if pooling == "mean" else LENGTHS[:, None])
  hidden = np.maximum(pooled @ model.head.hidden.kernel[...] + model.head.hidden.bias[...], 0)
  np.testing.assert_allclose(logits, hidden @ model.head.logits.kernel[...] + model.head.logits.bias[...], atol=1e-5)


def test_a_gap_in_the_mask_is_not_attended():
  model = classifier()
  ids, mask = tokens(20), np.arange(20)[None] < LENGTHS[:, None]
  mask = mask & (np.arange(20) != 5)
  other = np.where(mask, ids, 9)
  graphdef, state = nnx.split(model)
  run = jit(lambda ids, mask: nnx.merge(graphdef, state)(ids, mask=mask))
  np.testing.assert_allclose(run(other, mask), run(ids, mask), atol=1e-6)
  assert not np.allclose(run(ids, ids != 0), run(ids, mask), atol=1e-4)


def test_empty_sequences_are_finite():
  logits = call(classifier(pooling="masked_mean"), tokens(4), lengths=np.array([4, 0, 1]))
  assert np.all(np.isfinite(logits))


def test_causal_encoder_sees_no_future():
  model = Encoder(EncoderConfig(**SMALL, is_causal=True), rngs=nnx.Rngs(0))
  model.eval()
  ids = np.random.default_rng(1).integers(1, 30, (2, 8)).astype(np.int32)
  changed = ids.copy()
  changed[:, 5:] = 3
  graphdef, state = nnx.split(model)
  run = jit(lambda ids: nnx.merge(graphdef, state)(ids))
  a, b = run(ids), run(changed)
  np.testing.assert_allclose(a[:, :5], b[:, :5], atol=1e-6)
  assert not np.allclose(a[:, 5:], b[:, 5:], atol=1e-3)


def test_dual_encoder():
  config = DualEncoderConfig(**SMALL, classifier_dim=8)
  model = DualEncoder(config, rngs=nnx.Rngs(0))
  model.eval()
  assert config.num_classes == 2
  first, second = tokens(20, 1), tokens(32, 2)
  logits = call(model, first, second, lengths1=LENGTHS, lengths2=LENGTHS)
  a, b = (np.asarray(call(model.encoder, ids)).sum(1) / 64 for ids in (first, second))
  features = np.concatenate([a, b, a * b, a - b], axis=-1)
  np.testing.assert_allclose(logits, model.head(features), atol=1e-5)
  np.testing.assert_allclose(call(model, first, second), logits, atol=1e-5)
  np.testing.assert_allclose(call(model, first, second, lengths1=LENGTHS, mask2=second != 0), logits, atol=1e-5)


def test_dropout_and_modes():
  model, ids = classifier(dropout_rate=0.3, attention_dropout_rate=0.3), tokens(20)
  evaluated = call(model, ids)
  without = classifier(dropout_rate=0.0, attention_dropout_rate=0.0)
  nnx.update(without, nnx.state(model, nnx.Param))
  np.testing.assert_allclose(call(without, ids), evaluated, atol=1e-6)
  model.train()
  np.testing.assert_allclose(call(model, ids, deterministic=True), evaluated, atol=1e-6)
  graphdef, state = nnx.split(model)

  @jit
  def step(state, ids):
    model = nnx.merge(graphdef, state)
    return model(ids), nnx.state(model)

  first, state = step(state, ids)
  second, _ = step(state, ids)
  assert not np.allclose(first, evaluated)
  assert not np.allclose(first, second)
  by_key = jit(lambda state, key: nnx.merge(graphdef, state)(ids, rngs=nnx.Rngs(dropout=key)))
  assert np.array_equal(by_key(state, jax.random.key(5)), by_key(state, jax.random.key(5)))


def test_gradients_and_bfloat16():
  model = classifier(dtype=jnp.bfloat16, attention="mgk", implementation=None)
  graphdef, params, rest = nnx.split(model, nnx.Param, ...)

  def loss(params, ids):
    logits = nnx.merge(graphdef, params, rest)(ids)
    assert logits.dtype == jnp.float32
    return jnp.sum(logits**2)

  value, gradients = jit(jax.value_and_grad(loss))(params, tokens(20))
  for path, gradient in nnx.to_flat_state(gradients):
    assert gradient.dtype == jnp.float32
    assert np.all(np.isfinite(gradient[...])), path
  exact = call(classifier(attention="mgk"), tokens(20))
  np.testing.assert_allclose(value, np.sum(exact**2), rtol=0.05)  # the encoder computes in 8 bits


def test_numbers_of_parameters():
  """Those of the paper's models: 2 layers, width 64, MLP 128, heads of 32, here for 4,000 bytes."""

  def expected(heads, keys, mixture):
    width = heads * 32
    attention = (2 + keys) * (64 * width + width) + width * 64 + 64 + mixture
    block = attention + 2 * 128 + (64 * 128 + 128) + (128 * 64 + 64)
    return 257 * 64 + 4000 * 64 + 2 * block + 128 + (64 * 128 + 128) + (128 * 2 + 2)

  sizes = {"vocab_size": 257, "max_len": 4000, "num_classes": 2}

  def parameters(**settings):
    config = ClassifierConfig(**sizes, **settings)
    return count(nnx.eval_shape(lambda: Classifier(config, rngs=nnx.Rngs(0))))

  assert parameters(attention="softmax", num_heads=4) == expected(4, 1, 0)
  assert parameters(attention="linear") == parameters(attention="softmax") == expected(2, 1, 0)
  assert parameters(attention="mgk") == parameters(attention="mlk") == expected(2, 2, 2 * 2)
  assert parameters(attention="mgk", prior="em") == parameters(attention="mgk", estep="hard") == expected(2, 2, 0)
  assert parameters(attention="smgk") == parameters(attention="smlk") == expected(2, 1, 2 * 2 * 32 + 2 * 2)
  assert parameters(attention="smgk", prior_scope="shared") == expected(2, 1, 2 * 2 * 32 + 2)
  assert parameters(attention="smgk") < parameters(attention="mgk") < parameters(attention="softmax", num_heads=4)


def test_starts_as_the_authors_models_do():
  model = classifier(emb_dim=64, mlp_dim=128, head_dim=32)
  encoder = model.encoder
  assert abs(np.std(encoder.token_embedding.embedding[...]) - 0.02) < 0.002
  assert abs(np.std(encoder.position_embedding[...]) - 0.02) < 0.002
  block = encoder.blocks[0]
  attention = block.attention
  for layer, fan_in in ((attention.query, 64), (attention.out, 64), (block.mlp_out, 128), (model.head.hidden, 64)):
    for values in (layer.kernel[...], layer.bias[...]):
      top = np.max(np.abs(values)) * np.sqrt(fan_in)
      assert 0.7 < top <= 1


@pytest.mark.parametrize(
  ("settings", "error", "message"),
  [
    ({"attention": "mkg"}, ValueError, r"attention: expected one of \('softmax', 'linear', 'mgk', .*got 'mkg'"),
    ({"max_len": 0}, ValueError, r"max_len: expected at least 1, got 0"),
    ({"num_heads": "2"}, TypeError, r"num_heads: expected an int, got str"),
    ({"estep": "both"}, ValueError, r"estep: expected one of \('soft', 'hard'\), got 'both'"),
    ({"prior": "bayes"}, ValueError, r"prior: expected one of \('sgd', 'em', 'fixed'\), got 'bayes'"),
    ({"prior_scope": "all"}, ValueError, r"prior_scope: expected one of .*got 'all'"),
    ({"attention": "mlk", "prior": "em"}, ValueError, r"kernel='linear': expected prior='sgd' or 'fixed'"),
    ({"attention": "softmax", "estep": "hard"}, ValueError, r"kernel='softmax': expected estep='soft'"),
    ({"dropout_rate": 1.5}, ValueError, r"dropout_rate: expected 0 <= rate < 1, got 1.5"),
    ({"attention_dropout_rate": -0.1}, ValueError, r"attention_dropout_rate: expected 0 <= rate < 1, got -0.1"),
    ({"variance": [1.0, 2.0, 3.0]}, ValueError, r"variance: expected a scalar or one value for each of 2 components"),
    ({"attention": "mlk", "feature_map": "exp"}, ValueError, r"feature_map: expected one of .*got 'exp'"),
    ({"shift_init": "ours"}, ValueError, r"shift_init: expected one of \('paper', 'code'\), got 'ours'"),
    ({"pooling": "max"}, ValueError, r"pooling: expected one of \('mean', 'masked_mean', 'cls'\), got 'max'"),
    ({"num_classes": 0}, ValueError, r"num_classes: expected at least 1, got 0"),
    ({"implementation": "cuda"}, ValueError, r"implementation: expected one of .*got 'cuda'"),
  ],
)
def test_settings_that_are_not_allowed(settings, error, message):
  with pytest.raises(error, match=message):
    ClassifierConfig(**{**SMALL, "num_classes": 3, **settings})


def test_settings_are_values():
  config = ClassifierConfig(**SMALL, num_classes=3, variance=[1.0, 2.0])
  assert config.variance == (1.0, 2.0)
  assert hash(config) == hash(dataclasses.replace(config))
  with pytest.raises(dataclasses.FrozenInstanceError):
    config.num_heads = 4


def test_call_errors():
  model = classifier()
  with pytest.raises(ValueError, match=r"tokens: expected at most max_len=64 positions, got 65"):
    model(np.ones((1, 65), np.int32))
  with pytest.raises(ValueError, match=r"tokens: expected shape \[B, L\], got \[5\]"):
    model(np.ones(5, np.int32))
  with pytest.raises(TypeError, match=r"tokens: expected integer ids, got float32"):
    model(np.ones((1, 5), np.float32))
  with pytest.raises(ValueError, match=r"lengths: expected shape \[B\] = \[1\], got \[2\]"):
    model(np.ones((1, 5), np.int32), lengths=np.array([1, 2]))
  with pytest.raises(ValueError, match=r"mask: expected shape \[B, L\] = \[1, 5\], got \[1, 4\]"):
    model(np.ones((1, 5), np.int32), mask=np.ones((1, 4), bool))
  with pytest.raises(ValueError, match=r"expected lengths or mask, got both"):
    model(np.ones((1, 5), np.int32), lengths=np.array([1]), mask=np.ones((1, 5), bool))
