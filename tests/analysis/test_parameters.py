from flax import nnx

import mgk_jax
from mgk_jax.analysis import parameters


def test_counts_what_is_trained():
  config = mgk_jax.ClassifierConfig(vocab_size=16, max_len=20, num_classes=10, num_heads=1, prior="em")
  model = nnx.eval_shape(lambda: mgk_jax.Classifier(config, rngs=nnx.Rngs(0)))
  norm = 2 * 64
  attention = 4 * 64 * 32 + 3 * 32 + 64 + 2 * 32  # an EM prior is no parameter, nor are the states of dropout
  block = 2 * norm + attention + (64 * 128 + 128) + (128 * 64 + 64)
  head = (64 * 128 + 128) + (128 * 10 + 10)
  encoder = (16 + 20) * 64 + 2 * block + norm
  assert parameters.count(model) == encoder + head
  assert parameters.by_part(model) == {"encoder": encoder, "head": head}
  assert parameters.by_part(model.encoder) == {
    "token_embedding": 16 * 64, "position_embedding": 20 * 64, "blocks": 2 * block, "norm": norm
  }  # fmt: skip


def test_counts_a_tree():
  params = nnx.state(nnx.Linear(3, 5, rngs=nnx.Rngs(0)), nnx.Param)
  assert parameters.count(params) == 3 * 5 + 5
  assert parameters.count({"a": params, "b": [params]}) == 40
  assert parameters.count({}) == 0
