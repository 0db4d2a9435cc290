"""The benchmark runs, and its ratios are those of its times."""

import json
import platform
import re
import subprocess
import sys

import pytest

from benchmarks import attention, timing
from benchmarks.timing import Contender, Measurement, Program

SMALL = "--length 24 --batch 1 --heads 2 --head-dim 4 --repeats 1 --seconds 0 --longest 2048".split()


def rows(output):
  return [
    [cell.strip() for cell in line.strip("| ").split("|")] for line in output.splitlines() if line.startswith("|")
  ]


def test_ratios_and_units():
  def measured(name, seconds, flops=2.5e9):
    return Measurement(Contender(name, lambda: Program(print), flops), seconds, temporary_bytes=3 * 2**20)

  header, _, *body = rows(timing.table([measured("a", 0.2), measured("b", 0.05, None)], ["a", "b", "not measured"]))
  assert header == ["contender", "ms", "× a", "× b", "temporary MiB", "GFLOP"]
  assert body == [["a", "200.0", "1.00", "4.00", "3.0", "2.50"], ["b", "50.0", "0.25", "1.00", "3.0"]]


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another allocator than glibc's")
def test_memory_stays_with_the_process():
  """So that a second array of 64 MiB needs no page fault, where glibc by itself has one for every page."""
  program = """
import resource
import numpy as np
from benchmarks import timing

assert timing.keep_memory()
np.ones(2**23)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
np.ones(2**23)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
  found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
  assert found.returncode == 0, found.stderr
  assert int(found.stdout) < 100


def test_every_round_runs_every_contender():
  ran = []
  contenders = [Contender(name, lambda name=name: Program(lambda: ran.append(name))) for name in "abcd"]
  measurements = timing.measure(contenders, repeats=3)
  assert [m.contender.name for m in measurements] == list("abcd")
  assert ran[:4] == list("abcd")
  rounds = [ran[i : i + 8] for i in range(4, 28, 8)]  # in its turn a short program runs twice
  assert all(names[::2] == names[1::2] and sorted(names[::2]) == list("abcd") for names in rounds)
  assert len(set(map(tuple, rounds))) > 1


@pytest.mark.parametrize(("times", "seconds", "runs"), [([0.2, 0.1], 0.1, 2), ([0.3, 0.1], 0.3, 1)])
def test_a_short_program_is_timed_right_after_a_run(monkeypatch, times, seconds, runs):
  clock = [0.0]
  monkeypatch.setattr(timing.time, "perf_counter", lambda: clock[0])

  def run():
    clock[0] += (times * 2)[len(ran)]
    ran.append(None)

  ran: list[None] = []
  assert timing._seconds(Program(run)) == pytest.approx(seconds)
  assert len(ran) == runs


def test_short_programs_run_more_often(monkeypatch):
  """With a clock of which each run takes a second."""
  ran = []
  monkeypatch.setattr(timing.time, "perf_counter", lambda: float(len(ran)))
  program = Contender("a", lambda: Program(lambda: ran.append("a")))
  assert timing.measure([program], repeats=2, seconds=5)[0].seconds == 1
  assert len(ran) == 1 + 2 * 3
  timing.measure([program], repeats=7, seconds=5)
  assert len(ran) == 7 + 1 + 7


def test_groups_take_turns(monkeypatch):
  ran = []
  monkeypatch.setattr(timing.time, "perf_counter", lambda: float(len(ran)))
  groups = [
    [Contender(name, lambda name=name: Program(lambda: ran.append(name))) for name in names] for names in ("ab", "c")
  ]
  (a, b), (c,) = timing.measure_groups(groups, repeats=3, seconds=6)
  assert [m.contender.name for m in (a, b, c)] == ["a", "b", "c"]
  assert [sorted(ran[i : i + 4]) for i in range(3, 15, 4)] == [["a", "b", "c", "c"]] * 3


def test_rests_come_last(monkeypatch):
  """Once in a turn, after as many runs as the others had."""
  events = []
  monkeypatch.setattr(timing.time, "perf_counter", lambda: float(len(events)))
  monkeypatch.setattr(timing.time, "sleep", lambda seconds: events.append(seconds) if seconds else None)
  group = [
    Contender(name, lambda name=name, rest=rest: Program(lambda: events.append(name), rest=rest))
    for name, rest in (("a", 0.5), ("b", 0.0))
  ]
  timing.measure(group, repeats=2, seconds=6)
  assert events == ["a", 0.5, "b", *(["b"] * 3 + ["a"] * 3 + [0.5]) * 2]


def test_claims_are_judged_by_the_worst_ratio(monkeypatch, capsys, tmp_path):
  seconds = iter([1.0, 0.5, 0.55, 1.0, 0.7, 0.59])
  names = ("softmax 4 heads", "sMGK 2 heads", "sMGK 2 heads, hard")
  monkeypatch.setattr(
    attention.Attentions, "all", lambda self: [Contender(name, lambda: Program(print)) for name in names]
  )
  monkeypatch.setattr(
    timing, "measure_groups", lambda groups, *_: [[Measurement(c, next(seconds), None) for c in cs] for cs in groups]
  )
  attention.heads([attention.Sizes(1, 8), attention.Sizes(1, 16)], repeats=1, save=tmp_path / "saved.json")
  found = rows(capsys.readouterr().out)
  assert ["sMGK 2 heads", "softmax 4 heads", "0.6", "0.50", "0.70", "no"] in found
  assert ["sMGK 2 heads, hard", "softmax 4 heads", "0.6", "0.55", "0.59", "yes"] in found
  saved = json.loads((tmp_path / "saved.json").read_text())["sizes"]
  assert [(size["batch"], size["length"], size["heads"]) for size in saved] == [(1, 8, 4), (1, 16, 4)]
  assert saved[1]["seconds"] == dict(zip(names, (1.0, 0.7, 0.59), strict=True))


def test_every_contender_runs(capsys):
  attention.main([*SMALL, "--sections", "heads"])
  names = {row[0] for row in rows(capsys.readouterr().out)}
  assert {"softmax 2 heads", "MGK 1 heads", "sMGK 1 heads, hard", "MLK 1 heads"} <= names
  assert {"MGK 1 heads, module with em prior", "sMGK 1 heads, module with sgd prior"} <= names


@pytest.mark.slow
def test_every_section_runs(capfd):
  attention.main([*SMALL, "--sections", "materialised", "causal", "padding", "crossing", "long"])
  output = capfd.readouterr().out
  names = {row[0] for row in rows(output)}
  assert {
    "softmax 2 heads, jax.nn",
    "sMGK 1 heads, causal",
    "MGK 1 heads, hard, lengths N/2",
    "MLK, of sMGK",
    "µs a token",
  } <= names
  peak = re.search(r"on 2,048 tokens: loss \d\.\d+, peak memory of the process (\d\.\d+) GiB", output)
  assert peak and 0.05 < float(peak[1]) < 2


def test_where_paths_cross():
  lengths = [16, 64, 256]
  assert attention.crossing_point(lengths, [4, 1 / 2, 1 / 4]).endswith("about N = 40 on.")  # 16 · 4^(2/3)
  assert attention.crossing_point(lengths, [0.5, 0.4, 0.3]).endswith("from N = 16 on.")
  assert attention.crossing_point(lengths, [0.5, 0.4, 1.3]).endswith("not faster than sMGK up to N = 256.")


def test_mixtures_need_half_the_heads(capsys):
  with pytest.raises(SystemExit):
    attention.main(["--heads", "3"])
  assert "--heads: expected an even number" in capsys.readouterr().err
