"""What can be read off a program that was compiled for a machine that is not there, or off the failure to do so."""

import re
from collections.abc import Mapping
from typing import Any

import jax

UNITS = {"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


def cost(compiled: Any) -> Mapping[str, float]:
  """XLA's cost analysis, with "flops" and "bytes accessed" of one device.

  XLA for GPUs has none where there is no GPU; then its program is analysed by XLA for CPUs, in the same way.
  """
  found = compiled.cost_analysis()
  if not found:
    from jax._src.lib import _jax  # has no public name; the extra aot-cuda pins the version of JAX

    (module,) = compiled.runtime_executable().hlo_modules()
    found = _jax.hlo_module_cost_analysis(jax.local_devices(backend="cpu")[0].client, module)
  return found


def overflow(error: Exception) -> int | None:
  """The bytes that a program would have needed of a device that has not so many; None for an error of another kind.

  The compiler for TPUs says it in one of two ways, of which the second leaves out arguments and results.
  """
  size = r"(?P<number>[\d.]+)(?P<unit>[KMGT])"
  for pattern in (f"Used {size} of .* hbm", rf"HLO temporaries \({size}\) exceeds available HBM"):
    if found := re.search(pattern, str(error)):
      return round(float(found["number"]) * UNITS[found["unit"]])
  return None
