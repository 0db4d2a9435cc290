"""From raw files in their real formats to a summary, on every task, by the shipped config made small."""

import json
import math
import struct

import numpy as np
import pytest
from tensorboardX.proto import event_pb2

from lra import evaluate, train
from mgk_jax.data import DataError
from tests.lra import raw_data, small

# Each with another attention, another option of training, and batches of a size that does not divide the splits.
RUNS = {
  "listops": ("listops", "mgk,prior=em,source=files,length=48,batch=6,accumulation=2"),
  "text": ("text", "softmax,length=64,batch=5,clip_norm=0.1"),
  "text, holdout": ("text", "smgk,prior=em,protocol=holdout,length=64,batch=3,heads=1"),
  "image": ("image", "linear,length=96,batch=5,dtype=bfloat16"),
  "pathfinder32": ("pathfinder32", "mlk,length=96,batch=5,layers=2"),
}
EXAMPLES = {  # of raw_data, and how the protocols cut them
  "listops": (16, 8, 8),
  "text": (16, 16, 16),
  "text, holdout": (14, 2, 16),
  "image": (72, 8, 16),
  "pathfinder32": (64, 8, 8),
}


@pytest.mark.parametrize(
  "name",
  ["listops", "text", *(pytest.param(x, marks=pytest.mark.slow) for x in ("text, holdout", "image", "pathfinder32"))],
)
def test_from_raw_files_to_a_summary(tmp_path, name, capsys):
  task, arg = RUNS[name]
  _, prepared = small.prepare_files(task, tmp_path)
  config = small.get_config(task, arg)
  workdir = tmp_path / "run"
  summary = train.train(config, workdir, prepared_dir=prepared)
  assert json.loads((workdir / "summary.json").read_text()) == summary
  assert json.loads((workdir / "config.json").read_text()) == summary["config"] == config.to_dict()

  assert {key: summary[key] for key in ("task", "variant", "num_heads", "seed", "num_steps")} == {
    "task": task,
    "variant": arg.partition(",")[0],
    "num_heads": 1 if "heads=1" in arg else 2,
    "seed": 0,
    "num_steps": 6,
  }
  assert summary["data"]["examples"] == dict(zip(("train", "valid", "test"), EXAMPLES[name], strict=True))
  assert str(tmp_path / "raw") in summary["data"]["origin"]
  assert any("incomplete raw data" in note for note in summary["data"]["notes"])
  assert summary["flops_per_step"] > 0 and min(summary["timing"].values()) > 0

  last = small.checkpoint(workdir, 6)
  params = {key: value for key, value in last.items() if key.startswith("['params']")}
  assert summary["num_parameters"] == sum(value.size for value in params.values()) > 100
  assert {value.dtype for value in params.values()} == {np.dtype("float32")}
  assert any("prior" in key for key in last if key.startswith("['variables']")) == ("prior=em" in arg)

  check_metrics(workdir, summary)
  check_tensorboard(workdir)
  check_protocol(summary, train.describe(summary))
  (environment,) = map(json.loads, (workdir / "environment.jsonl").read_text().splitlines())
  assert environment["packages"].keys() >= {"jax", "flax", "orbax-checkpoint"}
  assert environment["devices"] == {"kind": "cpu", "platform": "cpu", "number": 1}
  assert f"{task} {summary['variant']}: step 6/6, accuracy " in capsys.readouterr().err


def check_metrics(workdir, summary):
  """metrics.jsonl has what was scheduled, and the summary follows from it."""
  training, valid = small.records(workdir, "train"), small.records(workdir, "valid")
  assert list(training) == [2, 4, 6] and list(valid) == [3, 6]
  for record in training.values():
    assert record.keys() == {"loss", "accuracy", "grad_norm", "learning_rate"}
    assert all(map(math.isfinite, record.values())) and record["loss"] > 0 and record["grad_norm"] > 0
  assert training[2]["learning_rate"] == pytest.approx(1e-2, rel=1e-6)  # at the end of the warm-up
  assert training[6]["learning_rate"] == pytest.approx(1e-2 / 25e4, rel=1e-2)
  best = max(valid, key=lambda step: valid[step]["accuracy"])  # of equal ones, the first
  assert summary["best_step"] == best and summary["valid"] == valid[best]
  for split in ("valid", "test"):
    right = summary[split]["accuracy"] * summary["data"]["examples"][split]
    assert right == pytest.approx(round(right), abs=1e-4)  # of examples, each counted once
    assert 0 < summary[split]["loss"] < 10
  if summary["task"] == "text" and summary["protocol"]["name"] == "lra":
    assert summary["test"] == summary["valid"]  # which are the same examples, and thus the same checkpoint


def check_tensorboard(workdir):
  """The event file has the same numbers, and speeds besides."""
  (path,) = (workdir / "tensorboard").glob("events.out.tfevents.*")
  data, scalars = path.read_bytes(), {}
  while data:
    (size,) = struct.unpack("<Q", data[:8])
    event = event_pb2.Event.FromString(data[12 : 12 + size])
    scalars |= {(value.tag, event.step): value.simple_value for value in event.summary.value}
    data = data[size + 16 :]
  for split in ("train", "valid"):
    for step, metrics in small.records(workdir, split).items():
      for name, value in metrics.items():
        assert scalars[f"{split}/{name}", step] == pytest.approx(value, rel=1e-6)
  assert scalars["train/steps/s", 6] > 0 and scalars["train/tokens/s", 6] > 0


