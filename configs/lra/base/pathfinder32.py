"""Pathfinder with the Long Range Arena's own sizes: 128 wide, 4 heads of 16, 1 layer.

    python -m lra.prepare pathfinder32 --data_dir=lra_release
    python -m lra.train --config=configs/lra/base/pathfinder32.py:smgk,heads=2 --workdir=runs/base_pathfinder32_smgk

Outputs are averaged over the image rather than read at a [CLS] token, as there.
"""

import ml_collections

from configs.lra import schema
from configs.lra.base import original


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=2,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = original.setting("pathfinder32", length=1_024, emb_dim=128, qkv_dim=64, mlp_dim=128, heads=4)
  config.num_steps = 62_400
  config.batch_size = 512
  config.eval_every = 312
  config.model.update(num_layers=1, dropout_rate=0.2, attention_dropout_rate=0.1, pooling="mean")
  config.optimizer.update(schedule="cosine", learning_rate=1e-3, warmup_steps=312)
  return schema.finish(config, arg)
