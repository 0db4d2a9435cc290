"""What the training programs share: mesh, state, step, loop, checkpoints, records and progress."""

from mgk_jax.training.failures import (
  Interrupted as Interrupted,
  TrainingStopped as TrainingStopped,
  reported as reported,
)
from mgk_jax.training.loop import Outcome as Outcome, Trainer as Trainer
from mgk_jax.training.measure import ACCURACY as ACCURACY, LOSS as LOSS, Measure as Measure
from mgk_jax.training.mesh import make_mesh as make_mesh
from mgk_jax.training.optimizer import (
  make_optimizer as make_optimizer,
  one_cycle as one_cycle,
  one_cycle_adamw as one_cycle_adamw,
)
from mgk_jax.training.schedule import Schedule as Schedule
from mgk_jax.training.selection import find_step as find_step
from mgk_jax.training.state import TrainState as TrainState
from mgk_jax.training.step import Batch as Batch, Sums as Sums
from mgk_jax.training.workdir import Workdir as Workdir
