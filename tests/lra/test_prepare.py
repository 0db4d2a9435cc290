import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import ml_collections
import pytest

from lra import listops, prepare, tasks, text
from mgk_jax.data import DataError
from tests.lra import raw_data

ROOT = Path(__file__).parents[2]
SMALL = ["--num_train=20", "--num_valid=5", "--num_test=5", "--min_length=5", "--max_length=40"]


def run(*arguments):
  """The command in a process of its own, as users run it, offline and not on a terminal."""
  return subprocess.run(
    [sys.executable, "-m", "lra.prepare", *map(str, arguments)], cwd=ROOT, capture_output=True, text=True, check=False
  )


@pytest.mark.parametrize("task", tasks.TASKS)
def test_every_task_by_the_command(tmp_path, capsys, task):
  expected = raw_data.write(task, tmp_path / "raw")
  arguments = [task, "--data_dir", str(tmp_path / "raw"), f"--prepared_dir={tmp_path / 'prepared'}", "--partial"]
  assert prepare.main(arguments) == 0
  shown, progress = capsys.readouterr()
  assert f"{task} is prepared in {tmp_path / 'prepared'}/lra_{task}/" in shown
  assert f"{tmp_path / 'raw'}" in shown.split("origin: ")[1]
  assert "note: incomplete raw data: " in shown
  for split, examples in expected.items():
    assert f"  {split}: {len(examples):,} examples\n" in shown
    assert f"{task} {split}: example {len(examples)}/{len(examples)}" in progress
  assert "\r" not in progress
  assert prepare.main(arguments) == 0
  assert capsys.readouterr().out.startswith("Nothing to do (--overwrite prepares it again): ")
  assert prepare.main(arguments[:-1]) == 1, "incomplete data do not pass for complete ones"
  assert "from incomplete raw data" in capsys.readouterr().err


def test_statistics_are_those_of_the_examples(tmp_path, capsys):
  folder = tmp_path / "aclImdb"
  for split in ("train", "test"):
    for label, number in (("neg", 1), ("pos", 3)):
      (folder / split / label).mkdir(parents=True)
      for i in range(number):
        (folder / split / label / f"{i}_1.txt").write_bytes(b"x" * (10 * i + 4))
  assert prepare.main(["text", f"--data_dir={tmp_path}", f"--prepared_dir={tmp_path}", "--partial"]) == 0
  shown = capsys.readouterr().out
  assert shown.count("labels: 0: 1, 1: 3\n    length of tokens: min 4, median 9, mean 11.5, max 24\n") == 2
  assert "Validated on the test set, as the Long Range Arena does" in shown


def test_check_only_reads_all_and_writes_nothing(tmp_path, capsys):
  raw_data.write("pathfinder32", tmp_path / "raw")
  before = sorted(tmp_path.rglob("*"))
  arguments = [
    "pathfinder32",
    f"--data_dir={tmp_path / 'raw'}",
    f"--prepared_dir={tmp_path / 'prepared'}",
    "--check_only",
  ]
  assert prepare.main([*arguments, "--partial"]) == 0
  assert "can be prepared; nothing was written" in capsys.readouterr().out
  assert prepare.main(arguments) == 1
  assert "expected 200,000 images listed, found 80" in capsys.readouterr().err
  assert sorted(tmp_path.rglob("*")) == before
  next((tmp_path / "raw").rglob("sample_3.png")).write_bytes(b"no image")
  assert prepare.main([*arguments, "--partial"]) == 1
  assert "sample_3.png: cannot be read as a PNG image" in capsys.readouterr().err


def test_listops_needs_no_files(tmp_path):
  done = run("listops", *SMALL, "--seed=4", "--prepared_dir", tmp_path)
  assert done.returncode == 0, done.stderr
  assert "origin: generated, seed4-20_5_5-5_40_10_10" in done.stdout
  lines = [line for line in done.stderr.splitlines() if line]
  assert [line.split(":")[0] for line in lines] == ["listops train", "listops validation", "listops test"], done.stderr


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["liztops"], "'liztops' (choose from"),
    ([], "the following arguments are required: task"),
    (["text", "--seed=1"], "--seed: for listops only, got the task text"),
    (["text", "--source=files"], "--source: for listops only"),
    (["text", "--download", "--data_dir=x"], "expected --download or --data_dir, got both"),
    (["text", "--download_dir=x"], "--download_dir: expected with --download only"),
    (
      ["listops", "--data_dir=x", "--source=generated"],
      "--source=generated: expected neither --data_dir nor --download",
    ),
    (["listops", "--data_dir=x", "--seed=2"], "--seed: for generated data only"),
    (["listops", "--num_test=0"], "num_test: expected at least 1, got 0"),
    (["text", "--data=x"], "unrecognized arguments: --data=x"),
  ],
)
def test_wrong_arguments_are_errors_that_say_why(capsys, arguments, message):
  with pytest.raises(SystemExit) as stop:
    prepare.main(arguments)
  assert stop.value.code == 2
  shown = capsys.readouterr().err
  assert message in shown
  if arguments == ["liztops"]:
    assert all(task in shown for task in tasks.TASKS)


