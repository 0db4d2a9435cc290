"""The README's first command, with fewer steps."""

import json

import PIL.Image
import pytest

from lra import prepare, quickstart, tasks
from tests.configs import shipped

SET = "steps=120,warmup=40,eval_every=60,num_train=7680,num_valid=200,num_test=1000,layers=1"


def test_both_models_beat_chance(tmp_path, capsys):
  arguments = [f"--workdir={tmp_path / 'runs'}", f"--prepared_dir={tmp_path / 'prepared'}", f"--set={SET}"]
  quickstart.main(arguments)
  shown = capsys.readouterr().out
  builder = prepare.require(tasks.builder(shipped.get_config("quickstart", f"smgk,{SET}"), tmp_path / "prepared"))
  labels = [int(example["label"]) for example in builder.as_data_source(split="test")]
  most_frequent = max(map(labels.count, labels)) / 1000
  for name, variant, heads in (("smgk_heads1", "smgk", 1), ("softmax_heads2", "softmax", 2)):
    summary = json.loads((tmp_path / "runs" / name / "summary.json").read_text())
    assert (summary["variant"], summary["num_heads"], summary["num_steps"]) == (variant, heads, 120)
    # 1,000 guesses of the most frequent label, about 14% of them, have a standard deviation of 1.1%.
    assert summary["test"]["accuracy"] > most_frequent + 0.1
    (row,) = (line for line in shown.splitlines() if line.startswith("|") and f" {variant} " in line)
    assert f"{summary['num_parameters']:,}" in row and f"{100 * summary['test']['accuracy']:.2f}" in row
    assert summary["num_parameters"] == parameters(heads, mixture=variant == "smgk")
    assert f"{variant}, {heads} head" in shown.partition("valid accuracy")[2]  # in the picture's legend
  assert "chance" in shown and f"Learning curves: {tmp_path / 'runs/curves.png'}" in shown
  with PIL.Image.open(tmp_path / "runs/curves.png") as picture:
    assert min(picture.size) > 200 and len(picture.convert("L").getcolors()) > 10

  quickstart.main(arguments)  # a second time, both are finished
  again = capsys.readouterr()
  assert again.out == shown and again.err.count("holds a finished run.") == 2


def parameters(heads, *, mixture):
  """Of one layer in the paper's setting, on 24 positions."""
  tokens, positions, width, mlp, head, classes = 16, 24, 64, 128, 32, 10
  norm = 2 * width
  attention = heads * (4 * width * head + 3 * head + (2 * head + 2 if mixture else 0)) + width
  layer = 2 * norm + attention + (width * mlp + mlp) + (mlp * width + width)
  return (tokens + positions) * width + layer + norm + (width * mlp + mlp) + (mlp * classes + classes)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--set=steps=0"], "steps: expected a whole number >= 1, got '0'"),
    (["--set=stepz=5"], "got 'stepz'; did you mean 'steps'?"),
    (["--stepz=5"], "unrecognized arguments: --stepz=5"),
  ],
)
def test_wrong_arguments_are_refused(tmp_path, arguments, message, capsys):
  with pytest.raises(SystemExit) as stop:
    quickstart.main([f"--workdir={tmp_path}", *arguments])
  assert stop.value.code != 0
  assert message in f"{stop.value.code}{capsys.readouterr().err}"
  assert not list(tmp_path.iterdir())


def test_help(capsys):
  with pytest.raises(SystemExit):
    quickstart.main(["--help"])
  assert "python -m lra.quickstart\n" in capsys.readouterr().out
