"""Pathfinder in the paper's setting: whether a line joins the two dots in an image of 32 × 32 pixels.

    python -m lra.prepare pathfinder32 --data_dir=lra_release
    python -m lra.train --config=configs/lra/pathfinder32.py:smgk --workdir=runs/pathfinder32_smgk

The paper reports nothing on this task. Sizes and optimiser are those of its other tasks; steps, warm-up, batch and
evaluations are those of the Nyströmformer's configuration, which the paper follows.
"""

import ml_collections

from configs.lra import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=2,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = schema.paper("pathfinder32", length=1_024)
  config.num_steps = 62_400
  config.batch_size = 256
  config.eval_every = 312
  config.optimizer.warmup_steps = 312
  return schema.finish(config, arg)
