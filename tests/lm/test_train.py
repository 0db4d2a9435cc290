"""`lm.train` from raw files to a summary: what is reported is true, runs go on where they were stopped."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import lm.model
from lm import input_pipeline, train
from mgk_jax import training
from mgk_jax.analysis import parameters
from mgk_jax.data import DataError
from mgk_jax.data.rows import Rows
from mgk_jax.training import state as states, step as steps
from mgk_jax.training.checkpoints import Checkpoints
from tests.lm import small
from tests.lra import small as runs

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  folder = tmp_path_factory.mktemp("prepared")
  small.prepared(folder)
  small.prepared(folder, "enwik8")
  return folder


def test_from_raw_files_to_a_summary(tmp_path, capsys):
  """And what the summary says of the test set is what the checkpoint says, by the definition."""
  texts = small.TEXTS
  (tmp_path / "raw").mkdir()
  small.write(tmp_path / "raw")
  config = small.get_config("mgk,heads=2,div_val=2,prior_scope=position,dropout=0.1")
  with pytest.raises(DataError, match="expected 2,088,628 words and line ends"):
    train.train(config, tmp_path / "run", data_dir=tmp_path / "raw", prepared_dir=tmp_path)
  corpus = small.prepared(tmp_path)
  summary = train.train(config, tmp_path / "run", prepared_dir=tmp_path)
  assert json.loads((tmp_path / "run/summary.json").read_text()) == summary
  assert (summary["dataset"], summary["variant"], summary["num_heads"]) == ("wikitext2", "mgk", 2)
  assert summary["data"]["num_tokens"] == {split: len(small.tokens(text)) for split, text in texts.items()}
  assert summary["flops_per_step"] > 0 and min(summary["timing"].values()) > 0

  trained, valid = runs.records(tmp_path / "run", "train"), runs.records(tmp_path / "run", "valid")
  assert list(trained) == [2, 4, 6] and list(valid) == [3, 6]
  for record in (*trained.values(), *valid.values()):
    assert record["segment_perplexity"] == pytest.approx(math.exp(record["loss"]))
  best = min(valid, key=lambda step: valid[step]["loss"])
  assert summary["best_step"] == best and summary["valid"] == valid[best]
  assert valid[6]["loss"] < valid[3]["loss"], "nothing was learned"
  shown = capsys.readouterr().err
  assert "segment_perplexity" in shown and "step 3: valid loss " in shown
  said = train.describe(summary)
  assert f"segment perplexity {summary['valid']['segment_perplexity']:.2f} on valid" in said
  assert "(segments of 8 words, each on its own)" in said and "data: not the official corpus: " in said

  trainer = train.make_trainer(config, training.Workdir(tmp_path / "run"), corpus)
  with Checkpoints(tmp_path / "run/checkpoints", read_only=True) as checkpoints:
    state, _ = checkpoints.restore(best, trainer.abstract_state())
  assert summary["num_parameters"] == parameters.count(state.params)
  model = lm.model.maker(config, corpus.vocab_size)(nnx.Rngs(0))
  nnx.update(model, state.params)
  model.eval()
  total = 0.0
  for start in range(0, len(corpus.test) - 1, 8):
    words = np.asarray(corpus.test[start : start + 9])
    log_probs = model.log_probs(model.hidden(jnp.asarray(words[None, :-1])))[0]
    total -= float(sum(log_probs[place, word] for place, word in enumerate(words[1:])))
  assert total / (len(corpus.test) - 1) == pytest.approx(summary["test"]["loss"], rel=1e-5)


def test_epochs_and_steps(prepared, tmp_path):
  """Whichever ends first."""
  tokens = len(small.tokens(small.TEXTS["train"]))
  segments = math.ceil((tokens - 1) / 8)
  for arg, expected in (
    ("mgk,epochs=2,steps=10000", math.ceil(2 * segments / 4)),
    ("mgk,epochs=2,steps=7", 7),
    ("mgk,epochs=0,steps=9000", 9000),
    ("mlk,epochs=3,steps=10000,carry_state=true", 3 * math.ceil(segments / 4)),
  ):
    assert train.num_steps(small.get_config(arg), tokens) == expected
  paper = train.num_steps(small.importlib.import_module("configs.lm.wikitext103").get_config("mgk"), 103_227_021)
  assert paper == 500_000
  config = small.get_config("softmax,epochs=1,steps=50,eval_every=100,length=64,batch=5")
  summary = train.train(config, tmp_path, prepared_dir=prepared)
  assert summary["num_steps"] == math.ceil(math.ceil((tokens - 1) / 64) / 5) and summary["num_epochs"] >= 1


def test_bytes(prepared, tmp_path):
  config = small.get_config("smgk,heads=1,cutoffs=none,steps=2", "enwik8")
  summary = train.train(config, tmp_path, prepared_dir=prepared)
  assert summary["test"]["segment_bits_per_byte"] == pytest.approx(summary["test"]["loss"] / math.log(2))
  assert "bits per byte, by segments" in train.describe(summary)


@pytest.mark.parametrize(
  "arg", [pytest.param("smgk,prior=em,accumulation=2", marks=pytest.mark.slow), "smlk,carry_state=true"]
)
def test_a_resumed_run_is_one_that_was_never_stopped(prepared, tmp_path, monkeypatch, arg):
  """To the bit, with dropout, in the middle of an epoch, after a signal."""
  config = small.get_config(f"{arg},dropout=0.1,steps=8,eval_every=4,length=16")
  train.train(config, tmp_path / "whole", prepared_dir=prepared)
  batches = input_pipeline.train_batches

  def signalled(*arguments, **options):
    stream = batches(*arguments, **options)

    class Signalled:
      get_state, set_state, read = stream.get_state, stream.set_state, 0

      def __next__(self):
        self.read += 1
        if self.read == 3:
          os.kill(os.getpid(), signal.SIGTERM)
        return next(stream)

    return Signalled()

  with monkeypatch.context() as patch:
    patch.setattr(input_pipeline, "train_batches", signalled)
    with pytest.raises(training.Interrupted, match="Stopped at step 3 of 8"):
      train.train(config, tmp_path / "parts", prepared_dir=prepared)
  train.train(config, tmp_path / "parts", prepared_dir=prepared)
  assert len(runs.checkpoints(tmp_path / "parts")) == 2
  metrics = [(tmp_path / name / "metrics.jsonl").read_text() for name in ("whole", "parts")]
  assert metrics[0] == metrics[1]
  runs.assert_same_run(tmp_path / "parts", tmp_path / "whole")
  before = runs.files(tmp_path / "parts")
  train.train(config, tmp_path / "parts", prepared_dir=prepared)  # says that it is finished, and does nothing
  changed = {path.name for path, content in runs.files(tmp_path / "parts").items() if before.get(path) != content}
  assert changed <= {"environment.jsonl"}


def test_a_carried_state_is_one_pass_over_all():
  """Segment by segment, each row sees all its words so far, until it begins anew; gradients end with the batch."""
  config = small.get_config("mlk,carry_state=true,dropout=0,batch=2,length=4")
  optimizer, _ = training.make_optimizer(num_steps=6, **config.optimizer)
  structure, init, shardings = states.plan(lm.model.maker(config, 30), optimizer, training.make_mesh(1), 0)
  params = jax.tree.map(lambda x: 20 * x, init().params)  # so that what came before matters
  words = np.random.default_rng(0).integers(0, 30, 50).astype(np.int32)
  stream = input_pipeline.train_batches(words, rows=Rows(2, 0, 1), length=4, seed=0, carry_state=True)
  batches = list(itertools.islice(stream, 9))
  step, variables, got = jax.jit(steps.make_eval_step(structure, lm.model.predict)), init().variables, []
  for batch in batches:
    before, (variables, sums) = variables, step(params, variables, batch)
    got.append(float(sums["loss"]))

  model = structure.merge(params, variables)
  expected = []
  for epoch in (batches[:7], batches[7:]):  # 13 segments in two streams
    rows = {name: np.concatenate([batch[name] for batch in epoch], axis=1) for name in ("tokens", "targets", "weights")}
    hidden = model.hidden(rows["tokens"], positions=np.tile(np.arange(4), len(epoch)), deterministic=True)
    losses = model.losses(hidden, rows["targets"], rows["weights"])
    expected += [float(jnp.sum(losses[:, 4 * i : 4 * i + 4])) for i in range(len(epoch))]
  np.testing.assert_allclose(got, expected, rtol=1e-5)
  _, alone = step(params, before, batches[-1] | {"begins": np.ones(2, bool)})
  assert abs(float(alone["loss"]) - got[-1]) > 1e-2, "the state does not matter"

  # The state is cut over devices as rows are, and is no parameter.
  carried = jax.tree.leaves(shardings.variables["carried"])
  assert carried and {sharding.spec for sharding in carried} == {jax.sharding.PartitionSpec("data")}
  plain = lm.model.maker(small.get_config("mlk"), 30)(nnx.Rngs(0))
  assert jax.tree.structure(nnx.state(plain, nnx.Param)) == jax.tree.structure(nnx.state(model, nnx.Param))


@pytest.mark.slow
def test_eight_devices(tmp_path):
  """Losses are those of one device; see `tests.lm.sharded_training`, which is run here."""
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
  }
  command = [sys.executable, "-W", "error", "-m", "tests.lm.sharded_training", str(tmp_path)]
  done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.strip() == "all equal"


@pytest.mark.parametrize(
  ("arg", "options", "message"),
  [
    ("mgk,hedas=2", [], "got 'hedas'; did you mean 'heads'?"),
    ("mgk,carry_state=true", [], "carry_state=true has no effect: only linear, mlk and smlk have a state"),
    ("mgk", ["--config.model.num_head=2"], "no setting 'num_head'. Did you mean"),
    ("mgk", ["--workdir="], "--workdir: expected a directory, got ''"),
    ("mgk", [], "Prepare them first:\n  python -m lm.prepare wikitext2 --prepared_dir="),
  ],
)
def test_wrong_commands_end_with_a_message(tmp_path, capfd, arg, options, message):
  command = [f"--config=configs/lm/wikitext2_small.py:{arg}", f"--workdir={tmp_path}", f"--prepared_dir={tmp_path}"]
  done = runs.run([sys.executable, "-m", "lm.train", *command, *options])
  assert done.returncode == 1 and message in done.stderr and "Traceback" not in done.stderr, done.stderr


def test_the_command(prepared, tmp_path):
  config = f"--config=configs/lm/wikitext2_small.py:{small.argument('linear,heads=2,steps=2')}"
  done = runs.run([sys.executable, "-m", "lm.train", config, f"--workdir={tmp_path}", f"--prepared_dir={prepared}"])
  assert done.returncode == 0, done.stderr
  assert f"a sliding window: python -m lm.evaluate --workdir={tmp_path}" in done.stdout


def test_settings_that_are_wrong_are_found_before_data(tmp_path):
  for path, value, message in (
    ("batch_size", 0, "batch_size: expected a multiple"),
    ("eval_every", 0, "eval_every: expected at least 1"),
    ("seed", -1, "seed: expected 0 or more"),
    ("dataset", "ptb", "dataset: expected one of"),
  ):
    config = small.get_config("mgk")
    config[path] = value
    with pytest.raises(ValueError, match=message):
      train.train(config, tmp_path / "run", prepared_dir=tmp_path)
  assert not (tmp_path / "run").exists()
