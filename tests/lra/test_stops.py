"""Runs that are asked to stop or cannot go on: each ends with a message, loses nothing, and can be gone on with."""

import json
import os
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from lra import train
from mgk_jax import training
from mgk_jax.training import records
from tests.lra import small

ARG = "smgk,prior=em,implementation=reference"


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
  return small.prepare_generated(tmp_path_factory.mktemp("prepared"))


@pytest.fixture(scope="module")
def finished(tmp_path_factory, prepared):
  """A run to its end, with checkpoints at steps 3 and 6."""
  workdir = tmp_path_factory.mktemp("finished") / "run"
  train.train(small.get_config("listops", ARG), workdir, prepared_dir=prepared)
  return workdir


@pytest.fixture
def unfinished(tmp_path, finished):
  """The same run, as if it had been killed before its summary."""
  workdir = Path(shutil.copytree(finished, tmp_path / "run"))
  (workdir / "summary.json").unlink()
  return workdir


def test_signals(tmp_path, prepared):
  """SIGTERM while the program is still compiled, Ctrl-C in the middle, and the result is that of a run in one go."""
  arg = f"{ARG},steps=150,eval_every=60,log_every=7"
  config = small.get_config("listops", arg)
  workdir = tmp_path / "stopped"
  command = small.command(arg, workdir, prepared)
  with small.start(command) as process:
    small.wait_for((workdir / "metrics.jsonl").exists, process)
    with pytest.raises(training.TrainingStopped, match=f"Another process is running in {workdir}; wait for it"):
      train.train(config, workdir, prepared_dir=prepared)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=300)
  assert (process.returncode, out) == (128 + signal.SIGTERM, ""), err
  assert "SIGTERM: saving and stopping after this step" in err and "Traceback" not in err
  step = max(small.checkpoints(workdir), default=0)  # of 1 at most, unless this process was slow
  assert f"Stopped at step {step} of 150; what was done is saved in {workdir}." in err
  assert "Start again with the same command to go on." in err

  with small.start(command) as process:
    small.wait_for(lambda: max(small.records(workdir, "train"), default=0) > step, process)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
  assert (process.returncode, out) == (128 + signal.SIGINT, ""), err
  assert f"Stopped at step {small.checkpoints(workdir)[-1]} of 150" in err and "Traceback" not in err
  assert step < small.checkpoints(workdir)[-1] < 150

  train.train(config, workdir, prepared_dir=prepared)
  train.train(config, tmp_path / "reference", prepared_dir=prepared)
  small.assert_same_run(workdir, tmp_path / "reference")


def test_sigterm_while_data_are_prepared(tmp_path):
  command = small.command("smgk,num_train=90000", tmp_path / "run", tmp_path / "prepared")
  with small.start(command) as process:
    small.wait_for(lambda: list((tmp_path / "prepared").rglob("incomplete.*")), process)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
  assert process.returncode == 128 + signal.SIGTERM, err
  assert "SIGTERM: stopped. Start again with the same command." in err and "Traceback" not in err
  assert not list((tmp_path / "prepared").rglob("incomplete.*"))
  assert not (tmp_path / "run/config.json").exists()


def test_a_finished_run_is_neither_changed_nor_done_again(finished, prepared, capsys):
  before = small.files(finished)
  with pytest.raises(training.TrainingStopped) as stop:
    train.train(small.get_config("listops", "smgk,seed=3,heads=1,lr=0.5"), finished, prepared_dir=prepared)
  assert str(stop.value).splitlines() == [
    f"{finished} belongs to a run with another config:",
    "  model.implementation: reference there, None now",
    "  model.num_heads: 2 there, 1 now",
    "  model.prior: em there, sgd now",
    "  model.prior_scope: nothing there, head now",
    "  optimizer.learning_rate: 0.01 there, 0.5 now",
    "  seed: 0 there, 3 now",
    "Take another --workdir, or the config of that run.",
  ]
  assert small.files(finished) == before

  summary = train.train(small.get_config("listops", ARG), finished, prepared_dir=prepared)
  assert summary == json.loads((finished / "summary.json").read_text())
  assert f"{finished} holds a finished run." in capsys.readouterr().err
  after = small.files(finished)
  assert after.pop(Path("environment.jsonl")).startswith(before.pop(Path("environment.jsonl")))
  assert after == before


