"""Machines for which a training step can be compiled where there is none: slices of TPUs and nodes of GPUs."""

import dataclasses
import importlib.util
import os
import re
import sys
from pathlib import Path
from typing import Any

import jax
from jax.experimental import topologies

from mgk_jax.training.failures import TrainingStopped

GIB = 2**30
EXAMPLES = "v5e:2x2, v5e:4x4, v5p:2x2x1, v6e:2x2, a100x1, a100x4, h100x8"
TPU_MEMORY = {"v4": 32 * GIB, "v5e": 16 * GIB, "v5p": 95 * GIB, "v6e": 32 * GIB}  # of one chip, by the data sheets
KINDS = {  # of devices, each with the smallest machine that has some
  "v4": "v4:2x2x1",
  "v5e": "v5e:2x2",
  "v5p": "v5p:2x2x1",
  "v6e": "v6e:2x2",
  "a100": "a100x1",
  "h100": "h100x1",
}
QUIET_TPU = {  # libtpu otherwise asks the cloud which machine it is on, and one process at a time may load it
  "TPU_SKIP_MDS_QUERY": "1",
  "TPU_ACCELERATOR_TYPE": "v5litepod-4",
  "TPU_WORKER_HOSTNAMES": "localhost",
  "TPU_WORKER_ID": "0",
  "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
}


@dataclasses.dataclass(frozen=True)
class Target:
  """A machine: its devices, the memory of one, and its platform as `kernels.dispatch` calls it."""

  name: str
  platform: str
  devices: Any
  memory_bytes: int


@dataclasses.dataclass(frozen=True)
class Gpu:
  """What XLA reads off a GPU where there is one; the figures are of the SXM boards with 80 GB."""

  description: str
  capability: int
  features: str  # ACCELERATED_FEATURES for the instructions of a Hopper's tensor cores
  cores: int
  fpus_per_core: int
  shared_memory: int  # of a core
  l2_cache: int
  bandwidth: int
  clock_ghz: float
  memory_bytes: int

  def config(self) -> str:
    """An XLA GpuTargetConfig, as a text proto."""
    return f"""
      gpu_device_info {{
        threads_per_block_limit: 1024 threads_per_warp: 32 threads_per_core_limit: 2048
        shared_memory_per_block: 49152 shared_memory_per_core: {self.shared_memory}
        shared_memory_per_block_optin: {self.shared_memory - 1024}
        core_count: {self.cores} fpus_per_core: {self.fpus_per_core} clock_rate_ghz: {self.clock_ghz}
        block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
        thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
        registers_per_core_limit: 65536 registers_per_block_limit: 65536
        memory_bandwidth: {self.bandwidth} l2_cache_size: {self.l2_cache} device_memory_size: {self.memory_bytes}
        cuda_compute_capability {{ major: {self.capability} feature_extension: {self.features} }}
        driver_version: "13.0.0" runtime_version: "12.8.0" compile_time_toolkit_version: "12.8.0" dnn_version: "9.10.0"
      }}
      platform_name: "CUDA"
      dnn_version_info {{ major: 9 minor: 10 patch: 0 }}
      runtime_version {{ major: 12 minor: 8 patch: 0 }}
      device_description_str: "{self.description}"
    """


GPUS = {
  "a100": Gpu("NVIDIA A100-SXM4-80GB", 8, "NONE", 108, 64, 167936, 41943040, 2039040000000, 1.41, 85100068864),
  "h100": Gpu(
    "NVIDIA H100-SXM5-80GB", 9, "ACCELERATED_FEATURES", 132, 128, 233472, 52428800, 3352320000000, 1.98, 85017755648
  ),
}


def find(name: str) -> Target:
  """A target by its name: a TPU with its topology, such as v5e:4x4, or a GPU with their number, such as a100x4.

  Where no platform was chosen (JAX_PLATFORMS), this process computes on its CPU from then on: JAX otherwise looks for
  devices that the compiler is for, and fails where there are none.

  Raises:
    ValueError: no such target; the message has examples.
    TrainingStopped: its compiler is not installed; the message has the command that installs it.
  """
  if match := re.fullmatch(r"(v\w+):(\d+x\d+(x\d+)?)", name):
    if match[1] in TPU_MEMORY:
      return Target(name, "tpu", _tpu_devices(name), TPU_MEMORY[match[1]])
  if match := re.fullmatch(r"(\w+?)x(\d+)", name):
    if match[1] in GPUS and int(match[2]) > 0:
      gpu = GPUS[match[1]]
      return Target(name, "gpu", _gpu_devices(gpu, int(match[2])), gpu.memory_bytes)
  raise ValueError(f"--compile_for: expected a machine such as {EXAMPLES}, got {name!r}")


def one(kind: str) -> Target:
  """A single device of one of the `KINDS`.

  Raises:
    TrainingStopped: as `find` does.
  """
  machine = find(KINDS[kind])
  return dataclasses.replace(machine, name=kind, devices=machine.devices[:1])


def _tpu_devices(name: str) -> Any:
  _prepare("libtpu", "aot-tpu", "the TPU compiler, 720 MB")
  os.environ.update({key: value for key, value in QUIET_TPU.items() if key not in os.environ})
  try:
    return topologies.get_topology_desc(platform="tpu", topology_name=name).devices
  except Exception as error:
    raise ValueError(f"--compile_for={name}: the TPU compiler has no description of it: {error}") from error


def _gpu_devices(gpu: Gpu, number: int) -> Any:
  _prepare("jax_cuda12_plugin", "aot-cuda", "XLA for NVIDIA GPUs and their assembler, 600 MB")
  for tools in (Path(path) / "nvidia" / "cuda_nvcc" for path in sys.path):  # ptxas and libdevice
    if tools.is_dir() and "xla_gpu_cuda_data_dir" not in os.environ.get("XLA_FLAGS", ""):
      os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_cuda_data_dir={tools}".strip()
  return topologies.get_topology_desc(platform="cuda", target_config=gpu.config(), topology=f"1x1x{number}").devices


def _prepare(module: str, extra: str, what: str) -> None:
  """Raises TrainingStopped if a compiler is not installed; keeps JAX from looking for its devices, if it is."""
  if importlib.util.find_spec(module) is None:
    raise TrainingStopped(
      f"Compiling for this machine needs {what}, which is not installed. In an environment of its own:\n"
      f"  pip install 'mgk_jax[{extra}]'    (in a clone: pip install -e '.[{extra}]')"
    )
  if not jax.config.values["jax_platforms"]:
    jax.config.update("jax_platforms", "cpu")
