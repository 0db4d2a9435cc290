"""The Long Range Arena: a file per task with the paper's setting, and below `base` with the benchmark's own sizes.

`--config=configs/lra/listops.py:smgk,heads=2,estep=hard,prior=em,seed=3`: behind the colon the attention (softmax,
linear, mgk, smgk, mlk or smlk; smgk if left out) and then any of the arguments in `configs.lra.schema.ARGUMENTS`.
Every setting can also be changed by its own name, `--config.model.num_heads=2`. A config holds only those settings
that have an effect with the others in it: softmax attention has no `estep`, and `softmax,estep=hard` is an error.
"""
