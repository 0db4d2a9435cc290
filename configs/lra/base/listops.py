"""ListOps with the Long Range Arena's own sizes: 512 wide, 8 heads, 4 layers.

    python -m lra.train --config=configs/lra/base/listops.py:smgk,heads=4 --workdir=runs/base_listops_smgk

The number of layers is that of the benchmark's paper; the configuration in its repository has 6 (`layers=6`). There,
20 batches of the validation set are evaluated every 20 steps; here, all of it every 50 steps.
"""

import ml_collections

from configs.lra import schema
from configs.lra.base import original


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=4,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = original.setting("listops", length=2_000, emb_dim=512, qkv_dim=512, mlp_dim=2_048, heads=8)
  config.num_steps = 5_000
  config.eval_every = 50
  config.model.num_layers = 4
  config.optimizer.update(schedule="rsqrt", learning_rate=0.05, warmup_steps=1_000, weight_decay=0.1)
  config.data.update(schema.generated_data())
  return schema.finish(config, arg)
