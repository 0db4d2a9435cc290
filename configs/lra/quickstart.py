"""Short ListOps, to see a model learn in a minute or two on two CPU cores: expressions of 8 to 24 tokens.

    python -m lra.train --config=configs/lra/quickstart.py:smgk,heads=1 --workdir=runs/quickstart_smgk
    python -m lra.train --config=configs/lra/quickstart.py:softmax,heads=2 --workdir=runs/quickstart_softmax

`python -m lra.quickstart` runs both and shows them side by side. The model is the paper's with one head; every training
example is seen once, and so there is no dropout. About half of the answers are right in the end, where guessing
gives a tenth.
"""

import ml_collections

from configs.lra import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=2,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = schema.paper("listops", length=24)
  config.num_steps = 1_500
  config.batch_size = 64
  config.eval_every = 100
  config.checkpoint_every = 0
  config.model.update(num_heads=1, dropout_rate=0.0, attention_dropout_rate=0.0)
  config.optimizer.update(learning_rate=2e-3, warmup_steps=300)
  config.data.update(schema.generated_data())
  config.data.generator.update(
    num_train=96_000, num_valid=1_000, num_test=2_000, min_length=7, max_length=25, max_depth=3, max_args=5
  )
  return schema.finish(config, arg)
