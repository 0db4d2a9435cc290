"""The search for the longest sequence, and the tables, with a compiler that follows a formula."""

import importlib.util

import pytest

from benchmarks import memory
from mgk_jax.training import TrainingStopped, ahead, targets

SIZES = memory.Sizes(4, "float32", None)
DEVICE = targets.Target("v5e", "tpu", [None], 2**30)


@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("limit", [5, 700, 4096, 5000, 100_000, 131_072, 10**6])
def test_longest(limit, power):
  """It is the greatest of the lengths that are looked at, and looks at few."""
  asked = []

  def peak(length):
    asked.append(length)
    return 1000 + length**power

  found = memory.longest(peak, 1000 + limit**power, power)
  lengths = {k * 2**power for power in range(20) for k in range(memory.STEPS, 2 * memory.STEPS)}
  assert found == max((length for length in lengths if length <= limit), default=0)
  assert len(asked) == len(set(asked)) <= 10
  assert max(asked) <= max(4096, 1.5 * limit)  # compilers are not asked for what is far too large


def formula(config, machine):
  """4 KiB for each token, and with `reference` 4 bytes for each pair and head."""
  length, batch = config.data.length, config.batch_size
  pairs = 4 * config.model.num_heads * batch * length**2 if config.model.implementation == "reference" else 0
  return ahead.Needs(4096 * batch * length + pairs, 0, None, None, {}, 1.0, "pallas: runs"), 0.0


def test_tables(monkeypatch, capsys):
  monkeypatch.setattr(memory.lra_ahead, "compile_config", formula)
  text = memory.text_table([DEVICE], SIZES).splitlines()
  assert text[0] == "LRA text, N=4096, batch 32, 4 heads, float32: peak memory of a training step"
  cells = [cell.strip() for cell in text[-1].split("|")]
  assert cells[1:-1] == ["v5e", "1.0", "smgk", "8.50 (does not fit)", "0.50", "17.0"]
  longest = memory.longest_table([DEVICE], SIZES).splitlines()
  cells = [cell.strip() for cell in longest[-1].split("|")]
  assert cells[1:-1] == ["v5e", "1.0", "mlk", "7,680", "262,144", "pallas: runs"]
  assert "v5e, smgk, reference, N=4096: 8.50 GiB" in capsys.readouterr().err


def test_configs():
  config = memory.make_config("mlk", None, 8192, SIZES._replace(batch=2))
  assert (config.model.attention, config.data.length, config.batch_size) == ("mlk", 8192, 2)
  assert memory.make_config("smgk", "pallas", 8192, SIZES._replace(batch=2)).model.attention_dropout_rate == 0


def test_no_compiler_at_all(monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
  with pytest.raises(TrainingStopped, match=r"(?s)aot-tpu.*aot-cuda"):
    memory.find_devices([])
