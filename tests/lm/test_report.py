import json

import pytest

from lm import report


def make_run(path, variant, heads, seed, *, best_step=400, losses=(6.0, 5.0)):
  """A work directory as a finished run leaves it, as far as a report reads it."""
  path.mkdir(parents=True)
  model = {"attention": variant, "num_heads": heads}
  config = {"seed": seed, "num_steps": 20_000, "num_epochs": 5, "data": {"length": 128}, "model": model}
  summary = {
    "dataset": "wikitext2", "variant": variant, "num_heads": heads, "seed": seed, "num_parameters": 5084160,
    "flops_per_step": 36.9e9, "num_steps": 400, "best_step": best_step,
    "valid": {"segment_perplexity": 200.0 + seed, "loss": 5.0}, "test": {"segment_perplexity": 190.0, "loss": 4.9},
    "timing": {"seconds": 60.0, "steps_per_second": 2.0}, "config": config,
  }  # fmt: skip
  (path / "config.json").write_text(json.dumps(config))
  (path / "summary.json").write_text(json.dumps(summary))
  lines = [
    {"step": 200 * (i + 1), "valid": {"loss": loss, "segment_perplexity": 2**loss}} for i, loss in enumerate(losses)
  ]
  (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  return path


def evaluate(path, name, **changes):
  """What `lm.evaluate` leaves in a work directory."""
  (path / "evaluation").mkdir(exist_ok=True)
  found = {"perplexity": 150.25, "split": "test", "step": 400, "window": 128, "stride": 1, "limit": None}
  (path / "evaluation" / f"{name}.json").write_text(json.dumps(found | changes))


def table_of(text):
  lines = [line for line in text.splitlines() if line.startswith("|")]
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


def test_sliding_windows_have_columns_of_their_own(tmp_path):
  run = make_run(tmp_path / "mgk", "mgk", 2, 0)
  evaluate(run, "test")
  evaluate(run, "valid", split="valid", perplexity=160.0)
  text = report.report([tmp_path])
  assert table_of(text) == [
    ["corpus", "model", "heads", "parameters", "GFLOP/step", "valid, sliding", "test, sliding",
     "valid, segments", "test, segments", "seeds"],
    ["wikitext2", "mgk", "2", "5,084,160", "36.9", "160.00", "150.25", "200.00", "190.00", "1"],
  ]  # fmt: skip
  assert "● mgk, 2 heads, seed 0: 5 at step 400" in text


@pytest.mark.parametrize("change", [{"step": 200}, {"stride": 128}, {"limit": 2000}, {"window": 64}])
def test_what_is_of_another_protocol_does_not_count(tmp_path, change):
  evaluate(make_run(tmp_path / "mgk", "mgk", 2, 0), "other", **change)
  assert table_of(report.report([tmp_path]))[1][5:7] == ["", ""]


def test_seeds_share_a_row_and_a_seed_that_was_not_evaluated_leaves_it_open(tmp_path):
  evaluate(make_run(tmp_path / "a", "mlk", 2, 0), "test")
  second = make_run(tmp_path / "b", "mlk", 2, 1)
  assert table_of(report.report([tmp_path]))[1][5:] == ["", "", "200.50 ± 0.71", "190.00 ± 0.00", "2"]
  evaluate(second, "test", perplexity=152.25)
  assert table_of(report.report([tmp_path]))[1][6] == "151.25 ± 1.41"


def test_the_command_says_how_far_runs_are_and_draws(tmp_path, capsys):
  make_run(tmp_path / "mgk", "mgk", 2, 0)
  (make_run(tmp_path / "softmax", "softmax", 4, 0) / "summary.json").unlink()
  report.main([str(tmp_path), f"--curves={tmp_path / 'curves.png'}", f"--csv={tmp_path / 'runs.csv'}"])
  out = capsys.readouterr().out
  assert "softmax: not finished, last record at step 400 of at most 20,000" in out
  assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
  header, line = (tmp_path / "runs.csv").read_text().splitlines()
  assert dict(zip(header.split(","), line.split(","), strict=True))["test_segment_perplexity"] == "190.0"
