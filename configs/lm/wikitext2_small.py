"""WikiText-2 with a small model, for a CPU.

    python -m lm.prepare wikitext2 --data_dir=wikitext-2-v1.zip
    python -m lm.train --config=configs/lm/wikitext2_small.py:mgk,heads=2 --workdir=runs/wt2_small_mgk
    python -m lm.train --config=configs/lm/wikitext2_small.py:softmax,heads=4 --workdir=runs/wt2_small_softmax

Four layers, 128 wide, and segments of 128 words; all else is as in the paper, but for the learning rate, which is
higher, as there are far fewer steps. A model takes half an hour on two CPU cores, and its perplexity by sliding windows
on both splits some twenty minutes of one; results/wikitext2_small has what comes out.
"""

import ml_collections

from configs.lm import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "mgk,heads=2,seed=3" (see `configs.lm.schema.ARGUMENTS`)."""
  config = schema.paper("wikitext2", length=128)
  config.num_epochs = 5
  config.num_steps = 20_000
  config.batch_size = 16
  config.eval_every = 500
  config.checkpoint_every = 250
  config.log_every = 25
  config.model.update(num_layers=4, mlp_dim=512, num_heads=4, head_dim=32, cutoffs=[2_000, 8_000], dropout_rate=0.1)
  config.optimizer.update(learning_rate=1e-3, warmup_steps=400)
  return schema.finish(config, arg)
