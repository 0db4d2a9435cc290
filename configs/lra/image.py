"""Pixel-level CIFAR-10 in the paper's setting: the class, one of ten, of a grey image read as 1,024 bytes.

    python -m lra.prepare image --data_dir=cifar-10-batches-bin
    python -m lra.train --config=configs/lra/image.py:smgk --workdir=runs/image_smgk

The paper reports nothing on this task. Sizes and optimiser are those of its other tasks; steps, warm-up, batch and
evaluations are those of the Nyströmformer's configuration, which the paper follows.
"""

import ml_collections

from configs.lra import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=2,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = schema.paper("image", length=1_024)
  config.num_steps = 35_000
  config.batch_size = 256
  config.eval_every = 175
  config.optimizer.warmup_steps = 175
  return schema.finish(config, arg)
