"""Language modelling: a file per corpus with the paper's setting, and a small one for a CPU.

`--config=configs/lm/wikitext103.py:mgk,heads=4,seed=3`: behind the colon the attention (softmax, linear, mgk, smgk, mlk
or smlk; mgk if left out) and then any of the arguments in `configs.lm.schema.ARGUMENTS`. Every setting can also be
changed by its own name, `--config.model.num_heads=4`. A config holds only those settings that have an effect with the
others in it: softmax attention has no `estep`, and `softmax,estep=hard` is an error.
"""
