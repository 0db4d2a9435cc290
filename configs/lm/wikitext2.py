"""WikiText-2, 2 million words of which 33,278 are different, with the model of the paper's WikiText-103 runs.

    python -m lm.prepare wikitext2 --data_dir=wikitext-2-v1.zip
    python -m lm.train --config=configs/lm/wikitext2.py:mgk,heads=4 --workdir=runs/wt2_mgk

The paper has no results on it. An epoch is 85 steps; dropout is higher and training shorter, as so large a model soon
knows so small a corpus by heart.
"""

import ml_collections

from configs.lm import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "mgk,heads=4,seed=3" (see `configs.lm.schema.ARGUMENTS`)."""
  config = schema.paper("wikitext2")
  config.num_epochs = 60
  config.eval_every = 200
  config.checkpoint_every = 200
  config.log_every = 20
  config.model.update(cutoffs=[4_000, 12_000], dropout_rate=0.2)
  config.optimizer.warmup_steps = 500
  return schema.finish(config, arg)
