"""Evaluation from checkpoints: every example of any split exactly once, and nothing of the run is changed."""

import json
import shutil
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

import lra.model
import mgk_jax
from lra import evaluate, train
from mgk_jax import training
from tests.lra import small

ARG = "mgk,prior=em,source=files,length=48,batch=5,steps=8,eval_every=2,checkpoint_every=1,pooling=masked_mean"


@pytest.fixture
def begun(tmp_path):
  """The directory of a run that has checkpoints, although nothing is in them."""
  (tmp_path / "config.json").write_text(json.dumps(small.get_config("listops", ARG).to_dict()))
  for step in (2, 5, 8):
    (tmp_path / f"checkpoints/{step}").mkdir(parents=True)
  return tmp_path


def one_by_one(workdir, step, examples):
  """Accuracy and loss by a model that sees the examples of the raw files one after another."""
  config = small.get_config("listops", ARG)
  model = lra.model.make_model(
    mgk_jax.ClassifierConfig(vocab_size=16, num_classes=10, max_len=48, **config.model), nnx.Rngs(0)
  )
  saved = small.checkpoint(workdir, step)
  for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Not(nnx.RngState))):
    kind = "params" if isinstance(variable, nnx.Param) else "variables"
    variable[...] = jnp.asarray(saved["".join(f"['{part}']" for part in (kind, *path, "value"))])
  model.eval()

  @nnx.jit
  def log_probabilities(model, tokens, lengths):
    return jax.nn.log_softmax(model(tokens, lengths=lengths))[0]

  right, loss = 0, 0.0
  for (sequence,), label in examples:
    tokens = np.zeros((1, 48), np.int32)
    tokens[0, : len(sequence)] = np.frombuffer(sequence, np.uint8)
    scores = log_probabilities(model, jnp.asarray(tokens), jnp.array([len(sequence)]))
    right, loss = right + int(jnp.argmax(scores) == label), loss - float(scores[label])
  return right / len(examples), loss / len(examples)


def test_every_split_from_every_checkpoint(tmp_path, capsys):
  """A run on 16, 8 and 8 expressions, in batches of 5."""
  found, prepared = small.prepare_files("listops", tmp_path)
  workdir = tmp_path / "run"
  summary = train.train(small.get_config("listops", ARG), workdir, prepared_dir=prepared)
  before = small.files(workdir)
  for split, raw in (("train", "train"), ("valid", "validation"), ("test", "test")):
    result = evaluate.evaluate(workdir, split=split, step=8, prepared_dir=prepared)
    assert (result["split"], result["step"], result["examples"]) == (split, 8, len(found[raw]))
    accuracy, loss = one_by_one(workdir, 8, found[raw])
    assert result["accuracy"] == pytest.approx(accuracy, abs=1e-6)
    assert result["loss"] == pytest.approx(loss, rel=1e-5)

  valid = small.records(workdir, "valid")
  capsys.readouterr()
  for step, number in (("best", summary["best_step"]), ("latest", 8), ("7", 7)):
    evaluate.main([f"--workdir={workdir}", f"--prepared_dir={prepared}", f"--step={step}", "--split=valid", "--json"])
    result = json.loads(capsys.readouterr().out)
    assert result["step"] == number
    if number in valid:
      assert {name: result[name] for name in ("accuracy", "loss")} == valid[number]
  evaluate.main([f"--workdir={workdir}", f"--prepared_dir={prepared}"])  # the test set, from the best
  accuracy, loss = summary["test"]["accuracy"], summary["test"]["loss"]
  shown = f"test of step {summary['best_step']}: accuracy {accuracy:.2%}, loss {loss:.4f}, 8 examples"
  assert shown in capsys.readouterr().out

  command = [sys.executable, "-m", "lra.evaluate", f"--workdir={workdir}", f"--prepared_dir={prepared}", "--json"]
  there = small.run(command, JAX_NUM_CPU_DEVICES="3")
  assert there.returncode == 0, there.stderr
  result = json.loads(there.stdout)
  assert result["examples"] == 8 and result["accuracy"] == pytest.approx(accuracy, abs=1e-6)
  assert result["loss"] == pytest.approx(loss, rel=1e-5)
  assert small.files(workdir) == before, "nothing of the run is changed"


def test_the_best_is_known_before_the_run_is_finished(begun):
  directory = training.Workdir(begun)
  with pytest.raises(
    training.TrainingStopped, match=r"was not evaluated yet: choose --step=latest or one of \[2, 5, 8"
  ):
    training.find_step(directory, "best", training.ACCURACY)
  lines = [json.dumps({"step": step, "valid": {"accuracy": accuracy}}) for step, accuracy in ((2, 0.5), (8, 0.5))]
  (begun / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 9, "tr']))  # as a kill may leave it
  assert training.find_step(directory, "best", training.ACCURACY) == 2  # of equal ones, the first
  (begun / "checkpoints/2").rmdir()
  for step, number in (("best", 8), ("latest", 8), ("5", 5), (5, 5)):
    assert training.find_step(directory, step, training.ACCURACY) == number


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--step=4"], "--step: expected best, latest or one of [2, 5, 8], got 4"),
    (["--step=last"], "--step: expected best, latest or one of [2, 5, 8], got last"),
    (["--split=validation"], "invalid choice: 'validation' (choose from"),
    (["--workdir={empty}"], "is no work directory of a run: expected a config.json in it"),
    (["--step=8"], "Prepare them first:\n  python -m lra.prepare listops --prepared_dir="),
  ],
)
def test_errors(begun, tmp_path_factory, arguments, message, capsys):
  empty = tmp_path_factory.mktemp("empty")
  given = [f"--workdir={begun}", f"--prepared_dir={empty}"]
  with pytest.raises(SystemExit) as stop:
    evaluate.main([*given, *(argument.format(empty=empty) for argument in arguments)])
  assert stop.value.code != 0
  assert message in f"{stop.value.code}{capsys.readouterr().err}"


def test_without_checkpoints(begun):
  shutil.rmtree(begun / "checkpoints")
  for _ in range(2):
    with pytest.raises(training.TrainingStopped, match="has no checkpoint yet"):
      evaluate.evaluate(begun, prepared_dir=begun)
    (begun / "checkpoints").mkdir(exist_ok=True)
