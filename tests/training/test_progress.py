"""Plain lines where nobody watches, a bar on a terminal, nothing in processes but the first."""

import contextlib
import io
import os
import re
import sys

import pytest

from mgk_jax.training import progress
from mgk_jax.training.progress import Progress
from tests.training import regression


@pytest.fixture
def clock(monkeypatch):
  class Clock:
    now = 1000.0

    def monotonic(self):
      return self.now

  clock = Clock()
  monkeypatch.setattr(progress, "time", clock)
  return clock


def test_plain_lines(clock):
  """A line every half a minute and at the end; the time that is left does not count what was compiled first."""
  stream = io.StringIO()
  with Progress("text mgk", total=100, done=20, stream=stream) as bar:
    clock.now += 60
    bar.advance({"loss": 2.34567, "steps/s": 0.5, "tokens/s": 999.0})
    for _ in range(29):
      clock.now += 2
      bar.advance({"loss": 1.0, "steps/s": 0.5})
    bar.say("step 50: valid accuracy 0.5")
    for _ in range(6):
      clock.now += 2
      bar.advance({"loss": 0.5, "steps/s": 0.5})
  assert stream.getvalue().splitlines() == [
    "text mgk: step 21/100, loss 2.346, steps/s 0.500, tokens/s 999.000",
    "text mgk: step 36/100, loss 1.000, steps/s 0.500, 2.1 min left",
    "step 50: valid accuracy 0.5",
    "text mgk: step 51/100, loss 0.500, steps/s 0.500, 1.6 min left",
    "text mgk: step 56/100, loss 0.500, steps/s 0.500, 1.5 min left",
  ]


def test_a_speed_of_its_own_where_none_is_given(clock):
  stream = io.StringIO()
  with Progress("valid", total=100, unit="batch", leave=False, stream=stream) as bar:
    bar.advance()
    clock.now += 30
    bar.advance(steps=60)
  assert stream.getvalue().splitlines() == ["valid: batch 61/100, batches/s 2.000, 0.3 min left"]


def test_what_was_quick_leaves_nothing(clock):
  stream = io.StringIO()
  with Progress("valid", total=3, leave=False, stream=stream) as bar:
    for _ in range(3):
      bar.advance()
  with Progress("nothing done", total=3, done=3, stream=stream):
    pass
  assert stream.getvalue() == ""


@contextlib.contextmanager
def terminal():
  """A terminal to write to, and a function that reads what it shows."""
  outside, inside = os.openpty()

  def shown():
    os.set_blocking(outside, False)
    content = b""
    with contextlib.suppress(BlockingIOError):
      while part := os.read(outside, 1 << 16):
        content += part
    return content.decode()

  with open(inside, "w", buffering=1) as stream:
    yield stream, shown
  os.close(outside)


def test_a_bar_on_a_terminal():
  with terminal() as (stream, shown):
    with Progress("text mgk", total=8, done=2, stream=stream) as bar:
      for number in range(5):
        bar.advance({"loss": 2 - number / 10, "tokens/s": 12.0})
      bar.say("step 7: valid accuracy 0.5")
    text = shown()
  assert "\r" in text and "text mgk:  25%|" in text  # 2 of 8 were done before
  assert "step 7: valid accuracy 0.5" in text
  last = text.rstrip().split("\r")[-1]
  assert "7/8 [" in last and "loss=1.600, tokens/s=12.000" in last


def test_other_processes_show_nothing(clock):
  file = io.StringIO()
  with terminal() as (stream, shown):
    for output in (stream, file):
      with Progress("text", total=8, enabled=False, stream=output) as bar:
        clock.now += 100
        bar.advance({"loss": 2.0})
        bar.say("step 1")
      assert bar.done == 1
    assert shown() == file.getvalue() == ""


@pytest.mark.parametrize("where", ["terminal", "file"])
def test_what_a_run_shows(tmp_path, monkeypatch, where):
  """Loss, accuracy, steps and tokens a second, the time that is left, and evaluations as lines of their own."""
  with terminal() as (stream, shown):
    monkeypatch.setattr(sys, "stderr", stream if where == "terminal" else io.StringIO())
    monkeypatch.setattr(progress, "SECONDS_BETWEEN_LINES", 0.0)
    regression.make_trainer(tmp_path).run()
    text = shown() if where == "terminal" else sys.stderr.getvalue()
  assert re.search(r"step 4: valid accuracy \d\.\d{4}, loss \d\.\d{4} \(best so far\)", text)
  number = r"\d+\.\d{3}"
  if where == "terminal":
    metrics = rf"accuracy={number}, loss={number}, steps/s={number}, tokens/s={number}"
    assert re.search(rf"regression: .*\| [3-8]/8 \[\d\d:\d\d<\d\d:\d\d.*{metrics}\]", text)
    assert re.search(r"valid: +\d+%\|.*\| \d/3", text)  # a bar for each evaluation, while it lasts
  else:
    metrics = rf"accuracy {number}, loss {number}, steps/s {number}, tokens/s {number}"
    assert re.search(rf"^regression: step 3/8, {metrics}, \d+\.\d min left$", text, re.MULTILINE)
    assert re.search(rf"^regression: step 8/8, {metrics}, 0\.0 min left$", text, re.MULTILINE)
    assert "\r" not in text