@pytest.mark.parametrize(
  ("arg", "message"),
  [
    ("checkpoint_every=1", "Step 2 is not finite: norm of the parameters inf. The last good .* is that of step 1"),
    ("checkpoint_every=0", "Step 3 is not finite: accuracy .*, loss nan.* There is no checkpoint yet"),
  ],
)  # fmt: skip
def test_numbers_that_are_not_finite(tmp_path, prepared, arg, message):
  """The learning rate is 0 in the first step and far too high in the second."""
  config = small.get_config("listops", f"{ARG},schedule=constant,warmup=2,lr=1e30,steps=8,eval_every=8,{arg}")
  with pytest.raises(training.TrainingStopped, match=message):
    train.train(config, tmp_path, prepared_dir=prepared)
  assert small.checkpoints(tmp_path) == ([1] if arg == "checkpoint_every=1" else [])
  for step in small.checkpoints(tmp_path):
    assert all(np.isfinite(array).all() for array in small.checkpoint(tmp_path, step).values())
  assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
  assert not (tmp_path / "summary.json").exists()


def test_an_unreadable_checkpoint(unfinished, finished, prepared, tmp_path, capfd):
  data = max((unfinished / "checkpoints/6/state/d").iterdir(), key=lambda path: path.stat().st_size)
  data.write_bytes(data.read_bytes()[: data.stat().st_size // 2])
  before = small.files(unfinished / "checkpoints")
  config = small.get_config("listops", ARG)
  with pytest.raises(training.TrainingStopped) as stop:
    train.train(config, unfinished, prepared_dir=prepared)
  broken = unfinished / "checkpoints/6"
  assert str(stop.value).startswith(f"The checkpoint of step 6 in {broken.parent} cannot be read: ")
  assert (
    f"Checkpoints there: [3, 6]. Nothing was changed. To go on from an earlier one, move the directory {broken}"
    in (str(stop.value))
  )
  assert small.files(unfinished / "checkpoints") == before
  assert "Traceback" not in capfd.readouterr().err

  broken.rename(tmp_path / "moved away")
  train.train(config, unfinished, prepared_dir=prepared)
  small.assert_same_run(unfinished, finished)


@pytest.mark.slow
def test_a_full_disk(unfinished, finished, prepared, monkeypatch):
  """Files of more than 20 KB cannot be written, as some in every checkpoint are; then none for metrics can."""
  shutil.rmtree(unfinished / "checkpoints/6")
  limited = "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000)); "
  limited += "os.execv(sys.executable, sys.argv[1:])"
  done = small.run([sys.executable, "-c", limited, *small.command(ARG, unfinished, prepared)])
  assert done.returncode == 1
  assert f"The checkpoint of step 6 could not be written to {unfinished / 'checkpoints'}: " in done.stderr
  assert "File too large" in done.stderr and "Traceback" not in done.stderr
  assert "The last good checkpoint is that of step 3. Once there is room" in done.stderr
  assert small.checkpoints(unfinished) == [3]

  config = small.get_config("listops", ARG)
  metrics = unfinished / "metrics.jsonl"
  if Path("/dev/full").exists():

    def replace(source, target):
      os.rename(source, unfinished / "kept")
      os.unlink(target)
      os.symlink("/dev/full", target)

    with monkeypatch.context() as full, pytest.raises(training.TrainingStopped) as stop:
      full.setattr(records.os, "replace", replace)
      train.train(config, unfinished, prepared_dir=prepared)
    message = f"The metrics of step 3 could not be written to {unfinished}: [Errno 28] No space left on device"
    assert str(stop.value).startswith(message) and "start again with the same command" in str(stop.value)
    assert small.checkpoints(unfinished) == [3]
    metrics.unlink()
    (unfinished / "kept").rename(metrics)

  train.train(config, unfinished, prepared_dir=prepared)
  small.assert_same_run(unfinished, finished)
