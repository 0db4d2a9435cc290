"""The benchmark of generation at a small size."""

from benchmarks import decoding
from benchmarks.decoding import Variant
from benchmarks.timing import Contender, Measurement, Program

SMALL = {"vocab_size": 20, "cutoffs": (), "num_layers": 1, "emb_dim": 8, "mlp_dim": 8, "head_dim": 4}


def test_small():
  """After any length there are as many tokens per second as were measured."""
  variants = [Variant("mgk", 2, None)]
  measurements = decoding.measure(variants, [5, 40], 2, 1, **SMALL, implementation="reference")
  rows = [line.strip("| ").split(" | ") for line in decoding.table(variants, [5, 40], 2, measurements).splitlines()]
  assert rows[0] == ["model", "tokens/s after 5", "tokens/s after 40", "time × after 5"]
  assert [row[0] for row in rows[2:]] == ["mgk 2 heads, all words"]
  speed = 2 * decoding.WORDS / measurements[0].seconds
  assert rows[2][1] == f"{speed:,.1f}"


def test_table():
  variant = Variant("mgk", 4, 256)
  measurements = [
    Measurement(Contender(f"{variant} after {length}", lambda: Program(print)), seconds, None)
    for length, seconds in ((100, 2.0), (1600, 3.0))
  ]
  lines = decoding.table([variant], [100, 1600], 1, measurements).splitlines()
  assert lines[0] == "| model | tokens/s after 100 | tokens/s after 1,600 | time × after 100 |"
  assert lines[2] == "| mgk 4 heads, the last 256 | 16.0 | 10.7 | 1.50 |"
