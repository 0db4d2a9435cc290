"""Models in safetensors files: what is in them, that it comes back, and what is refused."""

import json
import os
import re
import struct

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

import mgk_jax

SMALL = {"num_layers": 1, "emb_dim": 8, "mlp_dim": 8, "num_heads": 2, "head_dim": 4}
TOKENS = {**SMALL, "vocab_size": 7, "max_len": 5}
MODELS = {
  "Encoder": (mgk_jax.Encoder, mgk_jax.EncoderConfig(**TOKENS, prior="em")),
  "Classifier": (mgk_jax.Classifier, mgk_jax.ClassifierConfig(**TOKENS, num_classes=3, attention="mgk")),
  "DualEncoder": (mgk_jax.DualEncoder, mgk_jax.DualEncoderConfig(**TOKENS, variance=[1.0, 2.0])),
  "LanguageModel": (mgk_jax.LanguageModel, mgk_jax.LanguageModelConfig(**TOKENS, cutoffs=(3,), attention="mlk")),
  "ViT": (mgk_jax.ViT, mgk_jax.ViTConfig(**SMALL, num_classes=3, image_size=8, param_dtype=jnp.bfloat16)),
  "favor": (mgk_jax.Encoder, mgk_jax.EncoderConfig(**TOKENS, attention="smlk", feature_map="favor")),
}


def make(name, seed=0):
  kind, config = MODELS[name]
  return kind(config, rngs=nnx.Rngs(seed))


def attention(seed=0, **arguments):
  return mgk_jax.MixtureAttention(2, 8, rngs=nnx.Rngs(seed), **arguments)


def arrays(model):
  """All variables but random streams, by their names in the file."""
  state = nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.RngState)))
  return {".".join(map(str, path)): np.asarray(variable[...]) for path, variable in state}


def assert_equal(ours, theirs):
  assert ours.keys() == theirs.keys()
  for name, array in ours.items():
    assert (array.dtype, array.shape) == (theirs[name].dtype, theirs[name].shape), name
    assert array.tobytes() == theirs[name].tobytes(), name


def header(path):
  """The header of a file, read as the format's description has it: its length in 8 bytes, then JSON."""
  content = path.read_bytes()
  (size,) = struct.unpack("<Q", content[:8])
  return json.loads(content[8 : 8 + size])


@pytest.mark.parametrize("name", MODELS)
def test_every_model_comes_back_bit_for_bit(name, tmp_path):
  path = tmp_path / "new" / "model.safetensors"
  model = make(name)
  mgk_jax.save_safetensors(model, path)
  other = make(name, seed=1)
  assert any(not np.array_equal(x, arrays(model)[key]) for key, x in arrays(other).items())
  mgk_jax.load_safetensors(other, path)
  assert_equal(arrays(other), arrays(model))

  rebuilt = mgk_jax.from_safetensors(path)
  assert type(rebuilt) is type(model)
  assert rebuilt.config == model.config
  assert_equal(arrays(rebuilt), arrays(model))


def test_the_file_is_what_others_read(tmp_path):
  path = tmp_path / "attention.safetensors"
  model = attention(
    keys="shifted", prior="em", max_len=5, dropout_rate=0.1, learn_variance=True, param_dtype=jnp.bfloat16
  )
  model.init_cache((2, 5, 8))  # neither caches nor random streams are parts of a model
  mgk_jax.save_safetensors(model, path, metadata={"step": "300"})
  content = header(path)
  assert content.pop("__metadata__") == {
    "format": "flax", "mgk_jax": mgk_jax.__version__, "module": "MixtureAttention", "step": "300"
  }  # fmt: skip
  found = {name: (entry["dtype"], entry["shape"]) for name, entry in content.items()}
  projections = {f"{name}.kernel": ("BF16", [8, 2, 4]) for name in ("query", "key", "value")}
  biases = {f"{name}.bias": ("BF16", [2, 4]) for name in ("query", "key", "value")}
  assert found == {
    **projections,
    **biases,
    "out.kernel": ("BF16", [2, 4, 8]),
    "out.bias": ("BF16", [8]),
    "shift": ("BF16", [2, 2, 4]),
    "prior": ("F32", [5, 2, 2]),
    "log_variance": ("BF16", []),
  }
  assert np.array_equal(load_file(path)["shift"], model.shift[...])


def test_settings_of_a_model_are_in_its_file(tmp_path):
  path = tmp_path / "vit.safetensors"
  mgk_jax.save_safetensors(make("ViT"), path)
  settings = json.loads(header(path)["__metadata__"]["config"])
  assert (settings["attention"], settings["image_size"], settings["param_dtype"]) == ("smgk", [8, 8], "bfloat16")
  assert mgk_jax.from_safetensors(path, dropout_rate=0.0).config.dropout_rate == 0.0
  with pytest.raises(ValueError, match="setting estep: expected 'hard' as the model has it, got 'soft'"):
    mgk_jax.from_safetensors(path, estep="hard", prior="fixed")


def test_nothing_is_overwritten_unless_asked_for(tmp_path):
  path = tmp_path / "model.safetensors"
  mgk_jax.save_safetensors(attention(), path)
  before = path.read_bytes()
  with pytest.raises(FileExistsError, match=r"expected a new file, got one that exists; overwrite=True replaces it"):
    mgk_jax.save_safetensors(attention(seed=1), path)
  assert path.read_bytes() == before
  mgk_jax.save_safetensors(attention(seed=1), path, overwrite=True)
  assert_equal(load_file(path), arrays(attention(seed=1)))


