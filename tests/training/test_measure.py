"""The best step is chosen by the metric and in the direction that a program says, also one that is derived."""

import json
import math

import pytest

from mgk_jax.training import ACCURACY, LOSS, Measure, Schedule
from tests.training import regression


def test_directions_and_equal_ones():
  by_step = {4: {"x": 2.0}, 8: {"x": 3.0}, 12: {"x": 2.0}, 16: {"x": 3.0}}
  assert Measure("x", highest=True).best(by_step) == 8 and Measure("x", highest=False).best(by_step) == 4
  assert ACCURACY.better({"accuracy": 0.5}, {"accuracy": 0.4}) and not ACCURACY.better({"accuracy": 1}, {"accuracy": 1})
  assert LOSS.better({"loss": 0.4}, {"loss": 0.5}) and not LOSS.better({"loss": 1}, {"loss": 1})


@pytest.mark.parametrize("highest", [True, False])
def test_a_run_is_judged_by_it(tmp_path, highest):
  """Losses fall in this run; judged by the highest exponential of it, the first evaluation is the best."""
  trainer = regression.make_trainer(
    tmp_path,
    schedule=Schedule(num_steps=8, eval_every=2),
    measure=Measure("perplexity", highest=highest),
    derive=lambda means: {"perplexity": math.exp(means["loss"])},
  )
  outcome = trainer.run()
  assert outcome.best_step == (2 if highest else 8)
  assert {"loss", "perplexity"} <= outcome.valid.keys() and outcome.test["perplexity"] == math.exp(outcome.test["loss"])
  records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
  for record in records:
    metrics = record.get("train") or record["valid"]
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
  assert "learning_rate" in records[0]["train"]
