"""The benchmark runs, and its ratios are those of its times."""

import jax.numpy as jnp
import pytest

from benchmarks import attention
from benchmarks.timing import Contender, Measurement, table


def rows(output):
  return [
    [cell.strip() for cell in line.strip("| ").split("|")] for line in output.splitlines() if line.startswith("|")
  ]


def test_ratios_and_units():
  def measured(name, seconds):
    return Measurement(Contender(name, jnp.sin, (), flops=2.5e9), seconds, temporary_bytes=3 * 2**20)

  header, _, *body = rows(table([measured("a", 0.2), measured("b", 0.05)], ["a", "b"]))
  assert header == ["contender", "ms", "× a", "× b", "temporary MiB", "GFLOP"]
  assert body == [["a", "200.0", "1.00", "4.00", "3.0", "2.50"], ["b", "50.0", "0.25", "1.00", "3.0", "2.50"]]


@pytest.mark.parametrize(
  ("arguments", "contenders"),
  [([], 9), pytest.param(["--padding", "--batch", "2"], 10, marks=pytest.mark.slow)],
)
def test_every_contender_runs(arguments, contenders, capsys):
  attention.main(["--length", "24", "--heads", "2", "--head-dim", "4", "--repeats", "1", *arguments])
  names = {row[0] for row in rows(capsys.readouterr().out)} - {"contender", "---"}
  assert len(names) == contenders and {"softmax 2 heads", "MGK 1 heads", "sMGK 1 heads, hard"} <= names


def test_mixtures_need_half_the_heads(capsys):
  with pytest.raises(SystemExit):
    attention.main(["--heads", "3"])
  assert "--heads: expected an even number" in capsys.readouterr().err
