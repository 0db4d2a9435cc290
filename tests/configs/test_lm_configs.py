"""The shipped configs of language models: the paper's numbers, arguments, and no setting in vain."""

import functools
import importlib
import re
import shlex
from types import SimpleNamespace
from unittest import mock

import jax
import numpy as np
import pytest
from flax import nnx

from configs.lm import effects, schema
from lm import datasets, train
from mgk_jax import training
from mgk_jax.training import state as states, step as steps
from tests.configs.shipped import ROOT, VARIANTS, flat, from_command_line
from tests.lm import small

# How ml_collections imports a config file.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")

CONFIGS = sorted(path.stem for path in (ROOT / "configs/lm").glob("*.py") if "def get_config" in path.read_text())

# The paper's setting with MGK, all of it (Section 3.2, Appendix A.1.2, and the small model of Schlag et al.).
PAPER = {
  "dataset": "wikitext103", "seed": 0, "num_epochs": 120, "num_steps": 500_000, "batch_size": 96,
  "accumulation_steps": 1, "eval_every": 4_000, "checkpoint_every": 1_000, "log_every": 100, "data.length": 256,
  "model.attention": "mgk", "model.num_layers": 16, "model.emb_dim": 128, "model.mlp_dim": 2048, "model.num_heads": 8,
  "model.head_dim": 16, "model.num_components": 2, "model.estep": "soft", "model.prior": "sgd",
  "model.prior_scope": "head", "model.variance": None, "model.learn_variance": False, "model.attention_bias": False,
  "model.cutoffs": [20_000, 40_000, 200_000], "model.div_val": 1, "model.tie_embeddings": True,
  "model.dropout_rate": 0.1, "model.attention_dropout_rate": 0.0, "model.dtype": "float32",
  "model.implementation": None, "model.remat": False, "optimizer.schedule": "cosine",
  "optimizer.learning_rate": 2.5e-4, "optimizer.warmup_steps": 2_000, "optimizer.b1": 0.9, "optimizer.b2": 0.999,
  "optimizer.eps": 1e-8, "optimizer.weight_decay": 0.0, "optimizer.clip_norm": 0.25, "mesh.data": -1, "mesh.model": 1,
}  # fmt: skip


def get_config(name, arg=""):
  return importlib.import_module(f"configs.lm.{name}").get_config(arg)


def test_the_paper_s_setting():
  assert flat(get_config("wikitext103")) == PAPER
  four = flat(get_config("wikitext103", "softmax,heads=4"))
  assert four["model.num_heads"] == 4 and four["model.head_dim"] == 16 and "model.estep" not in four


@pytest.mark.parametrize("name", CONFIGS)
def test_every_config(name):
  """Their corpora and clusters are there, and no config has a setting that does nothing."""
  for variant in VARIANTS:
    config = get_config(name, variant)
    dataset = datasets.get(config.dataset)
    assert all(0 < cutoff < dataset.vocab_size for cutoff in config.model.cutoffs)
    assert not effects.idle(config).keys() & flat(config).keys()
    assert ("carry_state" in config.data) == (variant in ("linear", "mlk", "smlk"))
    train.check(config)


@pytest.mark.parametrize("name", CONFIGS)
def test_commands_of_docstrings(name):
  module = importlib.import_module(f"configs.lm.{name}")
  commands = [shlex.split(line) for line in module.__doc__.splitlines() if line.startswith("    python -m ")]
  assert [command[2] for command in commands][:2] == ["lm.prepare", "lm.train"]
  for _, _, program, first, second in commands:
    if program == "lm.prepare":
      assert first == get_config(name).dataset
      assert second == f"--data_dir={datasets.get(first).archive.name}"
    if program == "lm.train":
      path, _, arg = first.removeprefix("--config=").partition(":")
      assert path == f"configs/lm/{name}.py" and second.startswith("--workdir=runs/")
      assert from_command_line(f"--config={ROOT / path}:{arg}").dataset == get_config(name).dataset
  for arg in re.findall(r"`([a-z0-9_]+=[a-z0-9.]+)`", module.__doc__):
    get_config(name, arg)


VALUES = {
  "seed": 7, "steps": 9_000, "epochs": 3, "batch": 8, "accumulation": 4, "eval_every": 3, "checkpoint_every": 0,
  "log_every": 2, "length": 99, "carry_state": True, "layers": 3, "emb_dim": 18, "mlp_dim": 19, "heads": 5,
  "head_dim": 20, "components": 3, "estep": "hard", "prior": "em", "prior_scope": "position", "variance": 2.5,
  "learn_variance": True, "feature_map": "relu", "shift_init": "code", "attention_bias": True, "cutoffs": [10, 500],
  "div_val": 2, "tie_embeddings": False, "tie_projections": False, "dropout": 0.25, "attention_dropout": 0.5,
  "dtype": "bfloat16", "implementation": "xla", "remat": True, "schedule": "constant", "lr": 0.125, "warmup": 22,
  "b1": 0.75, "b1_peak": 0.5, "b2": 0.875, "eps": 0.0625, "weight_decay": 1.5, "clip_norm": 2.0, "mesh_data": 2,
  "mesh_model": -1,
}  # fmt: skip
NEEDS = {
  "feature_map": "mlk", "carry_state": "mlk", "shift_init": "smgk", "tie_projections": "mgk,div_val=2",
  "b1_peak": "mgk,schedule=one_cycle",
}  # fmt: skip