def test_a_write_that_fails_leaves_what_was_there(tmp_path, monkeypatch):
  path = tmp_path / "model.safetensors"
  mgk_jax.save_safetensors(attention(), path)
  before = path.read_bytes()

  def fail(*_):
    raise OSError("no space left")

  monkeypatch.setattr(os, "replace", fail)
  with pytest.raises(OSError, match="no space left"):
    mgk_jax.save_safetensors(attention(seed=1), path, overwrite=True)
  assert [file.name for file in tmp_path.iterdir()] == [path.name]
  assert path.read_bytes() == before


def refused(model, path, *lines, **arguments):
  before = arrays(model)
  with pytest.raises(ValueError, match="does not fit the model") as caught:
    mgk_jax.load_safetensors(model, path, **arguments)
  assert str(caught.value).splitlines()[1:] == [f"  {line}" for line in lines]
  assert_equal(arrays(model), before)


def test_what_does_not_fit_is_named(tmp_path):
  path = tmp_path / "model.safetensors"
  content = arrays(attention())
  content["outer.bias"] = content.pop("out.bias")
  content["key.kernel"] = content["key.kernel"][:, :, 0]
  content["prior"] = content["prior"].astype(jnp.bfloat16)
  save_file(content, path)
  wrong = [
    "key.kernel: expected shape [8, 2, 2, 4], got [8, 2, 4]",
    "out.bias: expected, but not in the file",
    "outer.bias: in the file, but not expected; did you mean out.bias?",
  ]
  refused(
    attention(seed=1),
    path,
    *wrong[:2],
    "prior: expected dtype float32, got bfloat16; cast=True converts it",
    wrong[2],
  )
  refused(attention(seed=1), path, *wrong, cast=True)


def test_a_long_list_is_cut(tmp_path):
  path = tmp_path / "empty.safetensors"
  save_file({}, path)
  model = make("Classifier")
  number = len(arrays(model))
  with pytest.raises(ValueError, match=f"and {number - 12} more$"):
    mgk_jax.load_safetensors(model, path)


def test_settings_that_change_the_equations_must_agree(tmp_path):
  path = tmp_path / "model.safetensors"
  settings = {**TOKENS, "attention": "softmax", "num_classes": 3}
  mgk_jax.save_safetensors(mgk_jax.Classifier(mgk_jax.ClassifierConfig(**settings), rngs=nnx.Rngs(0)), path)
  linear = mgk_jax.ClassifierConfig(**settings | {"attention": "linear", "pooling": "masked_mean"})
  refused(
    mgk_jax.Classifier(linear, rngs=nnx.Rngs(0)),
    path,
    "setting attention: expected 'linear' as the model has it, got 'softmax'",
    "setting pooling: expected 'masked_mean' as the model has it, got 'mean'",
  )
  others = mgk_jax.ClassifierConfig(**settings, dropout_rate=0.0, remat=True, implementation="reference")
  mgk_jax.load_safetensors(mgk_jax.Classifier(others, rngs=nnx.Rngs(0)), path)


def test_cast(tmp_path):
  path = tmp_path / "model.safetensors"
  mgk_jax.save_safetensors(attention(param_dtype=jnp.bfloat16), path)
  model = attention(seed=1)
  mgk_jax.load_safetensors(model, path, cast=True)
  expected = {name: x.astype(np.float32) for name, x in arrays(attention(param_dtype=jnp.bfloat16)).items()}
  assert_equal(arrays(model), expected)


def test_files_that_are_none(tmp_path):
  with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path}: expected a safetensors file, found none")):
    mgk_jax.load_safetensors(attention(), tmp_path)
  path = tmp_path / "model.safetensors"
  mgk_jax.save_safetensors(attention(), path)
  path.write_bytes(path.read_bytes()[:-10])
  with pytest.raises(ValueError, match="is no whole safetensors file"):
    mgk_jax.load_safetensors(attention(), path)
  path.unlink()
  mgk_jax.save_safetensors(attention(), path)
  with pytest.raises(ValueError, match="got a file of MixtureAttention; make the module yourself"):
    mgk_jax.from_safetensors(path)


def test_metadata_that_are_not_allowed(tmp_path):
  with pytest.raises(TypeError, match="metadata: expected texts, got int for 'step'"):
    mgk_jax.save_safetensors(attention(), tmp_path / "a", metadata={"step": 3})
  with pytest.raises(ValueError, match="got 'module'"):
    mgk_jax.save_safetensors(attention(), tmp_path / "a", metadata={"module": "mine"})
  assert not list(tmp_path.iterdir())


def test_a_module_of_ones_own_and_arrays_where_they_lie(tmp_path):
  """Users' modules are saved as ours are; what is loaded has the sharding of what it replaces."""

  class Model(nnx.Module):
    def __init__(self, seed):
      rngs = nnx.Rngs(seed)
      self.layers = nnx.List([nnx.Linear(8, 8, rngs=rngs), mgk_jax.MixtureAttention(2, 8, rngs=rngs)])
      self.norm = nnx.BatchNorm(8, rngs=rngs)

  path = tmp_path / "model.safetensors"
  mgk_jax.save_safetensors(Model(0), path)
  assert {"layers.0.kernel", "layers.1.key.kernel", "norm.mean"} <= header(path).keys()
  model = Model(1)
  mesh = jax.make_mesh((1,), ("data",), axis_types=(jax.sharding.AxisType.Auto,))
  sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("data"))
  nnx.update(model, jax.device_put(nnx.state(model, nnx.Param), sharding))
  mgk_jax.load_safetensors(model, path)
  assert_equal(arrays(model), arrays(Model(0)))
  assert model.layers[0].kernel[...].sharding == sharding

  model.kind = nnx.Variable("text")
  with pytest.raises(TypeError, match=r"kind: expected an array of bool, bfloat16, .*, got str"):
    mgk_jax.save_safetensors(model, tmp_path / "other")
