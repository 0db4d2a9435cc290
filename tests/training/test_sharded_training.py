"""Training on eight devices is training on one: losses, parameters, priors, evaluation."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("which", ["some", pytest.param("all", marks=pytest.mark.slow)])
def test_eight_devices(which):
  """Twenty steps with dropout, on axes of data and model; see `tests.training.sharded_training`, which is run here."""
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
  }
  command = [sys.executable, "-W", "error", "-m", "tests.training.sharded_training", which]
  done = subprocess.run(
    command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900, check=False
  )  # fmt: skip
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.strip() == "all equal"
