"""The adaptive softmax on eight devices: each computes its own words, and all is as on one."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_eight_devices():
  environment = os.environ | {
    "JAX_PLATFORMS": "cpu",
    "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
  }
  command = [sys.executable, "-W", "error", "-m", "tests.kernels.sharded_rows"]
  done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False)
  assert done.returncode == 0, done.stderr[-3000:]
  assert done.stdout.strip() == "all equal"
