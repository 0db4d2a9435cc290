"""Every setting of every shipped config changes something in a run: for each there is a proof, or this fails.

Runs are planned by the program itself, from shrunken configs; what is looked at is what its training loop would get.
"""

import functools
import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import lra.train
from lra import prepare, tasks
from mgk_jax import training
from mgk_jax.training import state as states, step as steps
from tests.configs.shipped import CONFIGS, ROOT, VARIANTS, flat, get_config

TINY = (
  "batch=4,length=16,num_train=24,num_valid=6,num_test=6,min_length=7,max_length=17,max_depth=3,max_args=4,"
  "layers=1,emb_dim=8,mlp_dim=8,heads=2,head_dim=4,classifier_dim=8,steps=40,warmup=10,eval_every=10,log_every=3,"
  "implementation=reference"  # compiles fastest
)
FAST_TO_COMPILE = {"xla_backend_optimization_level": 0}


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  """Where data are prepared, with a few reviews besides."""
  folder = tmp_path_factory.mktemp("prepared")
  for part in ("train/neg", "train/pos", "test/neg", "test/pos"):
    (folder / "aclImdb" / part).mkdir(parents=True)
    for number in range(10):
      (folder / "aclImdb" / part / f"{number}_1.txt").write_text(f"{part} {number}")
  prepare.prepare(tasks.get("text")(data_dir=folder, partial=True), folder / "aclImdb")
  return folder


def plan_run(config, prepared):
  """What the training loop gets for a config."""
  builder = prepare.require(tasks.builder(config, prepared))
  with mock.patch.object(training, "Trainer", SimpleNamespace):
    return lra.train.make_trainer(config, training.Workdir(prepared / "run"), builder)


@pytest.fixture(scope="module")
def plan(prepared):
  return lambda config: plan_run(config, prepared)


@pytest.fixture(scope="module")
def seen(plan):
  """What is seen of the shrunken config of an attention."""
  return functools.cache(lambda arg, see: see(plan(tiny(arg))))


def tiny(arg="smgk", **changes):
  """The config of ListOps, shrunken, with settings changed by their paths."""
  config = get_config("listops", f"{arg},{TINY}")
  for path, value in changes.items():
    *parts, last = path.split(".")
    functools.reduce(lambda part, name: part[name], parts, config)[last] = value
  return config


def variables(run):
  """Names, kinds and shapes of all variables of the model."""
  model = nnx.eval_shape(lambda: run.make_model(nnx.Rngs(0)))
  return {path: (type(leaf).__name__, leaf.shape) for path, leaf in nnx.to_flat_state(nnx.state(model))}


def loss(run, rngs=lambda: None):
  """Of the first batch in evaluation, with made-up parameters."""
  batch = next(run.train_data)
  structure, init, _ = states.plan(run.make_model, run.optimizer, run.mesh, run.seed)
  state = jax.eval_shape(init)
  made_up = jax.tree.map(lambda x: np.resize([0.5, 0.1, 0.3], x.shape).astype(x.dtype), (state.params, state.variables))

  def of_batch(params, variables):
    return run.objective(structure.merge(params, variables), batch, rngs())["loss"]

  return float(jax.jit(of_batch, compiler_options=FAST_TO_COMPILE)(*made_up))


def training_loss(run):
  """The same in training."""
  return loss(run, lambda: nnx.Rngs(dropout=1))


def start(run):
  """The first parameters."""
  _, init, _ = states.plan(run.make_model, run.optimizer, run.mesh, run.seed)
  params = jax.jit(lambda: init().params, compiler_options=FAST_TO_COMPILE)()
  return {path: np.asarray(leaf[...]).tolist() for path, leaf in nnx.to_flat_state(params)}


def program(run):
  """The step of training as a program."""
  structure, init, _ = states.plan(run.make_model, run.optimizer, run.mesh, run.seed)
  step = steps.make_train_step(structure, run.objective, run.optimizer, accumulation_steps=run.accumulation_steps)
  text = str(jax.make_jaxpr(step)(jax.eval_shape(init), dict(next(run.train_data))))
  return re.sub(r" at 0x[0-9a-f]+", "", text)  # where in memory a function happens to be


def rates(run):
  return [float(run.learning_rate(step)) for step in range(run.schedule.num_steps)]


