"""Shipped configs made small, data for them, and the program in processes of its own."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import jax
import numpy as np
import orbax.checkpoint as ocp

from lra import prepare, tasks
from tests.configs import shipped
from tests.lra import raw_data

ROOT = Path(__file__).parents[2]
MODEL = "layers=1,emb_dim=8,mlp_dim=8,heads=2,head_dim=4,classifier_dim=8"
RUN = "batch=4,steps=6,warmup=2,eval_every=3,log_every=2,lr=1e-2"
EXPRESSIONS = "length=24,num_train=40,num_valid=10,num_test=11,min_length=7,max_length=25,max_depth=3,max_args=4"


def argument(task, arg):
  """What stands behind the colon: `arg`, and small sizes for all that it does not set."""
  given = {part.partition("=")[0] for part in arg.split(",")}
  sizes = [MODEL, RUN, *([EXPRESSIONS] if task == "listops" and "source=files" not in arg else [])]
  rest = [part for size in sizes for part in size.split(",") if part.partition("=")[0] not in given]
  return ",".join([arg, *rest])


def get_config(task, arg):
  """The shipped config of a task, small but for what `arg` sets."""
  return shipped.get_config(task, argument(task, arg))


def prepare_files(task, folder):
  """Small raw files of a task in their real format, prepared: what is in them, and where the prepared data are."""
  found = raw_data.write(task, folder / "raw")
  return found, prepare_raw(task, folder)


def prepare_raw(task, folder):
  """Prepares the raw files that are in folder/raw."""
  arguments = [task, f"--data_dir={folder / 'raw'}", f"--prepared_dir={folder / 'prepared'}", "--partial"]
  assert prepare.main(arguments) == 0
  return folder / "prepared"


def prepare_generated(folder, arg="smgk"):
  """The small expressions of `get_config("listops", arg)`, prepared in `folder`."""
  prepare.prepare(tasks.builder(get_config("listops", arg), folder))
  return folder


def command(arg, workdir, prepared, task="listops"):
  """The command that trains by the shipped config of a task, made small."""
  config = f"--config=configs/lra/{task}.py:{argument(task, arg)}"
  return [sys.executable, "-m", "lra.train", config, f"--workdir={workdir}", f"--prepared_dir={prepared}"]


def start(arguments, **environment):
  """A command in the background, not on a terminal."""
  pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
  return subprocess.Popen(arguments, cwd=ROOT, env=os.environ | environment, **pipes)


def run(arguments, **environment):
  """A command to its end."""
  with start(arguments, **environment) as process:
    out, err = process.communicate(timeout=300)
  return subprocess.CompletedProcess(arguments, process.returncode, out, err)


def wait_for(condition, process, seconds=300):
  """Waits until something is true, as long as a process runs."""
  deadline = time.monotonic() + seconds
  while not condition():
    assert process.poll() is None, f"it ended before: {process.communicate()}"
    assert time.monotonic() < deadline, "it did not happen"
    time.sleep(0.005)


def checkpoint(workdir, step):
  """All arrays of a checkpoint by their paths, read by Orbax alone."""
  with ocp.StandardCheckpointer() as checkpointer:
    tree = checkpointer.restore((Path(workdir) / f"checkpoints/{step}/state").absolute())
  return {jax.tree_util.keystr(path): np.asarray(leaf) for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


def checkpoints(workdir):
  """The steps of which there is a complete checkpoint."""
  folder = Path(workdir) / "checkpoints"
  return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit()) if folder.exists() else []


def records(workdir, split):
  """The metrics of a run by step."""
  path = Path(workdir) / "metrics.jsonl"
  lines = path.read_text().splitlines(keepends=True) if path.exists() else []
  found = [json.loads(line) for line in lines if line.endswith("\n")]
  return {record["step"]: record[split] for record in found if split in record}


def assert_same_run(workdir, reference):
  """What two runs leave behind is the same, to the bit, but for the time that they took."""
  metrics = [(path / "metrics.jsonl").read_text() for path in (workdir, reference)]
  assert metrics[0] == metrics[1], "\n".join(metrics)
  summaries = [json.loads((path / "summary.json").read_text()) for path in (workdir, reference)]
  timing = [summary.pop("timing").keys() for summary in summaries]
  assert summaries[0] == summaries[1] and timing[0] == timing[1], summaries
  assert checkpoints(workdir) == checkpoints(reference), checkpoints(workdir)
  for step in checkpoints(workdir):
    ours, theirs = checkpoint(workdir, step), checkpoint(reference, step)
    assert ours.keys() == theirs.keys(), ours.keys() ^ theirs.keys()
    for name in ours:
      assert ours[name].dtype == theirs[name].dtype, name
      np.testing.assert_array_equal(ours[name], theirs[name], err_msg=f"{name} of step {step}")
    facts = [json.loads((path / f"checkpoints/{step}/facts/metadata").read_text()) for path in (workdir, reference)]
    timing = [fact.pop("time").keys() for fact in facts]
    assert facts[0] == facts[1] and timing[0] == timing[1], facts


def files(folder):
  """All files below a folder with their contents."""
  return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