def test_help_has_examples(capsys):
  with pytest.raises(SystemExit):
    prepare.main(["--help"])
  shown = capsys.readouterr().out
  assert all(f"python -m lra.prepare {task}" in shown for task in tasks.TASKS)


def test_unknown_task_lists_the_tasks():
  with pytest.raises(ValueError, match="expected one of listops, text, retrieval, image, pathfinder32, got 'imdb'"):
    tasks.get("imdb")


def test_builder_of_a_config(tmp_path):
  config = ml_collections.ConfigDict({"task": "listops", "data": {"source": "generated", "generator": {"seed": 7}}})
  assert "seed7-96000" in str(tasks.builder(config, tmp_path).data_path)
  config.data.source = "files"
  assert tasks.builder(config, tmp_path).needs_raw_data
  config.task = "text"
  assert tasks.builder(config, tmp_path).data_path == text.LraText(data_dir=tmp_path).data_path


def test_place_of_prepared_data(tmp_path, monkeypatch):
  monkeypatch.setenv("MGK_DATA_DIR", str(tmp_path / "data"))
  assert Path(text.LraText().data_path) == tmp_path / "data/lra_text/1.0.0"
  monkeypatch.delenv("MGK_DATA_DIR")
  monkeypatch.setenv("HOME", str(tmp_path))
  assert Path(text.LraText().data_path) == tmp_path / ".cache/mgk_jax/lra_text/1.0.0"


def small_listops(tmp_path):
  sizes = {"num_train": 20, "num_valid": 5, "num_test": 5, "min_length": 5, "max_length": 40}
  return listops.LraListops(data_dir=tmp_path, config=listops.ListopsConfig(**sizes))


def test_require_prepares_what_it_can_and_else_says_how(tmp_path, capsys):
  assert prepare.require(small_listops(tmp_path)).info.splits["train"].num_examples == 20
  with pytest.raises(DataError, match="generated data are not read from files"):
    prepare.require(small_listops(tmp_path), tmp_path)

  builder = text.LraText(data_dir=tmp_path / "prepared", partial=True)
  with pytest.raises(DataError) as error:
    prepare.require(builder)
  command = f"python -m lra.prepare text --prepared_dir={tmp_path / 'prepared'} --data_dir=FOLDER_OR_ARCHIVE"
  assert command in str(error.value)
  raw_data.write("text", tmp_path / "raw")
  prepared = prepare.require(builder, tmp_path / "raw")
  assert len(prepared.as_data_source(split="train")) == 16
  capsys.readouterr()
  assert prepare.require(builder, tmp_path / "elsewhere").info.metadata == prepared.info.metadata
  assert "elsewhere is not read again" in capsys.readouterr().err


def test_prepared_data_that_lost_a_file_are_refused(tmp_path):
  prepared = prepare.require(small_listops(tmp_path))
  Path(prepared.info.splits["validation"].filepaths[0]).unlink()
  with pytest.raises(
    DataError, match=r"validation.*is missing or empty.*\n  python -m lra.prepare listops --num_train=20"
  ):
    prepare.require(small_listops(tmp_path))


def test_a_kill_leaves_nothing_that_counts_as_prepared(tmp_path):
  command = [sys.executable, "-m", "lra.prepare", "listops", f"--prepared_dir={tmp_path}"]
  for number in (signal.SIGTERM, signal.SIGKILL):
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
      deadline = time.monotonic() + 60
      while not list(tmp_path.rglob("incomplete.*")) and time.monotonic() < deadline and process.poll() is None:
        time.sleep(0.01)
      time.sleep(0.3)
      process.send_signal(number)
      process.communicate(timeout=30)
    assert process.returncode in (128 + number, -number)
    assert not listops.LraListops(data_dir=tmp_path).is_prepared()
    assert bool(list(tmp_path.rglob("incomplete.*"))) == (number == signal.SIGKILL)


