"""The shipped configs have the numbers of the papers that they follow, and take arguments as their docstrings say."""

import importlib
import re
import shlex

import pytest

import mgk_jax
from lra import listops, tasks
from tests.configs.shipped import CONFIGS, ROOT, VARIANTS, flat, from_command_line, get_config

# How ml_collections imports a config file.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

# The paper's setting with sMGK, all of it. It is that of the Nyströmformer's configuration; AdamW's b1 is what the
# authors' one-cycle schedule makes of it.
PAPER = {
  "seed": 0, "batch_size": 32, "accumulation_steps": 1, "checkpoint_every": 100, "log_every": 10,
  "data.pad_to": 0, "data.protocol": "lra",
  "model.attention": "smgk", "model.num_layers": 2, "model.emb_dim": 64, "model.mlp_dim": 128, "model.num_heads": 2,
  "model.head_dim": 32, "model.num_components": 2, "model.estep": "soft", "model.prior": "sgd",
  "model.prior_scope": "head", "model.variance": None, "model.learn_variance": False, "model.shift_init": "paper",
  "model.pooling": "mean", "model.classifier_dim": 128, "model.dropout_rate": 0.1,
  "model.attention_dropout_rate": 0.1, "model.dtype": "float32", "model.implementation": None, "model.remat": False,
  "optimizer.schedule": "one_cycle", "optimizer.learning_rate": 1e-4, "optimizer.b1": 0.95, "optimizer.b1_peak": 0.85,
  "optimizer.b2": 0.999, "optimizer.eps": 1e-6, "optimizer.weight_decay": 0.0, "optimizer.clip_norm": 0.0,
  "mesh.data": -1, "mesh.model": 1,
}  # fmt: skip
GENERATOR = {
  "data.source": "generated", "data.generator.seed": 0, "data.generator.num_train": 96_000,
  "data.generator.num_valid": 2_000, "data.generator.num_test": 2_000, "data.generator.min_length": 500,
  "data.generator.max_length": 2_000, "data.generator.max_depth": 10, "data.generator.max_args": 10,
}  # fmt: skip
# What the Long Range Arena's configurations share.
ORIGINAL = {name: value for name, value in PAPER.items() if name != "optimizer.b1_peak"} | {
  "checkpoint_every": 500, "model.num_layers": 4, "model.pooling": "cls",
  "optimizer.schedule": "rsqrt", "optimizer.learning_rate": 0.05, "optimizer.weight_decay": 0.1,
  "optimizer.b1": 0.9, "optimizer.b2": 0.98, "optimizer.eps": 1e-9,
}  # fmt: skip


def run(task, length, steps, warmup, eval_every, batch=32):
  return {
    "task": task, "data.length": length, "num_steps": steps, "optimizer.warmup_steps": warmup,
    "eval_every": eval_every, "batch_size": batch,
  }  # fmt: skip


def size(emb, mlp, heads, head_dim):
  return {
    "model.emb_dim": emb, "model.mlp_dim": mlp, "model.classifier_dim": mlp, "model.num_heads": heads,
    "model.head_dim": head_dim,
  }  # fmt: skip


def images(learning_rate, dropout, attention_dropout, pooling):
  return {
    "model.num_layers": 1, "model.dropout_rate": dropout, "model.attention_dropout_rate": attention_dropout,
    "model.pooling": pooling, "optimizer.schedule": "cosine", "optimizer.learning_rate": learning_rate,
    "optimizer.weight_decay": 0.0,
  }  # fmt: skip


EXPECTED = {
  "listops": PAPER | GENERATOR | run("listops", 2000, 5_000, 1_000, 50),
  "text": PAPER | run("text", 4000, 20_000, 8_000, 500),
  "retrieval": PAPER | run("retrieval", 4000, 30_000, 800, 300),
  "image": PAPER | run("image", 1024, 35_000, 175, 175, batch=256),
  "pathfinder32": PAPER | run("pathfinder32", 1024, 62_400, 312, 312, batch=256),
  "base/listops": ORIGINAL | GENERATOR | run("listops", 2000, 5_000, 1_000, 50) | size(512, 2048, 8, 64),
  "base/text": ORIGINAL | run("text", 1000, 20_000, 8_000, 100) | size(256, 1024, 4, 64),
  "base/retrieval": ORIGINAL | run("retrieval", 4000, 5_000, 8_000, 100) | size(128, 512, 4, 32),
  "base/image": ORIGINAL
  | run("image", 1024, 35_000, 175, 175, 256)
  | size(32, 64, 1, 32)
  | images(5e-4, 0.3, 0.2, "cls"),
  "base/pathfinder32": ORIGINAL
  | run("pathfinder32", 1024, 62_400, 312, 312, 512)
  | size(128, 128, 4, 16)
  | images(1e-3, 0.2, 0.1, "mean"),
  "quickstart": PAPER
  | GENERATOR
  | run("listops", 24, 1_500, 300, 100, batch=64)
  | {"checkpoint_every": 0, "model.num_heads": 1, "model.dropout_rate": 0.0, "model.attention_dropout_rate": 0.0}
  | {"optimizer.learning_rate": 2e-3, "data.generator.num_valid": 1_000, "data.generator.min_length": 7}
  | {"data.generator.max_length": 25, "data.generator.max_depth": 3, "data.generator.max_args": 5},
}

