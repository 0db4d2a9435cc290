"""The benchmark runs, and its ratios are those of its times."""

import json
import os
import re
import time

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


def test_every_round_runs_every_contender_once():
  ran = []
  contenders = [Contender(name, lambda name=name: Program(lambda: ran.append(name))) for name in "abcd"]
  measurements = timing.measure(contenders, repeats=3)
  assert [m.contender.name for m in measurements] == list("abcd")
  rounds = [ran[i : i + 4] for i in range(0, 16, 4)]
  assert all(sorted(names) == list("abcd") for names in rounds)
  assert len(set(map(tuple, rounds))) > 1


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


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="only Linux has threads of idle priority")
def test_cores_are_kept_awake_only_while_measuring():
  with timing.awake_cores() as threads:
    while any(os.sched_getscheduler(thread.native_id) != os.SCHED_IDLE for thread in threads):
      assert all(thread.is_alive() for thread in threads)
      time.sleep(0.01)
    assert set.union(*(os.sched_getaffinity(thread.native_id) for thread in threads)) == os.sched_getaffinity(0)
    assert os.sched_getscheduler(0) != os.SCHED_IDLE
  assert not any(thread.is_alive() for thread in threads)


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
