"""--distributed: processes that meet at an address are one run, or one evaluation."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from lm import evaluate, train
from mgk_jax.training import processes
from mgk_jax.training.processes import Place
from tests.lm import small
from tests.training.two_processes import ARGUMENT

ROOT = Path(__file__).parents[2]
SECONDS = 300


def test_all_or_nothing():
  with pytest.raises(ValueError, match=r"all of --coordinator, .* or none; missing: --process_id"):
    processes.join(Place(True, "localhost:1", 2, None))


def test_only_with_the_flag():
  processes.join(Place())
  with pytest.raises(ValueError, match="--process_id go with --distributed"):
    processes.join(Place(process_id=0))


def test_without_a_cluster_it_says_what_to_do():
  """In a process of its own, as JAX is to be started by it."""
  code = "from mgk_jax.training import processes; processes.join(processes.Place(distributed=True))"
  found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
  assert "elsewhere start every process with --coordinator=HOST:PORT" in found.stderr.splitlines()[-1]


@pytest.mark.slow
def test_two_processes_by_the_command(tmp_path):
  places = [f"--workdir={tmp_path / 'run'}", f"--prepared_dir={tmp_path / 'data'}"]
  first, second = together("lra.train", f"--config=configs/lra/listops.py:{ARGUMENT}", *places)
  assert "test accuracy" in first and "test accuracy" not in second
  saved = json.loads((tmp_path / "run" / "environment.jsonl").read_text().splitlines()[0])
  assert (saved["processes"], saved["devices"]["number"]) == (2, 4)

  first, second = together("lra.evaluate", *places)
  alone = subprocess.run(
    [sys.executable, "-m", "lra.evaluate", *places], cwd=ROOT, env=environment(), capture_output=True, text=True
  )
  assert first == alone.stdout != "" and second == ""


@pytest.mark.slow
def test_sliding_windows_by_two_processes(tmp_path):
  small.prepared(tmp_path)
  train.train(small.get_config("smgk"), tmp_path / "run", prepared_dir=tmp_path)
  alone = evaluate.evaluate(tmp_path / "run", prepared_dir=tmp_path)
  (tmp_path / "run/evaluation").rename(tmp_path / "evaluation")
  places = [f"--workdir={tmp_path / 'run'}", f"--prepared_dir={tmp_path}"]
  first, second = together("lm.evaluate", *places, "--json")
  assert second == ""
  assert json.loads(first)["tokens"] == alone["tokens"]
  assert json.loads(first)["nll"] == pytest.approx(alone["nll"], abs=1e-6)


def together(module, *arguments):
  """What each of two processes prints."""
  with socket.socket() as opened:
    opened.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{opened.getsockname()[1]}"
  command = [sys.executable, "-m", module, *arguments, "--distributed", f"--coordinator={address}", "--num_processes=2"]
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  started = [
    subprocess.Popen([*command, f"--process_id={i}"], cwd=ROOT, env=environment(devices=2), **pipes) for i in range(2)
  ]
  try:
    results = [process.communicate(timeout=SECONDS) for process in started]
  finally:
    for process in started:
      process.kill()
  for process, (_, errors) in zip(started, results, strict=True):
    assert process.returncode == 0, errors[-3000:]
  # JAX's own means to talk between processes on CPUs says so.
  return ["".join(line for line in out.splitlines(True) if not line.startswith("[Gloo]")) for out, _ in results]


def environment(devices=1):
  return os.environ | {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": str(devices),
    "XLA_FLAGS": "",
  }