ALWAYS = {
  "attention", "num_layers", "emb_dim", "mlp_dim", "num_heads", "head_dim", "pooling", "classifier_dim",
  "dropout_rate", "dtype", "implementation", "remat",
}  # fmt: skip
GAUSSIAN = {"num_components", "estep", "prior", "prior_scope", "variance", "learn_variance", "attention_dropout_rate"}
USED = {
  "softmax": {"attention_dropout_rate"},
  "linear": {"feature_map"},
  "mgk": GAUSSIAN,
  "smgk": GAUSSIAN | {"shift_init"},
  "mlk": {"feature_map", "num_components", "prior", "prior_scope"},
  "smlk": {"feature_map", "num_components", "prior", "prior_scope", "shift_init"},
}


def test_all_configs_are_expected():
  assert CONFIGS.keys() == EXPECTED.keys()


@pytest.mark.parametrize("name", EXPECTED)
def test_settings(name):
  assert flat(get_config(name)) == EXPECTED[name]


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("variant", VARIANTS)
def test_a_variant_has_the_settings_that_it_uses(name, variant):
  config = get_config(name, variant)
  assert config.model.attention == variant
  assert set(config.model) == ALWAYS | USED[variant]
  shared = flat(config).keys() & EXPECTED[name].keys() - {"model.attention"}
  assert {path: flat(config)[path] for path in shared} == {path: EXPECTED[name][path] for path in shared}


@pytest.mark.parametrize("name", EXPECTED)
@pytest.mark.parametrize("variant", VARIANTS)
def test_models_can_be_made(name, variant):
  config = get_config(name, variant)
  task = tasks.get(config.task).task
  kind = mgk_jax.ClassifierConfig if task.num_sequences == 1 else mgk_jax.DualEncoderConfig
  made = kind(vocab_size=task.vocab_size, num_classes=task.num_classes, max_len=config.data.length, **config.model)
  assert made.num_heads * made.head_dim == config.model.num_heads * config.model.head_dim


def test_the_paper_is_what_models_are_by_default():
  """A Classifier without settings and the paper's config are the same model."""
  config = get_config("listops")
  default = mgk_jax.ClassifierConfig(vocab_size=16, num_classes=10, max_len=2000, dtype="float32")
  assert mgk_jax.ClassifierConfig(vocab_size=16, num_classes=10, max_len=2000, **config.model) == default


def test_protocols_are_those_of_the_tasks():
  for name in EXPECTED:
    protocols = tasks.get(get_config(name).task).task.protocols
    for protocol in ("lra", "holdout"):
      if protocol in protocols:
        assert get_config(name, f"protocol={protocol}").data.protocol == protocol
      else:
        with pytest.raises(ValueError, match="protocol: expected"):
          get_config(name, f"protocol={protocol}")


def test_generators_are_the_task_s_own():
  """The config's defaults name the same data as the task's: preparing them beforehand is not in vain."""
  data = get_config("listops").data
  assert listops.ListopsConfig(source=data.source, **data.generator).name == listops.ListopsConfig().name
  assert get_config("listops", "source=files").data.source in listops.SOURCES


@pytest.mark.parametrize("name", EXPECTED)
def test_lengths_are_the_tasks(name):
  config = get_config(name)
  if name not in ("base/text", "quickstart"):
    assert config.data.length == tasks.get(config.task).task.length


@pytest.mark.parametrize("name", EXPECTED)
def test_commands_of_docstrings(name):
  module = importlib.import_module("configs.lra." + name.replace("/", "."))
  commands = [shlex.split(line) for line in module.__doc__.splitlines() if line.startswith("    python -m lra")]
  trained = [command for command in commands if command[2] == "lra.train"]
  assert trained
  for _, _, program, *arguments in commands:
    assert importlib.util.find_spec(program)
    if program == "lra.prepare":
      assert arguments[0] == EXPECTED[name]["task"] and arguments[1].startswith("--data_dir=")
  for _, _, _, config, workdir in trained:
    assert config.startswith(f"--config=configs/lra/{name}.py:") and workdir.startswith("--workdir=")
    path, _, arg = config.removeprefix("--config=").partition(":")
    assert from_command_line(f"--config={ROOT / path}:{arg}").task == EXPECTED[name]["task"]
  for arg in re.findall(r"`((?:[a-z0-9_]+=[a-z0-9.]+|smgk)(?:,[a-z0-9_]+=[a-z0-9.]+)*)`", module.__doc__):
    get_config(name, arg)
