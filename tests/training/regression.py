"""A problem that compiles at once: linear regression with dropout, and a variable that the model changes itself."""

from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from mgk_jax.nn.dropout import Dropout
from mgk_jax.training import Schedule, Trainer, make_mesh, state as states, step as steps

INPUTS = 3


class Model(nnx.Module):
  """y = w·x + b, with the mean of its inputs so far, weighted towards the latest, in a variable of its own."""

  def __init__(self, rate, rngs):
    self.linear = nnx.Linear(INPUTS, 1, rngs=rngs)
    self.dropout = Dropout(rate, deterministic=False, rngs=rngs)
    self.seen = nnx.BatchStat(jnp.zeros(INPUTS))

  def __call__(self, x, rngs):
    if rngs is not None:
      self.seen[...] = self.seen[...] / 2 + jnp.mean(x, 0)
    return self.linear(self.dropout(x, deterministic=rngs is None, rngs=rngs))[:, 0]


def objective(model, batch, rngs):
  """Squared errors, and how many of them are small."""
  errors = (model(batch["x"], rngs) - batch["y"]) ** 2 * batch["weights"]
  return {
    "loss": jnp.sum(errors),
    "accuracy": jnp.sum((errors < 0.5) * batch["weights"]),
    "count": jnp.sum(batch["weights"]),
    "tokens": 5 * jnp.sum(batch["weights"]),
  }


def batch(size, seed=0):
  """Host arrays."""
  rng = np.random.default_rng(seed)
  x = rng.normal(size=(size, INPUTS)).astype(np.float32)
  y = (x @ [1.0, -2.0, 0.5]).astype(np.float32)
  return {"x": x, "y": y, "weights": np.ones(size, np.float32)}


class Problem(NamedTuple):
  """All that a step needs, on one device."""

  structure: states.Structure
  state: states.TrainState
  shardings: states.TrainState
  mesh: object


def make(rate=0.0, optimizer=None, seed=0):
  optimizer = optimizer or optax.sgd(0.1)
  mesh = make_mesh(1)
  structure, init, shardings = states.plan(lambda rngs: Model(rate, rngs), optimizer, mesh, seed)
  return Problem(structure, init(), shardings, mesh)


def make_step(problem, optimizer=None, objective=objective, **arguments):
  step = steps.make_train_step(problem.structure, objective, optimizer or optax.sgd(0.1), **arguments)
  return steps.compile_train_step(step, problem.mesh, problem.shardings)


class Batches:
  """Batches without end, whose position can be saved."""

  def __init__(self, size=4):
    self.size, self.number = size, 0

  def __next__(self):
    self.number += 1
    return batch(self.size, self.number)

  def get_state(self):
    return {"number": self.number}

  def set_state(self, state):
    self.number = state["number"]


class EvalBatches(list):
  """Twelve examples in batches of four."""

  def __init__(self):
    super().__init__(batch(4, 100 + seed) for seed in range(3))


def make_trainer(directory, *, rate=0.0, **changes):
  """A run of eight steps that evaluates every four."""
  arguments = {
    "directory": directory,
    "name": "regression",
    "make_model": lambda rngs: Model(rate, rngs),
    "objective": objective,
    "optimizer": optax.sgd(0.1),
    "learning_rate": lambda step: 0.1,
    "mesh": make_mesh(1),
    "schedule": Schedule(num_steps=8, eval_every=4),
    "seed": 0,
    "train_data": Batches(),
    "eval_data": lambda split: EvalBatches(),
  }
  return Trainer(**arguments | changes)
