import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from lra import report

NOTE = "validated on the test set"


def make_run(path, variant, heads, seed, test, *, task="listops", note="", model=None, curve=(0.1, 0.3), **config):
  """A work directory as a finished run leaves it, as far as a report reads it."""
  path.mkdir(parents=True)
  model = {"attention": variant, "num_heads": heads, "estep": "soft", "prior": "sgd", **(model or {})}
  config = {"task": task, "seed": seed, "num_steps": 5000, "model": model, **config}
  summary = {
    "task": task, "variant": variant, "num_heads": heads, "seed": seed, "num_parameters": 54218,
    "flops_per_step": 1234.5e9, "num_steps": 5000, "best_step": 4500,
    "valid": {"accuracy": test + 0.01, "loss": 1.5}, "test": {"accuracy": test, "loss": 1.625},
    "protocol": {"name": "lra", "note": note}, "timing": {"seconds": 3600.0, "steps_per_second": 1.5}, "config": config,
  }  # fmt: skip
  (path / "config.json").write_text(json.dumps(config))
  (path / "summary.json").write_text(json.dumps(summary))
  lines = [{"step": 50 * (i + 1), "valid": {"accuracy": value}} for i, value in enumerate(curve)]
  (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
  return path


def table_of(text):
  """The cells of the table in a report."""
  lines = [line for line in text.splitlines() if line.startswith("|")]
  return [[cell.strip() for cell in line.strip("|").split("|")] for line in (lines[0], *lines[2:])]


@pytest.fixture
def runs(tmp_path):
  """Three seeds of sMGK, one softmax run, one EM run, and one of another task."""
  for seed, test in enumerate((0.36, 0.37, 0.39)):
    make_run(tmp_path / f"smgk_{seed}", "smgk", 1, seed, test)
  make_run(tmp_path / "softmax", "softmax", 2, 0, 0.3681)
  make_run(tmp_path / "em", "mgk", 1, 0, 0.35, model={"estep": "hard", "prior": "em"})
  make_run(tmp_path / "text", "smgk", 1, 0, 0.64, task="text", note=NOTE)
  return tmp_path


def test_table_groups_over_seeds(runs):
  text = report.report([runs])
  assert table_of(text) == [
    ["task", "model", "heads", "parameters", "GFLOP/step", "valid %", "test %", "seeds"],
    ["listops", "softmax", "2", "54,218", "1,234.5", "37.81", "36.81", "1"],
    ["listops", "mgk hard em", "1", "54,218", "1,234.5", "36.00", "35.00", "1"],
    ["listops", "smgk", "1", "54,218", "1,234.5", "38.33 ± 1.53", "37.33 ± 1.53", "3"],
    ["text", "smgk", "1", "54,218", "1,234.5", "65.00", "64.00", "1"],
  ]
  assert f"text, protocol lra: {NOTE}\n" in text
  assert "listops, protocol lra\n" in text


def test_text_pictures_are_by_task_with_one_seed_of_each_row(runs):
  text = report.report([runs])
  listops, of_text = text.split("\n\nlistops\n")[1].split("\n\ntext\n")
  assert [line.strip() for line in listops.splitlines() if line.startswith("  ")][-4:] == [
    "● softmax, 2 heads, seed 0: 30% at step 100",
    "○ mgk hard em, 1 head, seed 0: 30% at step 100",
    "■ smgk, 1 head, seed 0: 30% at step 100",
    "┄ chance: 10%",
  ]
  assert of_text.endswith("● smgk, 1 head, seed 0: 30% at step 100\n  ┄ chance: 50%")


def test_directories_and_patterns(runs):
  for paths in ([runs / "smgk_0", runs / "smgk_1"], [f"{runs}/smgk_[01]"], [f"{runs}/**/smgk_[01]", runs / "smgk_0"]):
    assert [row[-1] for row in table_of(report.report(paths))] == ["seeds", "2"]


def test_runs_with_other_settings_are_no_seeds_of_the_same_row(tmp_path):
  make_run(tmp_path / "a", "smgk", 1, 0, 0.3, optimizer={"learning_rate": 1e-4, "b2": 0.999})
  make_run(tmp_path / "b", "smgk", 1, 1, 0.4, optimizer={"learning_rate": 1e-4, "b2": 0.999})
  make_run(tmp_path / "c", "smgk", 1, 0, 0.5, optimizer={"learning_rate": 1e-3, "b2": 0.999})
  make_run(tmp_path / "d", "smgk", 1, 0, 0.6, optimizer={"learning_rate": 1e-4, "b2": 0.999}, batch_size=64)
  labels = {row[1]: row[6:] for row in table_of(report.report([tmp_path]))[1:]}
  assert labels == {
    "smgk batch_size=nothing optimizer.learning_rate=0.0001": ["35.00 ± 7.07", "2"],
    "smgk batch_size=nothing optimizer.learning_rate=0.001": ["50.00", "1"],
    "smgk batch_size=64 optimizer.learning_rate=0.0001": ["60.00", "1"],
  }


def test_what_is_not_finished_is_listed(runs):
  (runs / "smgk_0" / "summary.json").unlink()
  (runs / "smgk_1" / "summary.json").write_text('{"task": "listops"')
  (runs / "smgk_2" / "summary.json").write_text('{"config": {}, "task": "listops"}')
  (runs / "em" / "summary.json").unlink()
  (runs / "em" / "metrics.jsonl").write_text("")
  make_run(runs / "softmax_again", "softmax", 2, 0, 0.9)
  (runs / "empty").mkdir()
  text = report.report([runs, runs / "nowhere", runs / "empty", f"{runs}/other_*"])
  assert [row[1] for row in table_of(text)] == ["model", "softmax", "smgk"]
  assert "36.81 |     1" in text
  listed = text.split("Not in the table:\n")[1].split("\n\n")[0].splitlines()
  assert [line.replace(f"{runs}/", "").split(", Exp")[0].strip() for line in listed] == [
    "em: not finished, no record yet of 5,000",
    "smgk_0: not finished, last record at step 100 of 5,000",
    "smgk_1: unreadable summary.json",
    "smgk_2: no 'variant' in its summary.json",
    "softmax_again: left out, with the same settings and seed as " + str(runs / "softmax").replace(f"{runs}/", ""),
    "nowhere: missing, no run there",
    "empty: missing, no run there",
    "other_*: missing, no run there",
  ]


def test_nothing_is_finished(tmp_path):
  assert report.report([tmp_path]) == f"No finished run.\n\nNot in the table:\n  {tmp_path}: missing, no run there"


def test_a_run_without_a_curve_still_counts(tmp_path):
  make_run(tmp_path / "a", "smgk", 1, 0, 0.3, curve=())
  make_run(tmp_path / "b", "smgk", 1, 1, 0.4)
  text = report.report([tmp_path])
  assert table_of(text)[1][-1] == "2"
  assert f"{tmp_path}/a: no validation accuracy in its metrics.jsonl" in text
  assert "● smgk, 1 head, seed 1: 30%" in text


def test_command_writes_pictures_and_csv(runs, capsys):
  report.main([str(runs), "--curves", str(runs / "out" / "curves.png"), "--csv", str(runs / "out" / "runs.csv")])
  out = capsys.readouterr().out
  assert table_of(out) == table_of(report.report([runs]))
  for task in ("listops", "text"):
    assert (runs / "out" / f"curves_{task}.png").read_bytes().startswith(b"\x89PNG")
    assert f"Learning curves: {runs}/out/curves_{task}.png" in out
  with (runs / "out" / "runs.csv").open(newline="") as file:
    by_path = {Path(line["path"]).name: line for line in csv.DictReader(file)}
  assert len(by_path) == 6
  em = by_path["em"]
  assert [em[name] for name in ("task", "variant", "estep", "prior", "num_heads", "seed", "best_step")] == [
    "listops", "mgk", "hard", "em", "1", "0", "4500"
  ]  # fmt: skip
  assert [float(em[name]) for name in ("test_accuracy", "test_loss", "flops_per_step", "seconds")] == [
    0.35, 1.625, 1234.5e9, 3600.0
  ]  # fmt: skip


def test_wrong_arguments_are_refused(runs, capsys):
  for argv, message in (
    ([], "RUN_DIR"),
    ([str(runs), "--curves", str(runs / "a.xyz")], "Format 'xyz' is not supported"),
  ):
    with pytest.raises(SystemExit):
      report.main(argv)
    assert message in capsys.readouterr().err


def test_a_terminal_without_unicode(runs):
  program = f"from lra import report; report.main([{str(runs)!r}])"
  done = subprocess.run(
    [sys.executable, "-X", "utf8=0", "-c", program],
    cwd=Path(__file__).parents[2],
    env={"PATH": "", "JAX_PLATFORMS": "cpu", "PYTHONIOENCODING": "ascii"},
    capture_output=True,
    check=True,
  )
  assert b"* softmax, 2 heads, seed 0: 30% at step 100" in done.stdout
