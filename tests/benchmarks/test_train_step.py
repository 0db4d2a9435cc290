"""The benchmark of a whole training step runs, and compares models of the same size."""

import math

import pytest

from benchmarks import train_step
from benchmarks.timing import Contender, Measurement, Program


def test_table():
  models = [
    train_step.Model(Contender(name, lambda: Program(print), flops=2e12), size)
    for name, size in (("softmax 2 heads", 80_000), ("smgk 1 head", 60_000), ("softmax 2 heads, torch", 80_000))
  ]
  seconds, memory = (2.0, 1.0, 8.0), (2**30, 2**29, None)
  measurements = [Measurement(m.contender, *found) for m, *found in zip(models, seconds, memory, strict=True)]
  lines = train_step.table(models, measurements).splitlines()
  assert lines[0].split(" | ")[2:4] == ["× softmax 2 heads", "× softmax 2 heads, torch"]
  assert lines[3] == "| smgk 1 head | 1,000 | 0.50 | 0.12 | 512 | 60,000 | 2,000 |"
  assert lines[4] == "| softmax 2 heads, torch | 8,000 | 4.00 | 1.00 |  | 80,000 | 2,000 |"


def test_a_step_runs_again_and_again():
  model = train_step.ours("smgk", 1, batch=2, length=24, accumulation=2)
  program = model.contender.prepare()
  program.run()
  program.run()
  assert program.temporary_bytes > 0
  assert model.parameters == 65_358 - 64 * (64 - 24)  # 64-dimensional embeddings of 24 positions in place of 64


@pytest.mark.slow
def test_a_step_of_a_language_model():
  """That of the results: `lm.report` gives the same number of parameters."""
  model = train_step.language_model("smgk", 2)
  assert model.parameters == 4_953_616
  model.contender.prepare().run()


@pytest.mark.parametrize(("attention", "heads"), train_step.TORCH_MODELS)
def test_models_in_torch_have_the_same_parameters_and_learn(attention, heads):
  pytest.importorskip("torch", reason="needs PyTorch: pip install torch")
  ours, theirs = train_step.ours(attention, heads, 2, 24, 1), train_step.in_torch(attention, heads, 2, 24)
  assert ours.parameters == theirs.parameters
  assert ours.contender.flops == theirs.contender.flops
  step = theirs.contender.prepare().run
  losses = [step() for _ in range(20)]
  assert all(map(math.isfinite, losses)) and min(losses[-5:]) < losses[0]
