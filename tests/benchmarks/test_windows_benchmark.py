"""The benchmark of sliding windows at a small size."""

import mgk_jax
from benchmarks import windows

SMALL = {"cutoffs": (5, 12), "num_layers": 1, "emb_dim": 8, "mlp_dim": 8, "num_heads": 2, "head_dim": 4}


def test_small():
  measured = windows.Measured(mgk_jax.LanguageModelConfig(vocab_size=20, **SMALL), window=6, batch_size=3)
  measurements = measured.measure(1)
  rows = [line.strip("| ").split(" | ") for line in measured.table(measurements).splitlines()]
  assert rows[0] == ["evaluation", "ms for a window", "× batched"]
  assert [row[0] for row in rows[2:]] == [windows.BATCHED, windows.LOOP, windows.DENSE_LOOP]
  assert rows[2][2] == "1.0"
  assert measured.largest_difference(4) < 1e-5
