"""What the training programs share."""

from mgk_jax.training.optimizer import one_cycle as one_cycle, one_cycle_adamw as one_cycle_adamw