def updates(run):
  """What becomes of two parameters with made-up gradients in three steps."""
  params, gradients = jnp.array([1.0, -2.0]), [[3.0, 1e-4], [-1.0, 2e-4], [0.5, 0.0]]
  state = run.optimizer.init(params)
  for gradient in gradients:
    update, state = run.optimizer.update(jnp.array(gradient), state, params)
    params = params + update
  return params.tolist()


def moments(run):
  """Steps at which a run evaluates, saves and logs."""
  whole = range(run.schedule.num_steps + 1)
  return [
    [step for step in whole if at(step)] for at in (run.schedule.evaluates, run.schedule.saves, run.schedule.logs)
  ]


def batches(run):
  """The first batch for training, and the sizes of what is evaluated."""
  first = {name: np.asarray(value).tolist() for name, value in next(run.train_data).items()}
  sizes = [sum(float(batch["weights"].sum()) for batch in run.eval_data(split)) for split in ("valid", "test")]
  return first, sizes


def raw(config, prepared):
  """The data that a config asks for, before they are written."""
  splits = tasks.builder(config, prepared).find(None).splits
  return {name: [(key, example["tokens"].tolist()) for key, example in split.read()] for name, split in splits.items()}


# The setting, another value, and where the difference is seen.
RUN = [
  ("seed", 1, start),
  ("seed", 1, batches),
  ("num_steps", 41, moments),
  ("num_steps", 41, rates),
  ("batch_size", 2, batches),
  ("accumulation_steps", 2, program),
  ("eval_every", 9, moments),
  ("checkpoint_every", 7, moments),
  ("log_every", 4, moments),
  ("data.length", 12, batches),
  ("data.length", 12, variables),
  ("data.pad_to", 10, batches),
  ("model.attention", "mgk", variables),
  ("model.num_layers", 2, variables),
  ("model.emb_dim", 12, variables),
  ("model.mlp_dim", 12, variables),
  ("model.num_heads", 1, variables),
  ("model.head_dim", 8, variables),
  ("model.classifier_dim", 12, variables),
  ("model.pooling", "masked_mean", loss),
  ("model.dropout_rate", 0.5, training_loss),
  ("model.dtype", "bfloat16", loss),
  ("model.remat", True, program),
]
BY_VARIANT = {
  "softmax": [("attention_dropout_rate", 0.5, training_loss)],
  "linear": [("feature_map", "relu", loss)],
  "mgk": [
    ("num_components", 3, variables),
    ("estep", "hard", loss),
    ("prior", "em", variables),
    ("prior_scope", "position", variables),
    ("variance", 0.5, loss),
    ("learn_variance", True, variables),
    ("attention_dropout_rate", 0.5, training_loss),
  ],
  "mlk": [
    ("num_components", 3, variables),
    ("prior", "fixed", variables),
    ("prior_scope", "shared", variables),
    ("feature_map", "dpfp", loss),
  ],
}
BY_VARIANT["smgk"] = [*BY_VARIANT["mgk"], ("shift_init", "code", start)]
BY_VARIANT["smlk"] = [*BY_VARIANT["mlk"], ("shift_init", "code", start)]
IN_ALL_VARIANTS = [("implementation", "xla", program)]
BY_SCHEDULE = [
  ("learning_rate", 2e-4, rates),
  ("warmup_steps", 11, rates),
  ("b1", 0.5, updates),
  ("b2", 0.5, updates),
  ("eps", 1e-3, updates),
  ("weight_decay", 0.5, updates),
  ("clip_norm", 0.1, updates),
]
SCHEDULES = {
  "one_cycle": [*BY_SCHEDULE, ("b1_peak", 0.5, updates)],
  "rsqrt": BY_SCHEDULE,
  "cosine": BY_SCHEDULE,
  "constant": BY_SCHEDULE,
}
GENERATOR = {
  "seed": 1, "num_train": 25, "num_valid": 7, "num_test": 7, "min_length": 9, "max_length": 15, "max_depth": 4,
  "max_args": 3,
}  # fmt: skip
ELSEWHERE = {
  "task",
  "optimizer.schedule",
  "data.protocol",
  "data.source",
  "mesh.data",
  "mesh.model",
}  # tests of their own below


