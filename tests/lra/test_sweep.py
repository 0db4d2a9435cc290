"""A grid of runs, one after another: resumable, nothing done twice, and a table over the seeds."""

import json
import re
import statistics

import pytest

from lra import sweep, train
from mgk_jax import training
from tests.lra import small

CONFIG = small.ROOT / "configs/lra/listops.py"
NAMES = [f"{variant}_heads1_seed{seed}" for variant in ("softmax", "mlk") for seed in (0, 1)]


def command(folder):
  sizes = [
    part
    for part in small.argument("listops", "implementation=reference").split(",")
    if part and not part.startswith("heads=")
  ]
  return [
    f"--config={CONFIG}:{','.join(sizes)}",
    "--variants=softmax,mlk",
    "--heads=1",
    "--seeds=0,1",
    f"--workdir={folder / 'sweep'}",
    f"--prepared_dir={folder / 'prepared'}",
  ]


def test_a_grid(tmp_path, monkeypatch, capsys):
  """Stopped in the second run, gone on with, and then asked for again."""
  trained, summaries = [], tmp_path / "sweep"
  run = training.Trainer.run

  def counted(self):
    trained.append(self.directory.name)
    if trained == NAMES[:2]:
      raise training.Interrupted("Stopped at step 0 of 6.", 143)
    return run(self)

  monkeypatch.setattr(training.Trainer, "run", counted)
  with pytest.raises(SystemExit) as stop:
    sweep.main(command(tmp_path))
  assert stop.value.code == 143
  assert "Stopped at step 0 of 6." in capsys.readouterr().err
  assert [name for name in NAMES if (summaries / name / "summary.json").exists()] == NAMES[:1]

  sweep.main(command(tmp_path))
  first = capsys.readouterr()
  assert trained == [*NAMES[:2], *NAMES[1:]], "what is finished is passed over"
  assert [f"[{number}/4] {name}" in first.err for number, name in enumerate(NAMES, 1)] == [True] * 4
  found = {name: json.loads((summaries / name / "summary.json").read_text()) for name in NAMES}
  for name, summary in found.items():
    assert name == f"{summary['variant']}_heads{summary['num_heads']}_seed{summary['seed']}"
  rows = [line for line in first.out.splitlines() if line.startswith("| listops")]
  assert len(rows) == 2
  for row, names in zip(rows, (NAMES[:2], NAMES[2:]), strict=True):
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert cells[:3] == ["listops", names[0].partition("_")[0], "1"] and cells[-1] == "2"
    for cell, split in zip(cells[5:7], ("valid", "test"), strict=True):
      accuracies = [100 * found[name][split]["accuracy"] for name in names]
      mean, spread = map(float, re.fullmatch(r"([\d.]+) ± ([\d.]+)", cell).groups())
      assert mean == pytest.approx(statistics.mean(accuracies), abs=0.006)
      assert spread == pytest.approx(statistics.stdev(accuracies), abs=0.006)

  sweep.main(command(tmp_path))
  assert len(trained) == 5
  assert capsys.readouterr().out == first.out

  # A run that cannot go on is named, and the others are reported all the same.
  broken = summaries / NAMES[2] / "config.json"
  broken.write_text(broken.read_text().replace('"num_steps": 6', '"num_steps": 7'))
  with pytest.raises(SystemExit) as stop:
    sweep.main(command(tmp_path))
  assert stop.value.code == f"Not finished: {NAMES[2]}"
  assert "num_steps: 7 there, 6 now" in capsys.readouterr().err
  assert len(trained) == 5


def test_the_grid_is_known_before_anything_is_run(tmp_path, monkeypatch):
  monkeypatch.setattr(train, "train", None)
  runs = dict(sweep.grid(f"{CONFIG}:steps=2000", ["softmax", "smgk"], [1, 2], [0, 5]))
  assert list(runs) == [
    f"{variant}_heads{n}_seed{s}" for variant in ("softmax", "smgk") for n in (1, 2) for s in (0, 5)
  ]
  config = runs["smgk_heads2_seed5"]
  assert (config.model.attention, config.model.num_heads, config.seed, config.num_steps) == ("smgk", 2, 5, 2000)


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--variants=smgk,sgmk"], "expected variants among softmax, linear, mgk, smgk, mlk, smlk, got sgmk"),
    (["--seeds=0,x"], "expected whole numbers separated by commas, got '0,x'"),
    (["--heads=0"], "heads: expected a whole number >= 1, got '0'"),
    ([f"--config={CONFIG}:steps=5"], "warmup: expected at least 1 and less than steps=5"),
    ([f"--config={CONFIG}:estep=hard"], "estep=hard has no effect: softmax"),
    ([f"--config={CONFIG}:heads=2"], "heads: expected once"),
    (["--config=configs/lra/nothing.py"], "--config: expected a Python file such as configs/lra/listops.py, got"),
    ([f"--config={CONFIG.with_name('schema.py')}"], "expected a file with a function get_config"),
  ],
)
def test_wrong_arguments(tmp_path, arguments, message, capsys):
  with pytest.raises(SystemExit) as stop:
    sweep.main([f"--config={CONFIG}", f"--workdir={tmp_path}", *arguments])
  assert stop.value.code != 0
  assert message in f"{stop.value.code}{capsys.readouterr().err}"
  assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
  ("config", "expected"),
  [
    ("configs/lra/listops.py", "runs/sweep_listops"),
    ("configs/lra/listops.py:layers=1", "runs/sweep_listops"),
    ("configs/lra/base/listops.py", "runs/sweep_base_listops"),
    ("mine.py", "runs/sweep_mine"),
  ],
)
def test_where_runs_go_by_default(config, expected):
  assert sweep.default_workdir(config) == expected
