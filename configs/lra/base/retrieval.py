"""Byte-level retrieval (AAN) with the Long Range Arena's own sizes: 128 wide, 4 heads, 4 layers.

    python -m lra.prepare retrieval --data_dir=lra_release
    python -m lra.train --config=configs/lra/base/retrieval.py:smgk,heads=2 --workdir=runs/base_retrieval_smgk

The warm-up of 8,000 steps is longer than the run, as it is there. Its classifier has a second hidden layer and does not
see the product and the difference of the two documents.
"""

import ml_collections

from configs.lra import schema
from configs.lra.base import original


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=2,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = original.setting("retrieval", length=4_000, emb_dim=128, qkv_dim=128, mlp_dim=512, heads=4)
  config.num_steps = 5_000
  config.eval_every = 100
  config.model.num_layers = 4
  config.optimizer.update(schedule="rsqrt", learning_rate=0.05, warmup_steps=8_000, weight_decay=0.1)
  return schema.finish(config, arg)
