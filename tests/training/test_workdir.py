"""The directory of a run: whose it is, and what it says of the run."""

import json

import jax
import pytest

from mgk_jax.training import TrainingStopped, Workdir, workdir

CONFIG = {"seed": 0, "model": {"heads": 2, "rate": 0.1, "variance": None}, "sizes": [1, 2]}


def claim(path, config=CONFIG):
  """Takes a directory as a run does that gets as far as its first checkpoint."""
  directory = Workdir(path)
  with directory.claim(config):
    directory.checkpoints.mkdir(exist_ok=True)
  return directory


def test_a_new_directory_gets_the_config_and_the_environment(tmp_path):
  directory = claim(tmp_path / "a" / "b")
  assert directory.config() == CONFIG
  (environment,) = map(json.loads, (directory.path / "environment.jsonl").read_text().splitlines())
  assert environment["packages"]["jax"] == jax.__version__
  assert environment["devices"] == {
    "kind": jax.devices()[0].device_kind,
    "platform": jax.devices()[0].platform,
    "number": len(jax.devices()),
  }
  assert environment["processes"] == 1 and environment["python"] and environment["command"]
  assert directory.summary() is None


def test_the_same_config_goes_on(tmp_path, capsys):
  for times in (1, 2):
    directory = claim(tmp_path)
    assert len((tmp_path / "environment.jsonl").read_text().splitlines()) == times
  assert directory.config() == CONFIG
  assert capsys.readouterr().err == ""


def test_tuples_are_the_lists_that_json_makes_of_them(tmp_path):
  for sizes in ((1, 2), [1, 2]):
    claim(tmp_path, CONFIG | {"sizes": sizes})


def test_another_config_is_refused_with_the_differences(tmp_path):
  claim(tmp_path)
  before = sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir() if path.is_file())
  other = {"seed": 1, "model": {"heads": 2, "rate": 0.1, "extra": "x"}, "sizes": [1, 2]}
  with pytest.raises(TrainingStopped) as stopped:
    claim(tmp_path, other)
  assert str(stopped.value).splitlines() == [
    f"{tmp_path} belongs to a run with another config:",
    "  model.extra: nothing there, x now",
    "  model.variance: None there, nothing now",
    "  seed: 0 there, 1 now",
    "Take another --workdir, or the config of that run.",
  ]
  assert sorted((path.name, path.read_bytes()) for path in tmp_path.iterdir() if path.is_file()) == before


def test_one_process_at_a_time(tmp_path):
  first, second = Workdir(tmp_path), Workdir(tmp_path)
  with first.claim(CONFIG):
    with pytest.raises(TrainingStopped, match=r"Another process is running in .*choose another workdir"):
      claim(second.path)
    first.checkpoints.mkdir()
  claim(second.path)


def test_a_run_that_did_not_begin_leaves_the_directory_to_others(tmp_path):
  with pytest.raises(ValueError, match="no data"), Workdir(tmp_path).claim(CONFIG):
    raise ValueError("no data")
  claim(tmp_path, CONFIG | {"seed": 1})
  with pytest.raises(ValueError, match="later"), Workdir(tmp_path).claim(CONFIG | {"seed": 1}):
    raise ValueError("later")
  with pytest.raises(TrainingStopped, match=r"seed: 1 there, 0 now"):
    claim(tmp_path)


def test_checkpoints_without_a_config_are_nobodys(tmp_path):
  (tmp_path / "checkpoints").mkdir()
  with pytest.raises(TrainingStopped, match=r"has checkpoints and no config.json: expected both or neither"):
    claim(tmp_path)


def test_a_place_that_cannot_be_written_to(tmp_path):
  (tmp_path / "file").touch()
  for path in (tmp_path / "file", tmp_path / "file" / "below"):
    with pytest.raises(TrainingStopped, match=rf"The work directory {path} cannot be written to: .*file"):
      claim(path)


def test_files_that_cannot_be_read(tmp_path):
  directory = claim(tmp_path)
  with pytest.raises(TrainingStopped, match=r"is no work directory of a run: expected a config.json"):
    Workdir(tmp_path / "elsewhere").config()
  for name in ("config.json", "summary.json"):
    (tmp_path / name).write_text('{"seed"')
  with pytest.raises(TrainingStopped, match=r"config.json cannot be read"):
    directory.config()
  with pytest.raises(TrainingStopped, match=r"summary.json cannot be read"):
    directory.summary()


def test_a_line_that_was_cut_is_forgotten(tmp_path):
  claim(tmp_path)
  path = tmp_path / "environment.jsonl"
  whole = path.read_text()
  path.write_text(whole + whole[: len(whole) // 2])
  claim(tmp_path)
  lines = path.read_text().splitlines(keepends=True)
  assert lines[0] == whole and len(lines) == 2 and json.loads(lines[1])["packages"]


def test_other_versions_are_noted(tmp_path, monkeypatch, capsys):
  claim(tmp_path)
  capsys.readouterr()
  version = workdir._version
  monkeypatch.setattr(workdir, "_version", lambda name: "99" if name == "optax" else version(name))
  claim(tmp_path)
  assert f"optax {version('optax')} → 99" in capsys.readouterr().err


def test_the_summary_is_whole_or_not_there(tmp_path, monkeypatch):
  directory = claim(tmp_path)
  directory.write_summary({"best": 3})
  assert directory.summary() == {"best": 3}

  def crash(*_):
    raise OSError(28, "No space left on device")

  monkeypatch.setattr(workdir.os, "replace", crash)
  with pytest.raises(TrainingStopped, match="No space left"):
    directory.write_summary({"best": 4})
  assert directory.summary() == {"best": 3}


def test_only_the_first_process_writes(tmp_path, monkeypatch):
  monkeypatch.setattr(jax, "process_index", lambda: 1)
  with Workdir(tmp_path / "run").claim(CONFIG):
    pass
  assert not (tmp_path / "run").exists()
