"""A program for one or two processes with four devices in all: a whole run of the Long Range Arena.

Run by test_two_processes, once for each process:

    python -m tests.training.two_processes PROCESS NUM_PROCESSES PORT FOLDER
"""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import jax
import numpy as np

from configs.lra import listops as config_file
from lra import train
from mgk_jax import training
from mgk_jax.data.rows import Rows
from mgk_jax.training import mesh as meshes

ARGUMENT = (
  "softmax,implementation=reference,batch=8,length=16,num_train=40,num_valid=10,num_test=11,min_length=7,max_length=17,"
  "max_depth=3,max_args=4,layers=1,emb_dim=8,mlp_dim=8,heads=2,head_dim=4,classifier_dim=8,steps=8,warmup=2,lr=1e-2,"
  "eval_every=4,checkpoint_every=3,log_every=1,mesh_data=2,mesh_model=2"
)


def check_rows() -> None:
  """Every device gets the rows of the batch that its place in the mesh stands for, also where processes share rows."""
  labels = np.arange(8, dtype=np.int32)
  for sizes in ((4, 1), (2, 2), (1, 4)):
    mesh = training.make_mesh(*sizes)
    rows = Rows(8, *meshes.batch_part(mesh))
    batch = jax.make_array_from_process_local_data(meshes.batch_sharding(mesh), labels[rows.slice])
    assert batch.shape == (8,)
    for shard in batch.addressable_shards:
      assert np.array_equal(shard.data, labels[shard.index]), (sizes, shard)


class Signalled:
  """Batches of which one comes with a SIGTERM to this process."""

  def __init__(self, batches: Any, at: int):
    self.batches, self.left = batches, at

  def __next__(self) -> Any:
    self.left -= 1
    if self.left == 0:
      os.kill(os.getpid(), signal.SIGTERM)
    return next(self.batches)

  def get_state(self) -> Any:
    return self.batches.get_state()

  def set_state(self, state: Any) -> None:
    self.batches.set_state(state)


def run(folder: Path, argument: str = ARGUMENT) -> dict[str, Any]:
  return train.train(config_file.get_config(argument), folder / "run", prepared_dir=folder.parent / "prepared")


def run_until_signalled(folder: Path) -> None:
  """Only the last process is asked to stop, and all do, at the same step."""
  make_trainer = train.make_trainer

  def make_signalled_trainer(*arguments: Any) -> training.Trainer:
    trainer = make_trainer(*arguments)
    if jax.process_index() == jax.process_count() - 1:
      trainer.train_data = Signalled(trainer.train_data, at=5)
    return trainer

  train.make_trainer = make_signalled_trainer
  try:
    run(folder)
  except training.Interrupted as interruption:
    print("interrupted:", interruption.exit_code, str(interruption).partition(";")[0])
  finally:
    train.make_trainer = make_trainer


def main(process: str, num_processes: str, port: str, folder: str) -> None:
  jax.config.update("jax_num_cpu_devices", 4 // int(num_processes))
  if int(num_processes) > 1:
    jax.distributed.initialize(
      coordinator_address=f"127.0.0.1:{port}", num_processes=int(num_processes), process_id=int(process)
    )
    check_rows()
    run_until_signalled(Path(folder))
    try:
      run(Path(folder), f"{ARGUMENT},seed=1")
    except training.TrainingStopped as stopped:
      print("refused:", " ".join(str(stopped).splitlines()[1:2]).strip())
  summary = run(Path(folder))
  print("finished:", summary["best_step"], summary["valid"]["accuracy"], summary["test"]["accuracy"])


if __name__ == "__main__":
  main(*sys.argv[1:])