def check_protocol(summary, shown):
  name, note = summary["protocol"]["name"], summary["protocol"]["note"]
  if summary["task"] != "text":
    assert (name, note) == ("lra", "")
  elif name == "lra":
    assert note.startswith("Validated on the test set") and note in shown
  else:
    assert name == "holdout" and note.startswith("Validated on 10% of the training set") and note in shown


def test_the_best_checkpoint_is_tested_and_not_the_last(tmp_path):
  """Trained on papers that are all related and judged by papers that are not, a model only gets worse."""
  raw_data.write("retrieval", tmp_path / "raw")
  for path in (tmp_path / "raw").rglob("new_aan_pairs.*.tsv"):
    rows = path.read_bytes().splitlines(keepends=True)
    label = b"1.0" if "train" in path.name else b"0.0"
    path.write_bytes(b"".join(label + row[3:] for row in rows))
  prepared = small.prepare_raw("retrieval", tmp_path)
  config = small.get_config("retrieval", "smgk,estep=hard,remat=true,length=64,batch=3,steps=8,eval_every=2")
  summary = train.train(config, tmp_path / "run", prepared_dir=prepared)
  valid = small.records(tmp_path / "run", "valid")
  assert list(valid) == [2, 4, 6, 8]
  assert valid[8]["loss"] > valid[2]["loss"]
  assert summary["best_step"] == 2 and summary["valid"] == valid[2]
  assert small.checkpoints(tmp_path / "run") == [2, 6, 8]  # the best one, and the newest two
  best, last = (
    evaluate.evaluate(tmp_path / "run", split="test", step=step, prepared_dir=prepared) for step in ("best", "latest")
  )
  assert (best["step"], last["step"]) == (2, 8)
  assert summary["test"] == {name: best[name] for name in ("accuracy", "loss")}
  assert last["loss"] > best["loss"]


@pytest.mark.slow
def test_the_amount_of_padding_does_not_matter(tmp_path):
  """With expressions of at most 24 tokens, batches of 24 and of 40 columns give the same losses."""
  prepared = small.prepare_generated(tmp_path / "prepared")
  runs = {}
  for pad_to in (0, 24):
    arguments = f"smgk,prior=em,length=40,pad_to={pad_to},dropout=0,attention_dropout=0,log_every=1,lr=1e-3"
    summary = train.train(small.get_config("listops", arguments), tmp_path / f"{pad_to}", prepared_dir=prepared)
    metrics = [small.records(tmp_path / f"{pad_to}", split) for split in ("train", "valid")]
    runs[pad_to] = [list(record.values()) for records in metrics for record in records.values()]
    runs[pad_to].append([summary["test"]["accuracy"], summary["test"]["loss"], 0.0, 0.0])
  for padded, short in zip(runs[0], runs[24], strict=True):
    np.testing.assert_allclose(padded, short, rtol=2e-5)  # float32 in another order, through six steps


def test_without_data_nothing_begins(tmp_path):
  config = small.get_config("text", "smgk,length=32")
  with pytest.raises(DataError, match=r"found none. Prepare them first:\n  python -m lra.prepare text --prepared_dir="):
    train.train(config, tmp_path / "run", prepared_dir=tmp_path / "prepared")
  raw_data.write("text", tmp_path / "raw")
  with pytest.raises(DataError, match="train/neg: expected 12,500 files, found 8"):
    train.train(config, tmp_path / "run", prepared_dir=tmp_path / "prepared", data_dir=tmp_path / "raw")
  assert not (tmp_path / "run/config.json").exists() and not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--config=configs/lra/listops.py:smgk,hedas=2"], "got 'hedas'; did you mean 'heads'?"),
    (["--config=configs/lra/listops.py", "--config.model.num_head=2"], "no setting 'num_head'. Did you mean"),
    (["--config=configs/lra/listops.py", "--config.eval_every=0"], "eval_every: expected at least 1, got 0"),
    (["--config=configs/lra/lisstops.py"], "got configs/lra/lisstops.py; did you mean 'listops'?"),
    (["--config=configs/lra/text.py"], "python -m lra.prepare text --prepared_dir="),
    (["--config=configs/lra/text.py", "--workdir="], "--workdir: expected a directory, got ''"),
    ([], "--config must have a value"),
  ],
)  # fmt: skip
def test_wrong_commands_end_with_a_message(tmp_path, arguments, message):
  command = small.command("smgk", tmp_path / "run", tmp_path / "prepared")
  done = small.run([*command[:3], *command[4:], *arguments])
  assert (done.returncode, done.stdout) == (1, "")
  assert message in done.stderr and "Traceback" not in done.stderr
  assert not (tmp_path / "run/config.json").exists()
