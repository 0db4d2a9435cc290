"""Means between records, and the time and speed of a run."""

import dataclasses
import json

import pytest

from mgk_jax.training import window
from mgk_jax.training.window import Stopwatch, Window, means

STEPS = [
  {"loss": 6.0, "accuracy": 1.0, "count": 4.0, "tokens": 40.0, "grad_norm": 0.1},
  {"loss": 1.5, "accuracy": 0.0, "count": 1.0, "tokens": 7.0, "grad_norm": 0.4},
]


def test_means():
  assert means(STEPS[0]) == {"loss": 1.5, "accuracy": 0.25, "grad_norm": 0.1}


def test_a_window_weighs_examples_and_not_steps():
  """But for the norm of the gradient, which is one number a step."""
  whole = Window()
  for step in STEPS:
    whole.add(step)
  assert whole.close() == pytest.approx({"loss": 7.5 / 5, "accuracy": 1 / 5, "grad_norm": 0.25})
  assert whole == Window()
  whole.add(STEPS[1])
  assert whole.close() == {"loss": 1.5, "accuracy": 0.0, "grad_norm": 0.4}


def test_a_window_goes_through_a_checkpoint():
  """Thirds and tenths too: what is added up after a resume has the same bits."""
  one, two = Window(), Window()
  for number in range(5):
    step = {"loss": number / 3, "count": 3.0, "grad_norm": number / 10}
    one.add(step)
    two.add(step)
    two = Window(**json.loads(json.dumps(dataclasses.asdict(two))))
  assert one.close() == two.close()


@pytest.fixture
def clock(monkeypatch):
  class Clock:
    now = 100.0

    def monotonic(self):
      return self.now

  clock = Clock()
  monkeypatch.setattr(window, "time", clock)
  return clock


def test_time_goes_on_after_a_resume_and_leaves_evaluations_out(clock):
  watch = Stopwatch()
  clock.now += 10
  with watch.evaluating():
    clock.now += 4
  assert (watch.seconds, watch.train_seconds) == (14, 10)
  later = Stopwatch(**watch.so_far())
  clock.now += 1
  with pytest.raises(KeyError), later.evaluating():
    clock.now += 2
    raise KeyError
  assert (later.seconds, later.train_seconds) == (17, 11)


def test_speeds_are_those_of_the_last_steps_without_evaluations(clock):
  watch = Stopwatch()
  clock.now += 60  # compiling
  assert watch.speeds({"tokens": 8.0}) == {}
  clock.now += 2
  assert watch.speeds({"tokens": 10.0}) == {"steps/s": 0.5, "tokens/s": 5.0}
  with watch.evaluating():
    clock.now += 1000
  clock.now += 2
  assert watch.speeds({"tokens": 30.0}) == {"steps/s": 0.5, "tokens/s": 10.0}
  assert watch.speeds() == {"steps/s": 0.5, "tokens/s": 10.0}  # and only looks
  for _ in range(window.SPEED_OVER):
    clock.now += 0.1
    speeds = watch.speeds({"tokens": 7.0})
  assert speeds == pytest.approx({"steps/s": 10, "tokens/s": 70})


def test_without_tokens_there_is_no_speed_in_tokens(clock):
  watch = Stopwatch()
  for _ in range(2):
    clock.now += 0.5
    speeds = watch.speeds({"loss": 1.0})
  assert speeds == {"steps/s": 2.0}
