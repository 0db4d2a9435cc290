"""Byte-level IMDb with the Long Range Arena's own sizes: 256 wide, 4 heads, 4 layers, the first 1,000 bytes.

    python -m lra.prepare text --data_dir=aclImdb
    python -m lra.train --config=configs/lra/base/text.py:smgk,heads=2 --workdir=runs/base_text_smgk

Validated on the test set, as there; `protocol=holdout` keeps a tenth of the training set for validation instead.
"""

import ml_collections

from configs.lra import schema
from configs.lra.base import original


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=2,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = original.setting("text", length=1_000, emb_dim=256, qkv_dim=256, mlp_dim=1_024, heads=4)
  config.num_steps = 20_000
  config.eval_every = 100
  config.model.num_layers = 4
  config.optimizer.update(schedule="rsqrt", learning_rate=0.05, warmup_steps=8_000, weight_decay=0.1)
  return schema.finish(config, arg, protocols=("lra", "holdout"))