def test_every_argument_sets_its_setting():
  assert VALUES.keys() == schema.ARGUMENTS.keys()
  for name, value in VALUES.items():
    text = "10/500" if name == "cutoffs" else str(value).lower()
    got = flat(get_config("wikitext103", f"{NEEDS.get(name, 'mgk')},{name}={text}"))[schema.ARGUMENTS[name].path]
    assert got == value and type(got) is type(value), name
  paths = {path for name in CONFIGS for variant in VARIANTS for path in flat(get_config(name, variant))}
  paths |= set(flat(get_config("wikitext103", "smgk,div_val=2,schedule=one_cycle")))
  assert paths - {argument.path for argument in schema.ARGUMENTS.values()} == {"dataset", "model.attention"}


@pytest.mark.parametrize(
  ("arg", "message"),
  [
    ("mgk,hedas=2", "wikitext103: expected arguments among .*, got 'hedas'; did you mean 'heads'"),
    ("mgk,pooling=cls", "got 'pooling'"),
    ("softmax,estep=hard", "estep=hard has no effect: softmax attention has one key"),
    ("smgk,carry_state=true", "carry_state=true has no effect: only linear, mlk and smlk have a state"),
    ("mgk,tie_projections=false", "tie_projections=false has no effect: with div_val=1"),
    ("mlk,carry_state=true,accumulation=2", "carry_state: expected accumulation=1"),
    ("mgk,cutoffs=40/20", "cutoffs: expected ascending numbers such as 20000/40000/200000, or none, got '40/20'"),
    ("mgk,div_val=300", "div_val: expected at least one dimension in each cluster"),
    ("mgk,accumulation=7", "accumulation: expected a divisor of batch=96, got 7"),
    ("smgkk", "expected one of softmax, .* as the first word, got 'smgkk'; did you mean 'smgk'"),
  ],
)
def test_what_would_be_in_vain_is_refused(arg, message):
  with pytest.raises(ValueError, match=message):
    get_config("wikitext103", arg)


@pytest.fixture(scope="module")
def plan(tmp_path_factory):
  """What the training loop gets for a small config with settings changed."""
  folder = tmp_path_factory.mktemp("prepared")
  corpus = small.prepared(folder)
  short = "implementation=reference,steps=40,epochs=0,warmup=4,length=8,batch=4"

  def of(arg, **changes):
    config = small.get_config(f"{arg},{short}")
    for path, value in changes.items():
      *parts, last = path.split(".")
      functools.reduce(lambda part, name: part[name], parts, config)[last] = value
    with mock.patch.object(training, "Trainer", SimpleNamespace):
      return train.make_trainer(config, training.Workdir(folder), corpus)

  return of


def program(run):
  """The step of training as a program, with the shapes of all that it changes."""
  structure, init, _ = states.plan(run.make_model, run.optimizer, run.mesh, run.seed)
  step = steps.make_train_step(structure, run.objective, run.optimizer, accumulation_steps=run.accumulation_steps)
  text = str(jax.make_jaxpr(step)(jax.eval_shape(init), dict(next(run.train_data))))
  return re.sub(r" at 0x[0-9a-f]+", "", text)


def variables(run):
  model = nnx.eval_shape(lambda: run.make_model(nnx.Rngs(0)))
  return {path: (type(leaf).__name__, leaf.shape) for path, leaf in nnx.to_flat_state(nnx.state(model))}


def batches(run):
  return [{name: np.asarray(x).tolist() for name, x in next(run.train_data).items()} for _ in range(2)]


def moments(run):
  whole = range(run.schedule.num_steps + 1)
  return [[step for step in whole if at(step)] for at in (run.schedule.evaluates, run.schedule.saves)]


@pytest.mark.parametrize(
  ("arg", "setting", "value", "see"),
  [  # what the Long Range Arena does not have, or has elsewhere; tests of its configs see the rest
    ("mgk", "num_epochs", 1, moments),
    ("mgk", "num_steps", 39, moments),
    ("mgk", "seed", 1, batches),
    ("mgk", "batch_size", 2, batches),
    ("mgk", "data.length", 6, batches),
    ("mgk,prior_scope=position", "data.length", 6, variables),
    ("mlk", "data.carry_state", True, batches),
    ("mlk", "data.carry_state", True, variables),
    ("mgk", "model.attention_bias", True, variables),
    ("mgk", "model.cutoffs", [8], variables),
    ("mgk", "model.div_val", 2, variables),
    ("mgk", "model.tie_embeddings", False, variables),
    ("mgk,div_val=2", "model.tie_projections", False, variables),
    ("mgk", "model.dropout_rate", 0.5, program),
    ("mgk", "model.attention_dropout_rate", 0.5, program),
    ("mgk", "model.estep", "hard", program),
    ("mgk", "model.remat", True, program),
    ("mgk", "model.dtype", "bfloat16", program),
    ("mgk", "accumulation_steps", 2, program),
    ("mgk", "optimizer.clip_norm", 0.0, program),
  ],
)  # fmt: skip
def test_a_change_is_seen(plan, arg, setting, value, see):
  assert see(plan(arg)) == see(plan(arg)) != see(plan(arg, **{setting: value}))
