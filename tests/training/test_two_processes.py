"""A run on two processes is a run on one: the same losses, one set of files, and one end for both."""

import json
import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECONDS = 300
ENVIRONMENT = {"XLA_FLAGS": ""}


def free_port():
  with socket.socket() as opened:
    opened.bind(("127.0.0.1", 0))
    return opened.getsockname()[1]


def run(folder, number):
  """What each of several processes prints, to standard output and to standard error."""
  folder.mkdir()
  port = free_port()
  processes = []
  try:
    for process in range(number):
      command = [sys.executable, "-m", "tests.training.two_processes", process, number, port, folder]
      pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
      processes.append(subprocess.Popen(list(map(str, command)), cwd=ROOT, env=os.environ | ENVIRONMENT, **pipes))
    results = [process.communicate(timeout=SECONDS) for process in processes]
  finally:
    for process in processes:
      process.kill()  # of processes that wait for each other for ever none hears a SIGTERM
  for process, (_, errors) in zip(processes, results, strict=True):
    assert process.returncode == 0, errors[-3000:]
  return results


@pytest.mark.slow
def test_two_processes(tmp_path):
  two, [(alone, _)] = run(tmp_path / "two", 2), run(tmp_path / "one", 1)
  check_losses(tmp_path)
  check_ends([output for output, _ in two], alone)
  check_only_the_first_process_writes_and_shows(tmp_path / "two" / "run", *[errors for _, errors in two])


def records(folder, name):
  return [json.loads(line) for line in (folder / name / "run" / "metrics.jsonl").read_text().splitlines()]


def check_losses(folder):
  """The same, although the run of two was stopped and gone on with."""
  one, two = records(folder, "one"), records(folder, "two")
  written = [(record["step"], *(record.keys() - {"step"})) for record in one]
  assert written == sorted([*((step, "train") for step in range(1, 9)), (4, "valid"), (8, "valid")])
  for a, b in zip(one, two, strict=True):
    assert a.keys() == b.keys()
    (split,) = a.keys() - {"step"}
    assert a[split]["accuracy"] == b[split]["accuracy"]
    assert b[split] == pytest.approx(a[split], abs=1e-5)
  assert one[0]["train"]["loss"] - one[-1]["valid"]["loss"] > 0.01  # something was learned


def check_ends(outputs, alone):
  """Both stop when one is asked to, both are refused a directory of another config, and both finish."""
  first, second = (re.findall("^(?:interrupted|refused|finished): .*", output, re.MULTILINE) for output in outputs)
  assert first == second
  interrupted, refused, finished = first
  assert interrupted.startswith("interrupted: 143 Stopped at step ")
  assert 5 <= int(interrupted.split()[5]) < 8
  assert refused == "refused: seed: 0 there, 1 now"
  assert finished.split()[0] == "finished:" and finished == alone.strip()


def check_only_the_first_process_writes_and_shows(run, shown, shown_by_second):
  assert "step 4: valid accuracy" in shown and "step 8: valid accuracy" in shown
  assert "valid accuracy" not in shown_by_second and "softmax: step" not in shown_by_second
  assert "SIGTERM" in shown_by_second and "SIGTERM" not in shown
  assert len((run / "environment.jsonl").read_text().splitlines()) == 2  # starts
  assert len(list((run / "tensorboard").iterdir())) == 2
  environment = json.loads((run / "environment.jsonl").read_text().splitlines()[0])
  assert (environment["processes"], environment["devices"]["number"]) == (2, 4)
  checkpoints = sorted(int(path.name) for path in (run / "checkpoints").iterdir())
  assert checkpoints[-1] == 8 and len(checkpoints) <= 3
