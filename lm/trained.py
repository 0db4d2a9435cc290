"""A trained model, from a checkpoint of its run."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import ml_collections
from flax import nnx
from jax.sharding import Mesh

import lm.model
import mgk_jax
from lm import datasets, prepare, train
from lm.corpus import Corpus
from mgk_jax import training
from mgk_jax.training import checkpoints, state as states
from mgk_jax.training.state import Structure, TrainState


class Trained(NamedTuple):
  """A model as it was after a step of its run, with what it was trained on.

  Attributes:
    directory: of the run.
    config: of the run.
    corpus: that it was trained on.
    step: of the checkpoint.
    checksum: of parameters and variables; None where this process does not have them all.
    mesh: of devices, all along the axis "data".
    structure: the model without its arrays.
    params, variables: its arrays, the same on every device.
  """

  directory: training.Workdir
  config: ml_collections.ConfigDict
  corpus: Corpus
  step: int
  checksum: int | None
  mesh: Mesh
  structure: Structure
  params: nnx.State
  variables: nnx.State

  def model(self) -> mgk_jax.LanguageModel:
    """The model itself, for evaluation."""
    return evaluated(self.structure, self.params, self.variables)


def evaluated(structure: Structure, params: Any, variables: Any) -> mgk_jax.LanguageModel:
  """The model of these arrays, for evaluation."""
  model = structure.merge(params, variables)
  model.eval()
  return model


def load(
  workdir: str | Path,
  *,
  step: str | int = "best",
  data_dir: str | Path | None = None,
  prepared_dir: str | Path | None = None,
  devices: Sequence[Any] | None = None,
) -> Trained:
  """Reads a checkpoint of a run, which may still be going on.

  Args:
    workdir: of the run.
    step: "best" on the validation set, "latest" or a number.
    data_dir, prepared_dir: as in `lm.train.train`.
    devices: that get the model; None for all.

  Raises:
    TrainingStopped: there is no such run or checkpoint, or it cannot be read.
    DataError: there are no data.
  """
  directory = training.Workdir(workdir)
  config = ml_collections.ConfigDict(directory.config())
  number = training.find_step(directory, step, training.LOSS)
  corpus = prepare.require(datasets.get(config.dataset), data_dir, prepared_dir)
  mesh = training.make_mesh(devices=devices)
  steps = train.num_steps(config, corpus.metadata["num_tokens"]["train"])
  optimizer, _ = training.make_optimizer(num_steps=steps, **config.optimizer)
  structure, init, shardings = states.plan(lm.model.maker(config, corpus.vocab_size), optimizer, mesh, config.seed)
  like: TrainState = jax.tree.map(
    lambda x, sharding: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding), jax.eval_shape(init), shardings
  )
  with checkpoints.Checkpoints(directory.checkpoints, read_only=True) as there:
    state, _ = there.restore(number, like)
  checksum = checkpoints.checksum((state.params, state.variables))
  return Trained(directory, config, corpus, number, checksum, mesh, structure, state.params, state.variables)
