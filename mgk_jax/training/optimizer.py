"""AdamW on the schedules that configs name; "one_cycle" is that of the paper's Long Range Arena runs."""

import math
from typing import Any

import jax.numpy as jnp
import optax

from mgk_jax.kernels import checks


def one_cycle(start: float, peak: float, end: float, *, warmup_steps: int, total_steps: int) -> optax.Schedule:
  """From `start` at step 0 to `peak` at step warmup_steps − 1 to `end` at step total_steps − 1, linearly; then `end`.

  Raises:
    ValueError: unless 1 <= warmup_steps < total_steps.
  """
  if not 1 <= warmup_steps < total_steps:
    raise ValueError(f"expected 1 <= warmup_steps < total_steps, got {warmup_steps} and {total_steps}")
  rise = optax.linear_schedule(start, peak, warmup_steps - 1)
  fall = optax.linear_schedule(peak, end, total_steps - warmup_steps)
  return optax.join_schedules([rise, fall], [warmup_steps - 1])


def one_cycle_rate(learning_rate: float, *, warmup_steps: int, total_steps: int) -> optax.Schedule:
  """The authors' learning rate: `learning_rate` / 25 at first, the peak after the warm-up, / 250,000 at last."""
  return one_cycle(
    learning_rate / 25, learning_rate, learning_rate / 25e4, warmup_steps=warmup_steps, total_steps=total_steps
  )


def one_cycle_adamw(
  learning_rate: float,
  *,
  warmup_steps: int,
  total_steps: int,
  b1: float | tuple[float, float] = (0.95, 0.85),
  b2: float = 0.999,
  eps: float = 1e-6,
  weight_decay: float = 0.0,
) -> optax.GradientTransformationExtraArgs:
  """AdamW as the authors ran it: `learning_rate` / 25 at first, / 250,000 at last, the peak after the warm-up.

  Their one-cycle schedule moves b1 against the learning rate, which their settings, b1 = 0.9, do not show: 0.95 at
  both ends and 0.85 at the peak. It matters: with 0.9 throughout, losses are 0.05 apart after ten steps.

  Args:
    learning_rate: at the peak.
    warmup_steps: steps up to and including the peak.
    total_steps: steps in all.
    b1: a constant, or its value at the ends and at the peak.
    b2, eps, weight_decay: as in optax.adamw.

  Returns:
    The transformation; its state's `hyperparams` holds the present learning_rate and b1, for logging.
  """
  steps = {"warmup_steps": warmup_steps, "total_steps": total_steps}
  rate = one_cycle_rate(learning_rate, **steps)
  momentum = one_cycle(b1[0], b1[1], b1[0], **steps) if isinstance(b1, tuple) else b1
  return optax.inject_hyperparams(optax.adamw)(
    learning_rate=rate, b1=momentum, b2=b2, eps=eps, weight_decay=weight_decay
  )


def linear_warmup(learning_rate: float, warmup_steps: int, then: optax.Schedule) -> optax.Schedule:
  """Linearly from 0 to `learning_rate` over the warm-up, and then `then` of the steps since its end."""
  if warmup_steps == 0:
    return then
  return optax.join_schedules([optax.linear_schedule(0.0, learning_rate, warmup_steps), then], [warmup_steps])


SCHEDULES = ("one_cycle", "rsqrt", "cosine", "constant")


def make_optimizer(
  *,
  schedule: str,
  learning_rate: float,
  warmup_steps: int,
  num_steps: int,
  b1: float,
  b1_peak: float | None = None,
  b2: float,
  eps: float,
  weight_decay: float = 0.0,
  clip_norm: float = 0.0,
) -> tuple[optax.GradientTransformation, optax.Schedule]:
  """AdamW by the settings of a config, and its learning rate by step.

  Args:
    schedule: "one_cycle" as in `one_cycle_adamw`; after a linear warm-up "rsqrt", the Long Range Arena's
      learning_rate / √max(step, warm-up), or "cosine", down to 0 at the end, or "constant".
    learning_rate: at the peak; of "rsqrt", the factor.
    warmup_steps: steps up to the peak.
    num_steps: steps in all.
    b1: of AdamW; with "one_cycle", at both ends.
    b1_peak: with "one_cycle", and only there, b1 at the peak of the learning rate.
    b2, eps, weight_decay: of AdamW.
    clip_norm: gradients are scaled down to this global norm; 0 for not at all.

  Raises:
    ValueError: an unknown schedule, or numbers out of range.
  """
  checks.one_of("schedule", schedule, SCHEDULES)
  if (b1_peak is not None) != (schedule == "one_cycle"):
    raise ValueError(f"b1_peak: expected a number with schedule='one_cycle' only, got {b1_peak} with {schedule!r}")
  amounts = {"learning_rate": learning_rate, "warmup_steps": warmup_steps, "eps": eps, "weight_decay": weight_decay}
  for name, value in (amounts | {"clip_norm": clip_norm}).items():
    if not 0 <= value < math.inf:
      raise ValueError(f"{name}: expected no negative number, got {value}")
  for name, value in {"b1": b1, "b1_peak": b1 if b1_peak is None else b1_peak, "b2": b2}.items():
    if not 0 <= value < 1:
      raise ValueError(f"{name}: expected a number >= 0 and < 1, got {value}")
  rest: dict[str, Any] = {"b2": b2, "eps": eps, "weight_decay": weight_decay}
  if b1_peak is not None:
    cycle = {"warmup_steps": warmup_steps, "total_steps": num_steps}
    rate = one_cycle_rate(learning_rate, **cycle)
    adamw: Any = one_cycle_adamw(learning_rate, **cycle, b1=(b1, b1_peak), **rest)
  else:
    after = {
      "rsqrt": lambda step: learning_rate / jnp.sqrt(jnp.maximum(step + warmup_steps, 1)),
      "cosine": optax.cosine_decay_schedule(learning_rate, max(num_steps - warmup_steps, 1)),
      "constant": optax.constant_schedule(learning_rate),
    }[schedule]
    peak = learning_rate / max(warmup_steps, 1) ** 0.5 if schedule == "rsqrt" else learning_rate
    rate = linear_warmup(peak, warmup_steps, after)
    adamw = optax.adamw(rate, b1=b1, **rest)
  return (optax.chain(optax.clip_by_global_norm(clip_norm), adamw) if clip_norm else adamw), rate