def test_there_is_a_proof_for_each():
  proven = {setting for setting, _, _ in RUN} | ELSEWHERE | {f"data.generator.{name}" for name in GENERATOR}
  for name in CONFIGS:
    for variant in VARIANTS:
      config = get_config(name, variant)
      here = {f"model.{setting}" for setting, _, _ in [*BY_VARIANT[variant], *IN_ALL_VARIANTS]}
      here |= {f"optimizer.{setting}" for setting, _, _ in SCHEDULES[config.optimizer.schedule]}
      assert flat(config).keys() - proven == here
      proven_alone = {setting for setting in proven if setting.startswith(("model", "optimizer"))} | here
      parts = {path for path in flat(config) if path.startswith(("model", "optimizer"))}
      assert proven_alone == parts  # no proof of a setting that the config does not have
  everywhere = set().union(*(flat(get_config(name)) for name in CONFIGS))
  assert {path for path in proven if not path.startswith(("model", "optimizer"))} <= everywhere


CASES = [
  *(("smgk", setting, value, see) for setting, value, see in RUN),
  *((variant, f"model.{name}", value, see) for variant in VARIANTS for name, value, see in BY_VARIANT[variant]),
  *((variant, f"model.{name}", value, see) for variant in VARIANTS for name, value, see in IN_ALL_VARIANTS),
  *((f"smgk,schedule={x}", f"optimizer.{name}", value, see) for x in SCHEDULES for name, value, see in SCHEDULES[x]),
]


@pytest.mark.parametrize(("arg", "setting", "value", "see"), CASES)
def test_a_change_is_seen(plan, seen, arg, setting, value, see):
  assert seen(arg, see) != see(plan(tiny(arg, **{setting: value})))


@pytest.mark.parametrize("see", dict.fromkeys(case[-1] for case in CASES))
def test_without_a_change_nothing_is_seen(plan, seen, see):
  assert seen("smgk", see) == see(plan(tiny("smgk")))


@pytest.mark.parametrize("name", GENERATOR)
def test_generator(prepared, name):
  assert raw(tiny(), prepared) == raw(tiny(), prepared)
  assert raw(tiny(), prepared) != raw(tiny(**{f"data.generator.{name}": GENERATOR[name]}), prepared)


def test_source_and_task(prepared):
  needs = {
    arg: tasks.builder(get_config(name, arg), prepared).needs_raw_data
    for name, arg in (("listops", "source=generated"), ("listops", "source=files"), ("text", ""))
  }
  assert needs == {"source=generated": False, "source=files": True, "": True}
  for name in CONFIGS:
    config = get_config(name)
    assert tasks.builder(config, prepared).task.name == config.task


def test_schedule(seen):
  curves = [seen(f"smgk,schedule={schedule}", rates) for schedule in SCHEDULES]
  assert all(curve not in curves[:number] for number, curve in enumerate(curves))


def test_protocol(plan):
  runs = [plan(get_config("text", f"protocol={protocol},batch=2,length=16")) for protocol in ("lra", "holdout")]
  assert [batches(run)[1] for run in runs] == [[20, 20], [2, 20]]  # of validation and test


def test_mesh(prepared):
  """On four devices, in a process of its own."""
  program = f"from {__name__} import print_meshes; print_meshes({str(prepared)!r})"
  environment = os.environ | {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "4"}
  options = {"cwd": ROOT, "env": environment, "capture_output": True, "text": True}
  done = subprocess.run([sys.executable, "-c", program], **options, check=False)
  assert (done.returncode, done.stdout.split()) == (0, ["4x1:4", "2x1:4", "2x2:2", "1x4:1"]), done.stderr


def print_meshes(prepared):
  """The mesh of some configs, and how many of four heads a device has."""
  for data, model in ((-1, 1), (2, 1), (-1, 2), (1, 4)):
    run = plan_run(tiny(**{"mesh.data": data, "mesh.model": model, "model.num_heads": 4}), Path(prepared))
    _, _, shardings = states.plan(run.make_model, run.optimizer, run.mesh, run.seed)
    sharding = shardings.params["encoder"]["blocks"][0]["attention"]["query"]["kernel"].get_raw_value()
    print(f"{run.mesh.shape['data']}x{run.mesh.shape['model']}:{sharding.shard_shape((8, 4, 4))[1]}")
