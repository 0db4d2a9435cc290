"""When a run evaluates, saves and writes down metrics."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Schedule:
  """When what is done, in steps. 0 for `checkpoint_every`: only where the run is evaluated, and at its end."""

  num_steps: int
  eval_every: int
  checkpoint_every: int = 0
  log_every: int = 1

  def __post_init__(self) -> None:
    """Checks the numbers."""
    for name, least in (("num_steps", 1), ("eval_every", 1), ("checkpoint_every", 0), ("log_every", 1)):
      if getattr(self, name) < least:
        raise ValueError(f"{name}: expected at least {least}, got {getattr(self, name)}")

  def evaluates(self, step: int) -> bool:
    """Whether to evaluate after so many steps."""
    return step > 0 and (step % self.eval_every == 0 or step == self.num_steps)

  def saves(self, step: int) -> bool:
    """Whether to write a checkpoint after so many steps."""
    return self.evaluates(step) or (step > 0 and bool(self.checkpoint_every) and step % self.checkpoint_every == 0)

  def logs(self, step: int) -> bool:
    """Whether to write down metrics of training after so many steps."""
    return step % self.log_every == 0 or step == self.num_steps
