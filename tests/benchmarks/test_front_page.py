"""The README's picture, of runs and measurements that were made up."""

import json

import PIL.Image
import pytest

from benchmarks import front_page
from tests.lm.test_report import evaluate, make_run


@pytest.fixture
def made_up(tmp_path):
  seconds = ({"softmax 4 heads": 1.0, "MGK 2 heads": 0.8, "sMGK 2 heads": 0.4},
             {"softmax 4 heads": 2.0, "MGK 2 heads": 1.6, "sMGK 2 heads": 1.8})  # fmt: skip
  sizes = [{"batch": 1, "length": 8, "heads": 4, "seconds": times} for times in seconds]
  (tmp_path / "attention.json").write_text(json.dumps({"sizes": sizes}))
  for variant, heads in (("softmax", 4), ("mgk", 2), ("smgk", 2)):
    evaluate(make_run(tmp_path / "runs" / variant, variant, heads, 0), "test")
  return [f"--attention={tmp_path / 'attention.json'}", f"--runs={tmp_path / 'runs'}", f"--output={tmp_path / 'a.png'}"]


def test_costs_are_shares_of_the_softmax_model(made_up, tmp_path, capsys):
  front_page.main(made_up)
  lines = capsys.readouterr().out.splitlines()
  assert lines[0] == "softmax, 4 heads: time of attention 1.00, FLOPs of a step 1.00, parameters 1.00"
  assert lines[1].startswith("sMGK, 2 heads: time of attention 0.60,")  # √(0.4 · 0.9)
  assert lines[2].startswith("MGK, 2 heads: time of attention 0.80,")
  with PIL.Image.open(tmp_path / "a.png") as picture:
    assert picture.width > 2 * picture.height


def test_a_missing_run_is_named(made_up, tmp_path, capsys):
  (tmp_path / "runs/mgk/summary.json").unlink()
  with pytest.raises(SystemExit):
    front_page.main(made_up)
  assert "missing: mgk" in capsys.readouterr().err
