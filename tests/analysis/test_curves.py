import json
import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import numpy as np
import pytest

from mgk_jax.analysis import curves

NAN = float("nan")


def write(path, values, *, every=10, metric="accuracy"):
  lines = [{"step": every * (i + 1), "valid": {metric: value, "loss": 1 - value}} for i, value in enumerate(values)]
  path.write_text("".join(json.dumps(line) + "\n" for line in lines))
  return path


def test_reads_curves_by_split_and_metric(tmp_path):
  path = tmp_path / "metrics.jsonl"
  path.write_text(
    '{"step": 10, "train": {"loss": 2.5, "accuracy": 0.1}}\n'
    '{"step": 20, "train": {"loss": NaN, "accuracy": null}}\n'
    '{"step": 20, "valid": {"loss": 2.25}}\n'
    '{"step": 5, "valid": {"loss": 9}}\n'
    '{"step": 20, "valid": {"loss": 2.0}}\n'
    '{"step": 30, "train": {"lo'
  )
  found = curves.read(path)
  assert {split: set(metrics) for split, metrics in found.items()} == {"train": {"loss", "accuracy"}, "valid": {"loss"}}
  np.testing.assert_array_equal(found["train"]["loss"], [[10, 20], [2.5, NAN]])
  np.testing.assert_array_equal(found["train"]["accuracy"].values, [0.1, NAN])
  np.testing.assert_array_equal(found["valid"]["loss"], [[5, 20], [9, 2.0]])


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "expected metrics of some steps, got none"),
    ('{"step": 3}\n', "expected metrics of some steps, got none"),
    ('{"step": 1, "train": {"loss": 1}}\n{"step"\n', r'metrics.jsonl:2: expected .* got \'{"step"\''),
    ('{"train": {"loss": 1}}\n', "metrics.jsonl:1: expected"),
    ('{"step": 1, "train": {"loss": "low"}}\n', "metrics.jsonl:1: expected"),
    ("[1, 2]\n", "metrics.jsonl:1: expected"),
  ],
)
def test_files_that_hold_something_else(tmp_path, text, message):
  path = tmp_path / "metrics.jsonl"
  path.write_text(text)
  with pytest.raises(ValueError, match=message):
    curves.read(path)


def test_a_curve_that_is_not_there(tmp_path):
  path = write(tmp_path / "a.jsonl", [0.5])
  for function, arguments in ((curves.draw, ()), (curves.plot, (tmp_path / "out.png",))):
    with pytest.raises(ValueError, match="expected a curve of test loss, got valid accuracy, valid loss"):
      function({"a": path}, *arguments, split="test", metric="loss")
    with pytest.raises(ValueError, match="runs: expected at least one, got none"):
      function({}, *arguments)
  assert not (tmp_path / "out.png").exists()


def test_text_picture(tmp_path):
  """A line upwards, one downwards, and where they cross both signs in turn."""
  runs = {"up": write(tmp_path / "up.jsonl", [0.0, 0.5, 1.0]), "down": write(tmp_path / "down.jsonl", [1.0, 0.5, 0.0])}
  options = {"width": 30, "height": 5, "references": {"half": 0.5}}
  assert curves.draw(runs, **options, encoding="utf-8").splitlines() == [
    "     valid accuracy",
    "100% ┤○○○                 ●●●",
    " 75% ┤   ○○○○○○     ●●●●●●",
    " 50% ┤┄┄┄┄┄┄┄┄┄○●○●○┄┄┄┄┄┄┄┄┄",
    " 25% ┤   ●●●●●●     ○○○○○○",
    "  0% ┤●●●                 ○○○",
    "     └───────────────────────",
    "      10             30 steps",
    "  ● up: 100% at step 30",
    "  ○ down: 0% at step 30",
    "  ┄ half: 50%",
  ]
  ascii_picture = curves.draw(runs, **options, encoding="ascii")
  assert ascii_picture.isascii()
  assert ascii_picture.splitlines()[3] == " 50% +.........o*o*o........."
  assert curves.draw({"größer": runs["up"]}, encoding="ascii").splitlines()[-1] == "  * gr??er: 100% at step 30"


def test_text_picture_leaves_out_what_is_not_finite(tmp_path):
  gap = write(tmp_path / "gap.jsonl", [0.0, 0.0, NAN, float("inf"), 1.0, NAN])
  never = write(tmp_path / "never.jsonl", [NAN, NAN])
  *_, first, second = lines = curves.draw(
    {"gap": gap, "never": never}, width=57, height=4, encoding="utf-8"
  ).splitlines()
  assert (first, second) == ("  ● gap: 100% at step 50", "  ○ never: never finite")
  # 50 columns for steps 10 to 60: the line from 10 to 20, and a point at 50 alone.
  assert lines[1] == "100% ┤" + " " * 39 + "●"
  assert lines[4] == "  0% ┤" + "●" * 11
  assert "never finite" in curves.draw({"never": never})


@pytest.mark.parametrize("values", [[0.25], [3.0, 3.0], [0.0, 0.0], [-1e9, 1e9], [1e-12, 3e-12]])
def test_text_picture_of_any_range(tmp_path, values):
  path = write(tmp_path / "a.jsonl", values, metric="f")
  lines = curves.draw({"a": path}, metric="f", width=40, height=6, encoding="utf-8").splitlines()
  assert all(len(line) <= 40 for line in lines)
  ticks = [float(line.split("┤")[0]) for line in lines if "┤" in line]
  assert len(ticks) >= 2
  assert ticks == sorted(set(ticks), reverse=True)
  assert any("●" in line for line in lines[1:7])


def test_text_picture_has_signs_for_many_runs(tmp_path):
  runs = {f"run {i}": write(tmp_path / f"{i}.jsonl", [i / 10]) for i in range(20)}
  legend = curves.draw(runs, encoding="utf-8").splitlines()[-20:]
  assert len({line.split()[0] for line in legend}) == 20


def test_text_picture_needs_room(tmp_path):
  with pytest.raises(ValueError, match="expected width >= 30 and height >= 3, got 20 and 16"):
    curves.draw({"a": write(tmp_path / "a.jsonl", [0.5])}, width=20)


def test_picture_file_shows_curves_and_references(tmp_path):
  """As SVG, whose text and lines can be read back."""
  runs = {f"run {i}": write(tmp_path / f"{i}.jsonl", [0.1, 0.1 * i, NAN, 0.5]) for i in range(9)}
  output = tmp_path / "new" / "curves.svg"
  curves.plot(runs, output, references={"chance": 0.1}, title="ListOps")
  text = output.read_text()
  for label in (*runs, "chance", "ListOps", "step", "valid accuracy"):
    assert f"<!-- {label} -->" in text  # matplotlib names the text that it draws as outlines
  for colour in curves.COLOURS[:-1]:
    assert colour.lower() in text
  ET.fromstring(text)


def test_picture_file_is_a_png(tmp_path):
  runs = {"up": write(tmp_path / "up.jsonl", [0.0, 0.5, 1.0]), "never": write(tmp_path / "never.jsonl", [NAN])}
  curves.plot(runs, tmp_path / "curves.png", metric="loss")
  assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
  with pytest.raises(ValueError, match="Format 'xyz' is not supported"):
    curves.plot(runs, tmp_path / "curves.xyz")


def test_matplotlib_is_imported_only_to_plot():
  program = "import sys, mgk_jax, mgk_jax.analysis.curves; print('matplotlib' in sys.modules)"
  root = Path(__file__).parents[2]
  done = subprocess.run([sys.executable, "-c", program], cwd=root, capture_output=True, text=True, check=True)
  assert done.stdout == "False\n"
