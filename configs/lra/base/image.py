"""Pixel-level CIFAR-10 with the Long Range Arena's own sizes: 32 wide, 1 head, 1 layer.

    python -m lra.prepare image --data_dir=cifar-10-batches-bin
    python -m lra.train --config=configs/lra/base/image.py:smgk --workdir=runs/base_image_smgk

The run is 200 epochs of 175 steps, the first of which is the warm-up.
"""

import ml_collections

from configs.lra import schema
from configs.lra.base import original


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=1,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = original.setting("image", length=1_024, emb_dim=32, qkv_dim=32, mlp_dim=64, heads=1)
  config.num_steps = 35_000
  config.batch_size = 256
  config.eval_every = 175
  config.model.update(num_layers=1, dropout_rate=0.3, attention_dropout_rate=0.2)
  config.optimizer.update(schedule="cosine", learning_rate=5e-4, warmup_steps=175)
  return schema.finish(config, arg)
