"""WikiText-103 in the paper's setting: 103 million words of Wikipedia, of which 267,735 are different.

    python -m lm.prepare wikitext103 --data_dir=wikitext-103-v1.zip
    python -m lm.train --config=configs/lm/wikitext103.py:mgk,heads=4 --workdir=runs/wt103_mgk
    python -m lm.evaluate --workdir=runs/wt103_mgk --split=test

The paper trained on two A100 of 40 GB, 120 epochs; 500,000 steps of 96 segments of 256 words are 119 of them. Its
perplexities by the sliding window (Table 3):

    heads                        4              8
                           valid   test   valid   test
    softmax                               33.15  34.29
    mgk                    33.28  34.21   32.74  33.93
    smgk                                  32.92  33.99
    linear                                38.07  39.08
    mlk                    38.49  39.46   37.78  38.99

Where memory is short, `accumulation=4` or `remat=true` need less of it; `dtype=bfloat16` is for TPUs and newer GPUs.
"""

import ml_collections

from configs.lm import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "mgk,heads=4,seed=3" (see `configs.lm.schema.ARGUMENTS`)."""
  return schema.finish(schema.paper("wikitext103"), arg)
