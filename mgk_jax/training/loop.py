"""The training loop: steps, evaluations, checkpoints; a run that is resumed equals one that was never stopped.

At a step at which both are due, the checkpoint is written before the evaluation. A resumed run therefore starts with
the evaluation that its checkpoint has not seen, and nothing is evaluated that cannot be gone back to.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import jax
import numpy as np
import optax
from flax import nnx
from jax.sharding import Mesh

from mgk_jax.training import mesh as meshes, signals, state as states, step as steps
from mgk_jax.training.checkpoints import Checkpoints
from mgk_jax.training.failures import Interrupted, TrainingStopped
from mgk_jax.training.measure import LOSS, Measure
from mgk_jax.training.progress import Progress
from mgk_jax.training.records import Records
from mgk_jax.training.schedule import Schedule
from mgk_jax.training.state import TrainState
from mgk_jax.training.window import Stopwatch, Window, means

HostBatch = Mapping[str, np.ndarray]


class DataIterator(Protocol):
  """Batches without end, from a position that can be saved."""

  def __next__(self) -> HostBatch: ...

  def get_state(self) -> Any:
    """The position."""

  def set_state(self, state: Any) -> None:
    """Goes on from a position."""


class EvalBatches(Protocol):
  """The batches of a split, and how many they are."""

  def __iter__(self) -> Iterator[HostBatch]: ...
  def __len__(self) -> int: ...


@dataclasses.dataclass(frozen=True)
class Outcome:
  """What came of a run: the best step, its metrics on the validation and the test set, and the time it all took."""

  best_step: int
  valid: dict[str, float]
  test: dict[str, float]
  num_parameters: int
  seconds: float
  train_seconds: float


class Trainer:
  """A run: trains, evaluates on "valid" as scheduled, and at the end on "test" from the best checkpoint.

  Args:
    directory: of the run.
    name: what the progress bar calls it.
    make_model: from random streams.
    objective: sums of metrics over a batch.
    optimizer: of the parameters.
    learning_rate: by step, to be written down.
    mesh: of devices.
    schedule: when what is done.
    seed: of the parameters and of all randomness in training.
    accumulation_steps: parts into which a batch is cut.
    train_data: batches without end; each has the rows of this process.
    eval_data: the batches of "valid" and of "test".
    measure: by which the best step is chosen, on the validation set; of equal ones it is the first.
    derive: further metrics from the means of the others, such as a perplexity from the loss.
  """

  checkpoints: Checkpoints  # these three as long as it runs
  records: Records
  progress: Progress

  def __init__(
    self,
    *,
    directory: Path,
    name: str,
    make_model: Callable[[nnx.Rngs], nnx.Module],
    objective: steps.Objective,
    optimizer: optax.GradientTransformation,
    learning_rate: optax.Schedule,
    mesh: Mesh,
    schedule: Schedule,
    seed: int,
    accumulation_steps: int = 1,
    train_data: DataIterator,
    eval_data: Callable[[str], EvalBatches],
    measure: Measure = LOSS,
    derive: Callable[[Mapping[str, float]], Mapping[str, float]] | None = None,
  ):
    self.directory, self.name, self.mesh, self.schedule = directory, name, mesh, schedule
    self.learning_rate, self.train_data, self.eval_data = learning_rate, train_data, eval_data
    self.measure, self.derive = measure, derive or (lambda _: {})
    structure, self._init, self.shardings = states.plan(make_model, optimizer, mesh, seed)
    train_step = steps.make_train_step(structure, objective, optimizer, accumulation_steps=accumulation_steps)
    self.train_step = steps.compile_train_step(train_step, mesh, self.shardings)
    self.eval_step = steps.compile_eval_step(steps.make_eval_step(structure, objective), mesh, self.shardings)
    self.norm = jax.jit(optax.tree.norm)
    self.best: dict[str, Any] | None = None
    self.window = Window()
    self.watch = Stopwatch()
    self.stop = signals.StopRequest()
    self._pending: tuple[int, steps.Sums] | None = None

  def run(self) -> Outcome:
    """Trains from the last checkpoint, or from the start, to the end.

    Raises:
      Interrupted: SIGTERM or Ctrl-C came; all that was done is saved.
      TrainingStopped: the loss is not finite, or something cannot be read or written.
    """
    with signals.listen() as self.stop, Checkpoints(self.directory / "checkpoints") as self.checkpoints:
      state, step = self._start()
      first = jax.process_index() == 0
      with (
        Progress(self.name, total=self.schedule.num_steps, done=step, enabled=first) as self.progress,
        Records(self.directory, resumed_at=step, enabled=first) as self.records,
      ):
        state = self._train(state, step)
        self.checkpoints.wait()
        assert self.best is not None  # every run is evaluated at its last step
        if self.best["step"] != self.schedule.num_steps:
          self.progress.say(f"test: from step {self.best['step']}, the best on the validation set")
          state, _ = self.checkpoints.restore(self.best["step"], self.abstract_state())
        test = self.evaluate(state, "test")
        self._check_finite(self.best["step"], test)
    valid = dict(self.best)
    best_step = valid.pop("step")
    num_parameters = sum(x.size for x in jax.tree.leaves(state.params))
    return Outcome(best_step, valid, test, num_parameters, self.watch.seconds, self.watch.train_seconds)

  def abstract_state(self) -> TrainState:
    """Shapes, dtypes and shardings of the state."""
    shapes = jax.eval_shape(self._init)
    return jax.tree.map(lambda x, s: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=s), shapes, self.shardings)

  def evaluate(self, state: TrainState, split: str) -> dict[str, float]:
    """Means over every example of a split, each counted once."""
    total: dict[str, float] = {}
    pending: steps.Sums = {}
    variables = state.variables
    batches = self.eval_data(split)
    progress = Progress(split, total=len(batches), unit="batch", leave=False, enabled=jax.process_index() == 0)
    with self.watch.evaluating(), progress:
      for batch in batches:
        variables, sums = self.eval_step(state.params, variables, self._put(batch))
        total = _add(total, self.stop.hear(_numbers(pending)))  # one batch late, as in training
        pending = self.stop.announce(sums, self.mesh)
        progress.advance()
        if self.stop:
          self.checkpoints.wait()  # the one before this evaluation
          raise self._interruption(self.progress.done)
    return self._metrics(means(_add(total, self.stop.hear(_numbers(pending)))))

  def evaluate_checkpoint(self, step: int, split: str) -> dict[str, float]:
    """Means over a split from the checkpoint of a step; nothing is written.

    Raises:
      TrainingStopped: there is no such checkpoint, or it cannot be read.
    """
    with Checkpoints(self.directory / "checkpoints", read_only=True) as checkpoints:
      if step not in checkpoints.steps:
        raise TrainingStopped(f"{self.directory}: expected a step among {list(checkpoints.steps)}, got {step}")
      state, _ = checkpoints.restore(step, self.abstract_state())
      return self.evaluate(state, split)

  def _start(self) -> tuple[TrainState, int]:
    """The state of the last checkpoint, or the first of all."""
    if not self.checkpoints.steps:
      return jax.jit(self._init, out_shardings=self.shardings)(), 0
    step = self.checkpoints.steps[-1]
    state, facts = self.checkpoints.restore(step, self.abstract_state())
    self.best = facts["best"]
    self.checkpoints.best_step = self.best["step"] if self.best else None
    self.window, self.watch = Window(**facts["window"]), Stopwatch(**facts["time"])
    self.train_data.set_state(facts["data"])
    return state, step

  def _train(self, state: TrainState, step: int) -> TrainState:
    saved = step
    while True:
      stopping = bool(self.stop)  # asked once, so that there is no stop without a save
      if step != saved and (self.schedule.saves(step) or stopping):
        self._save(state, step)
        saved = step
      if stopping:
        self.checkpoints.wait()
        raise self._interruption(step)
      if self.schedule.evaluates(step):
        self._judge(state, step)
      if step == self.schedule.num_steps:
        return state
      state, sums = self.train_step(state, self._put(next(self.train_data)))
      step += 1
      self._read()
      self._pending = (step, self.stop.announce(sums, self.mesh))  # read one step late, so that devices never wait

  def _read(self) -> None:
    """Takes in the metrics of the step before.

    Raises:
      TrainingStopped: its loss or its gradient is not finite.
    """
    if self._pending is None:
      return
    step, on_devices = self._pending
    self._pending = None
    sums = self.stop.hear(_numbers(on_devices))
    metrics = self._metrics(means(sums))
    self._check_finite(step, metrics)
    self.window.add(sums)
    shown = {name: value for name, value in metrics.items() if name != "grad_norm"}
    self.progress.advance(shown | self.watch.speeds(sums))
    if self.schedule.logs(step):
      metrics = self._metrics(self.window.close()) | {"learning_rate": float(self.learning_rate(step - 1))}
      self.records.write(step, "train", metrics, measured=self.watch.speeds())

  def _judge(self, state: TrainState, step: int) -> None:
    """Evaluates on the validation set and remembers the best."""
    self._read()
    metrics = self.evaluate(state, "valid")
    self._check_finite(step, metrics)
    self.records.write(step, "valid", metrics)
    if self.best is None or self.measure.better(metrics, self.best):
      self.best = {"step": step, **metrics}
      self.checkpoints.best_step = step
    shown = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
    self.progress.say(f"step {step}: valid {shown}" + (" (best so far)" if self.best["step"] == step else ""))

  def _metrics(self, means: Mapping[str, float]) -> dict[str, float]:
    return {**means, **self.derive(means)}

  def _check_finite(self, step: int, metrics: Mapping[str, float]) -> None:
    if not all(math.isfinite(value) for value in metrics.values()):
      found = ", ".join(f"{name} {value}" for name, value in metrics.items())
      raise TrainingStopped(
        f"Step {step} is not finite: {found}. {self.checkpoints.last_good(step)} A lower learning rate, gradient "
        "clipping (--config.optimizer.clip_norm=1.0) or float32 (--config.model.dtype=float32) may help."
      )

  def _save(self, state: TrainState, step: int) -> None:
    self._read()
    self._check_finite(step, {"norm of the parameters": float(self.norm(state.params))})
    facts = {
      "best": self.best,
      "window": dataclasses.asdict(self.window),
      "time": self.watch.so_far(),
      "data": self.train_data.get_state(),
    }
    self.checkpoints.save(step, state, facts)

  def _interruption(self, step: int) -> Interrupted:
    return Interrupted(
      f"Stopped at step {step} of {self.schedule.num_steps}; what was done is saved in {self.directory}. "
      "Start again with the same command to go on.",
      self.stop.exit_code,
    )

  def _put(self, batch: HostBatch) -> dict[str, jax.Array]:
    sharding = meshes.batch_sharding(self.mesh)
    return {name: jax.make_array_from_process_local_data(sharding, rows) for name, rows in batch.items()}


def _numbers(sums: steps.Sums) -> dict[str, float]:
  return {name: float(value) for name, value in jax.device_get(sums).items()}


def _add(total: Mapping[str, float], sums: Mapping[str, float]) -> dict[str, float]:
  return dict(total) | {name: total.get(name, 0.0) + value for name, value in sums.items()}
