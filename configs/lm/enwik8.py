"""enwik8, the first 100 million bytes of a dump of Wikipedia, with the model of the paper's WikiText-103 runs.

    python -m lm.prepare enwik8 --data_dir=enwik8.zip
    python -m lm.train --config=configs/lm/enwik8.py:smgk,heads=4 --workdir=runs/enwik8_smgk

The paper has no results on it. A batch has as many bytes as one of WikiText-103 has words, in segments of 512; there
are 256 bytes, so that the softmax is a plain one.
"""

import ml_collections

from configs.lm import schema


def get_config(arg: str = "") -> ml_collections.ConfigDict:
  """The setting, changed by arguments such as "smgk,heads=4,seed=3" (see `configs.lm.schema.ARGUMENTS`)."""
  config = schema.paper("enwik8", length=512)
  config.batch_size = 48
  config.model.cutoffs = []
  return schema.finish(config, arg)
