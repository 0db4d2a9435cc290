"""Reading the authors' state_dicts: what names and shapes tell, and faults. The golden runs check the values."""

from pathlib import Path

import numpy as np
import pytest
from flax import nnx

from mgk_jax.nn import Classifier, DualEncoder, EMPrior, load_reference_lra
from tests.nn.compiling import call

GOLDEN = Path(__file__).parents[1] / "golden"


def state_dict(name):
  golden = np.load(GOLDEN / f"model_{name}.npz")
  return {key.removeprefix("param/"): golden[key] for key in golden if key.startswith("param/")}


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("softmax", {"attention": "softmax", "estep": "soft"}),
    ("mgk", {"attention": "mgk", "estep": "soft", "prior": "sgd", "prior_scope": "shared"}),
    ("mgk_em", {"attention": "mgk", "prior": "em"}),
    ("smgk_hard", {"attention": "smgk", "estep": "hard"}),
    ("retrieval_smgk", {"attention": "smgk", "num_heads": 1, "num_classes": 2, "vocab_size": 257}),
  ],
)
def test_what_names_and_shapes_tell(name, expected):
  model = load_reference_lra(state_dict(name))
  assert isinstance(model, DualEncoder if name.startswith("retrieval") else Classifier)
  sizes = {"max_len": 64, "num_layers": 2, "emb_dim": 64, "mlp_dim": 128, "head_dim": 32, "classifier_dim": 128}
  for setting, value in {**sizes, **expected}.items():
    assert getattr(model.config, setting) == value
  assert isinstance(model.encoder.blocks[0].attention.prior, EMPrior) == name.endswith("_em")


class Tensor:
  """As much of a torch.Tensor as is used."""

  def __init__(self, x):
    self.x = x

  def detach(self):
    return self

  cpu = float = detach

  def numpy(self):
    return self.x


def test_tensors_prefixes_and_settings():
  weights = state_dict("smgk_em")
  model = load_reference_lra(
    {f"module.{name}": Tensor(x) for name, x in weights.items()}, max_len=40, dropout_rate=0.3, implementation="xla"
  )
  assert model.config.max_len == 40
  assert model.config.dropout_rate == 0.3
  attention = model.encoder.blocks[1].attention
  assert attention.prior.shape == (40, 2, 2)
  mu = weights["model.transformer_1.mha.attn.multi_gauss_kernel.mu"]
  assert np.array_equal(attention.shift[...].swapaxes(0, 1), -mu)
  assert np.any(mu != 0)
  # the first head of two in the output projection
  out = weights["model.transformer_1.mha.ff.weight"]
  assert np.array_equal(attention.out.kernel[...][0, 3], out[:, 3])


def test_shorter_tasks_leave_out_positions():
  weights, ids = state_dict("softmax"), np.full((1, 8), 3, np.int32)
  whole, part = load_reference_lra(weights), load_reference_lra(weights, max_len=16)
  pooled = [call(model.encoder, ids, deterministic=True) for model in (whole, part)]
  np.testing.assert_allclose(*pooled, atol=1e-6)


def without(weights, name):
  return {key: x for key, x in weights.items() if key != name}


@pytest.mark.parametrize(
  ("change", "message"),
  [
    (lambda w: {**w, "model.extra": np.zeros(3)}, r"model.extra: unknown"),
    (lambda w: without(w, "model.transformer_1.mha.W_k2.bias"), r"transformer_1.mha.W_k2.bias: missing, .*\[64\]"),
    (lambda w: {**w, "model.norm.bias": np.zeros(63)}, r"model.norm.bias: expected shape \[64\], got \[63\]"),
    (lambda w: without(w, "model.transformer_1.mha.attn.pi"), r"transformer_1.mha.attn.pi: missing"),
    (lambda w: without(w, "seq_classifer.mlpblock.0.weight"), r"missing=\['seq_classifer.mlpblock.0.weight'\]"),
    (lambda w: {"model": w}, r"expected one entry whose name ends in .*word_embeddings.weight', got \['model'\]"),
    (lambda w: {**w, "model.transformer_5.norm1.bias": np.zeros(64)}, r"transformer_2.norm1.weight: missing"),
    (lambda w: {**w, "model.transformer_0.mha.attn.multi_gauss_kernel.mu": np.zeros((2, 2, 32))}, r"mu: unknown"),
  ],
)
def test_faults_are_named(change, message):
  with pytest.raises(ValueError, match=message):
    load_reference_lra(change(state_dict("mgk")))


def test_other_errors():
  weights = state_dict("smgk")
  with pytest.raises(TypeError, match=r"attention: expected no such setting"):
    load_reference_lra(weights, attention="mgk")
  with pytest.raises(ValueError, match=r"max_len: expected 1 to 64, .* got 65"):
    load_reference_lra(weights, max_len=65)
  with pytest.raises(ValueError, match=r"W_q.weight: expected a multiple of head_dim=30 rows, got 64"):
    load_reference_lra(weights, head_dim=30)
  weights["model.transformer_0.mha.attn.pi"] = np.array([0.4, 0.6])
  with pytest.raises(ValueError, match=r"to be the same prior, got different values"):
    load_reference_lra(weights)


def test_rngs_feed_dropout():
  weights = state_dict("softmax")
  first, second = (load_reference_lra(weights, rngs=nnx.Rngs(seed)) for seed in (1, 2))
  a, b = (np.asarray(call(model.encoder.dropout, np.ones((1, 8, 64), np.float32))) for model in (first, second))
  assert not np.array_equal(a, b)
