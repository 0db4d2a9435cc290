"""How long a number takes from core to core: a plausible time, and a process that is left as it was."""

import os
import re
import subprocess
import sys

import pytest

from benchmarks import cores

TWO_CORES = hasattr(os, "sched_setaffinity") and len(os.sched_getaffinity(0)) > 1
needs_two_cores = pytest.mark.skipif(
  not TWO_CORES, reason="it takes two cores, and a system that lets a process choose"
)


@needs_two_cores
def test_a_line_with_three_times():
  found = re.fullmatch(r"from core \d+ to core \d+ and back: (\d+) ns \((\d+) to (\d+)\)", cores.report())
  assert found
  median, low, high = map(int, found.groups())
  assert 10 < low <= median <= high


@needs_two_cores
def test_the_process_may_use_all_its_cores_afterwards():
  """In a process of its own: this one has threads, and is not to be forked."""
  program = """
import os
from benchmarks import cores

before = os.sched_getaffinity(0)
assert cores.round_trip(*sorted(before)[:2]) > 10
assert os.sched_getaffinity(0) == before
"""
  assert subprocess.run([sys.executable, "-W", "error", "-c", program], check=False).returncode == 0


@needs_two_cores
def test_an_interruption_leaves_no_process_behind():
  """In a process of its own, which would wait for ever for one that waits for a number."""
  program = """
import os
from benchmarks import cores

here, mine, choose = os.getpid(), sorted(os.sched_getaffinity(0)), os.sched_setaffinity

def interrupted(pid, chosen):
  if os.getpid() == here and chosen == {mine[0]}:
    raise KeyboardInterrupt
  choose(pid, chosen)

os.sched_setaffinity = interrupted
try:
  cores.round_trip(*mine[:2])
except KeyboardInterrupt:
  print("interrupted")
try:
  os.waitpid(-1, 0)
except ChildProcessError:
  print("alone")
"""
  found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
  assert found.stdout.split() == ["interrupted", "alone"], found.stderr


def test_it_is_told_why_nothing_was_measured(monkeypatch):
  failed = subprocess.CompletedProcess([], 2, stdout="", stderr="usage: …\nerror: it takes two cores\n")
  monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
  assert cores.report() == "from core to core: not measured, error: it takes two cores"


def test_a_single_core_is_told(monkeypatch, capsys):
  monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3}, raising=False)
  monkeypatch.setattr(os, "sched_setaffinity", print, raising=False)
  with pytest.raises(SystemExit):
    cores.main([])
  assert "it takes two cores" in capsys.readouterr().err