def test_what_a_kill_left_behind_is_removed(tmp_path):
  builder = small_listops(tmp_path)
  left = Path(builder.data_path).with_name("incomplete.ABCDEF_1.0.0")
  left.mkdir(parents=True)
  (left / "lra_listops-train.array_record-00000-of-00001").write_bytes(b"half")
  prepare.prepare(builder)
  assert not left.exists()


def test_an_error_or_an_interruption_while_reading_leaves_nothing(tmp_path, capsys, monkeypatch):
  def interrupted(*_):
    yield from ()
    raise KeyboardInterrupt

  raw_data.write("text", tmp_path / "raw")
  monkeypatch.setattr(text, "_read", interrupted)
  arguments = ["text", f"--data_dir={tmp_path / 'raw'}", f"--prepared_dir={tmp_path / 'prepared'}", "--partial"]
  assert prepare.main(arguments) == 130
  assert "interrupted" in capsys.readouterr().err
  assert not text.LraText(data_dir=tmp_path / "prepared").is_prepared()
  assert not list((tmp_path / "prepared").rglob("incomplete.*"))


def test_overwrite_replaces_only_by_data_that_pass_the_check(tmp_path):
  raw_data.write("text", tmp_path / "first", 8)
  raw_data.write("text", tmp_path / "second", 4)

  def builder():
    return text.LraText(data_dir=tmp_path / "prepared", partial=True)

  prepare.prepare(builder(), tmp_path / "first")
  assert len(prepare.prepare(builder(), tmp_path / "second").as_data_source(split="train")) == 8
  with pytest.raises(DataError):
    prepare.prepare(builder(), tmp_path / "third", overwrite=True)
  assert len(builder().as_data_source(split="train")) == 8
  again = prepare.prepare(builder(), tmp_path / "second", overwrite=True)
  assert len(again.as_data_source(split="train")) == 4
  assert again.info.metadata["statistics"]["train"]["examples"] == 4


def test_a_directory_that_cannot_be_written(tmp_path, capsys):
  (tmp_path / "file").write_text("")
  assert prepare.main(["listops", *SMALL, f"--prepared_dir={tmp_path / 'file'}"]) == 1
  assert f"error: {tmp_path / 'file'}: cannot be written: " in capsys.readouterr().err


@pytest.mark.parametrize(
  ("full", "message"),
  [
    (OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), "No space left on device"),
    (RuntimeError("write() failed: No space left on device"), "write() failed: No space left on device"),
  ],
)
def test_a_full_disk(tmp_path, capsys, monkeypatch, full, message):
  """What the operating system and array_record say of it."""

  def write(*_):
    raise full

  monkeypatch.setattr("tensorflow_datasets.core.ExampleWriter.write", write)
  assert prepare.main(["listops", *SMALL, f"--prepared_dir={tmp_path}"]) == 1
  assert f"cannot be written: {message}" in capsys.readouterr().err
  assert not small_listops(tmp_path).is_prepared()
  assert not list(tmp_path.rglob("incomplete.*"))


def test_two_processes_prepare_once(tmp_path):
  command = [
    sys.executable,
    "-m",
    "lra.prepare",
    "listops",
    *SMALL[1:],
    "--num_train=4000",
    f"--prepared_dir={tmp_path}",
  ]
  processes = [
    subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)
  ]
  outputs = [process.communicate(timeout=120) for process in processes]
  assert [process.returncode for process in processes] == [0, 0], outputs
  assert sum("listops train: example 4000/4000" in errors for _, errors in outputs) == 1
  assert all("train: 4,000 examples" in shown for shown, _ in outputs)


def test_download_goes_into_the_preparation(tmp_path, monkeypatch, capsys):
  raw_data.write("text", tmp_path / "raw")
  archive = raw_data.pack(tmp_path / "raw", tmp_path / "aclImdb_v1.tar.gz")
  asked = []

  def fetch(wanted, folder):
    asked.append((wanted.name, folder))
    return archive

  monkeypatch.setattr("mgk_jax.data.download.fetch", fetch)
  arguments = ["text", "--download", "--partial", f"--prepared_dir={tmp_path / 'prepared'}"]
  assert prepare.main(arguments) == 0
  assert asked == [("aclImdb_v1.tar.gz", tmp_path / "prepared/downloads")]
  assert f"origin: IMDb in {archive}" in capsys.readouterr().out
  assert prepare.main(arguments) == 0
  assert len(asked) == 1, "nothing is downloaded for what is prepared"
