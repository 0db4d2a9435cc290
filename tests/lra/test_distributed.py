"""`lra.train --distributed`: processes that meet at an address are one run."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from mgk_jax.training import processes
from tests.training.two_processes import ARGUMENT

ROOT = Path(__file__).parents[2]
SECONDS = 300


def test_all_or_nothing():
  with pytest.raises(ValueError, match=r"all of --coordinator, .* or none; missing: --process_id"):
    processes.join("localhost:1", 2, None)


def test_without_a_cluster_it_says_what_to_do():
  """In a process of its own, as JAX is to be started by it."""
  code = "from mgk_jax.training import processes; processes.join(None, None, None)"
  found = subprocess.run([sys.executable, "-c", code], cwd=ROOT, env=environment(), capture_output=True, text=True)
  assert "elsewhere start every process with --coordinator=HOST:PORT" in found.stderr.splitlines()[-1]


@pytest.mark.slow
def test_two_processes_by_the_command(tmp_path):
  with socket.socket() as opened:
    opened.bind(("127.0.0.1", 0))
    address = f"127.0.0.1:{opened.getsockname()[1]}"
  command = [
    sys.executable, "-m", "lra.train", f"--config=configs/lra/listops.py:{ARGUMENT}", f"--workdir={tmp_path / 'run'}",
    f"--prepared_dir={tmp_path / 'data'}", "--distributed", f"--coordinator={address}", "--num_processes=2",
  ]  # fmt: skip
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
  assert "test accuracy" in results[0][0] and "test accuracy" not in results[1][0]
  saved = json.loads((tmp_path / "run" / "environment.jsonl").read_text().splitlines()[0])
  assert (saved["processes"], saved["devices"]["number"]) == (2, 4)


def environment(devices=1):
  return os.environ | {
    "JAX_PLATFORMS": "cpu",
    "JAX_NUM_CPU_DEVICES": str(devices),
    "XLA_FLAGS": "",
  }
