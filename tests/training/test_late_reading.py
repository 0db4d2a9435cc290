"""The loop gives the devices the next step before it reads the metrics of the last one."""

import dataclasses

import numpy as np
import pytest

from mgk_jax.training import Schedule, TrainingStopped
from mgk_jax.training.records import read
from tests.training import regression


@dataclasses.dataclass
class Metric:
  """A number on a device, which is there once somebody waits for it."""

  name: str
  value: float
  diary: list

  def __array__(self, dtype=None, copy=None):
    if self.name not in self.diary:
      self.diary.append(self.name)
    return np.asarray(self.value, dtype)


class Recorder:
  """A run whose steps only say when they are dispatched and when their metrics are read."""

  def __init__(self, directory, losses=None, **schedule):
    self.diary, self.losses = [], losses or {}
    self.trainer = regression.make_trainer(directory, schedule=Schedule(**schedule))
    self.trainer.train_step, self.trainer.eval_step = self.train_step, self.eval_step
    self.done = self.evaluated = 0

  def train_step(self, state, batch):
    self.done += 1
    self.diary.append(f"dispatch {self.done}")
    loss = Metric(f"read {self.done}", self.losses.get(self.done, 1.0), self.diary)
    return state, {"loss": loss, "count": np.float32(1), "grad_norm": np.float32(1)}

  def eval_step(self, params, variables, batch):
    self.evaluated += 1
    self.diary.append(f"dispatch eval {self.evaluated}")
    return variables, {"loss": Metric(f"read eval {self.evaluated}", 1.0, self.diary), "count": np.float32(1)}


def test_each_step_is_read_after_the_next_is_dispatched(tmp_path):
  run = Recorder(tmp_path, num_steps=5, eval_every=5)
  run.trainer.run()
  train = [entry for entry in run.diary if "eval" not in entry]
  assert train == [
    "dispatch 1",
    "dispatch 2", "read 1",
    "dispatch 3", "read 2",
    "dispatch 4", "read 3",
    "dispatch 5", "read 4",
    "read 5",
  ]  # fmt: skip
  evaluation = [entry for entry in run.diary if "eval" in entry]
  assert evaluation[:6] == [
    "dispatch eval 1",
    "dispatch eval 2", "read eval 1",
    "dispatch eval 3", "read eval 2",
    "read eval 3",
  ]  # fmt: skip
  assert [record["step"] for record in read(tmp_path / "metrics.jsonl") if "train" in record] == [1, 2, 3, 4, 5]


def test_a_step_is_read_before_it_is_saved_or_judged(tmp_path):
  run = Recorder(tmp_path, num_steps=6, eval_every=3, checkpoint_every=2)
  saves = []
  run.trainer._save, save = (
    lambda state, step: (save(state, step), saves.append((step, run.diary[-1]))),
    run.trainer._save,
  )
  run.trainer.run()
  assert saves == [(2, "read 2"), (3, "read 3"), (4, "read 4"), (6, "read 6")]
  assert run.diary.index("read 3") < run.diary.index("dispatch eval 1")


def test_a_step_that_is_not_finite_is_not_saved(tmp_path):
  """It is found when the next one is already under way, and before a checkpoint that is due at it."""
  for bad in (3, 4):
    run = Recorder(tmp_path / str(bad), losses={bad: float("nan")}, num_steps=8, eval_every=4, checkpoint_every=2)
    with pytest.raises(TrainingStopped, match=rf"Step {bad} is not finite: .*loss nan.* checkpoint is that of step 2"):
      run.trainer.run()
    saved = {path.name for path in (tmp_path / str(bad) / "checkpoints").iterdir()}
    assert saved == {"2"}
