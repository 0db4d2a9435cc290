"""A trained model, from a checkpoint of its run."""

import functools
from pathlib import Path
from typing import Any

import jax
import ml_collections

import lra.model
from lra import tasks
from mgk_jax import training
from mgk_jax.training import checkpoints, state as states


def load(workdir: str | Path, *, step: str | int = "best") -> Any:
  """The model of a run, which may still be going on, for evaluation; on one device, and without any data.

      model = load("runs/listops_smgk")
      logits = model(tokens, lengths=lengths)

  Args:
    workdir: of the run.
    step: "best" on the validation set, "latest" or a number.

  Returns:
    A `mgk_jax.Classifier`, or a `mgk_jax.DualEncoder` where the task has two sequences.

  Raises:
    TrainingStopped: there is no such run or checkpoint, or it cannot be read.
  """
  directory = training.Workdir(workdir)
  config = ml_collections.ConfigDict(directory.config())
  number = training.find_step(directory, step, training.ACCURACY)
  settings = lra.model.model_config(config, tasks.get(config.task).task)
  optimizer, _ = training.make_optimizer(num_steps=config.num_steps, **config.optimizer)
  mesh = training.make_mesh(devices=jax.local_devices()[:1])
  make_model = functools.partial(lra.model.make_model, settings)
  structure, init, shardings = states.plan(make_model, optimizer, mesh, config.seed)
  like: states.TrainState = jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), jax.eval_shape(init), shardings
  )
  with checkpoints.Checkpoints(directory.checkpoints, read_only=True) as there:
    state, _ = there.restore(number, like)
  model = structure.merge(state.params, state.variables)
  model.eval()
  return model
