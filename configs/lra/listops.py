"""ListOps in the paper's setting: the value, one of ten, of an expression of 500 to 2,000 tokens.

    python -m lra.train --config=configs/lra/listops.py:smgk --workdir=runs/listops_smgk

The data need no download: they are generated on first use, with the Long Range Arena's distribution and numbers. Its
own files, `basic_train.tsv` and so on, are read instead with `source=files` and `--data_dir`. Steps, warm-up and
evaluations are those of the Nyströmformer's configuration, which the paper follows. The paper's test accuracies in per
cent, means of five runs (Tables 1, 2 and 4):

    heads                            1      2      4      8
    softmax                      36.81  36.76  36.89  37.03
    mgk                          37.13  36.88  36.98
    smgk                         37.31  37.35  37.25
    linear                       18.60  18.35  19.37  19.17
    mlk                          18.34  20.12  20.06
    smlk                         18.87  19.88  20.11
    mgk,estep=hard               19.40
    mgk,prior=em                 33.85
    smgk,estep=hard              37.25
    smgk,prior=em                37.05
"""

import ml_collections

from configs.lra import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=2,seed=3" (see `configs.lra.schema.ARGUMENTS`)."""
  config = schema.paper("listops", length=2_000)
  config.num_steps = 5_000
  config.eval_every = 50
  config.optimizer.warmup_steps = 1_000
  config.data.update(schema.generated_data())
  return schema.finish(config, arg)
