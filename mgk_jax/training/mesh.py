"""The mesh of devices and how a batch, parameters and optimiser state lie on it."""

import math
import re
from collections.abc import Sequence
from typing import Any

import jax
import optax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec as P

DATA, MODEL = "data", "model"

# Where a variable's path ends, and how it then lies: over "model" by heads and by the hidden units of MLPs, over "data"
# by rows of the batch.
RULES: tuple[tuple[str, P], ...] = (
  (r"attention/(query|key|value)/kernel", P(None, MODEL)),  # [D, N, (M,) H]
  (r"attention/(query|key|value)/bias", P(MODEL)),  # [N, (M,) H]
  (r"attention/out/kernel", P(MODEL)),  # [N, H, D]
  (r"attention/shift", P(MODEL)),  # [N, M, H]
  (r"mlp_in/kernel", P(None, MODEL)),  # [D, F]
  (r"mlp_in/bias", P(MODEL)),  # [F]
  (r"mlp_out/kernel", P(MODEL)),  # [F, D]
  (r"carried/\d+", P(DATA)),  # [B, …]
)


def make_mesh(data: int = -1, model: int = 1, *, devices: Sequence[Any] | None = None) -> Mesh:
  """A mesh of `data` × `model` devices; −1 stands for all that the other axis leaves.

  Raises:
    ValueError: sizes that the devices cannot fill.
  """
  devices = jax.devices() if devices is None else devices
  sizes = {"mesh.data": data, "mesh.model": model}
  for name, size in sizes.items():
    if size != -1 and size < 1:
      raise ValueError(f"{name}: expected a positive number or -1, got {size}")
  if data == model == -1:
    raise ValueError("expected at most one of mesh.data and mesh.model to be -1, got both")
  known = math.prod(size for size in (data, model) if size != -1)
  if -1 in (data, model):
    if len(devices) % known:
      raise ValueError(f"expected a mesh axis that divides {len(devices)} devices, got {known}")
    data, model = (len(devices) // known if size == -1 else size for size in (data, model))
  if data * model > len(devices):
    raise ValueError(f"mesh: expected data × model <= {len(devices)} devices, got {data} × {model}")
  return jax.make_mesh(
    (data, model), (DATA, MODEL), axis_types=(AxisType.Auto, AxisType.Auto), devices=devices[: data * model]
  )


def check_batch_size(mesh: Mesh, batch_size: int, accumulation_steps: int) -> None:
  """A batch must fall into equal parts for devices and accumulation.

  Raises:
    ValueError: it does not.
  """
  parts = mesh.shape[DATA] * accumulation_steps
  if accumulation_steps < 1 or batch_size < 1 or batch_size % parts:
    raise ValueError(
      f"batch_size: expected a multiple of {mesh.shape[DATA]} (devices along mesh.data) × "
      f"{accumulation_steps} (accumulation_steps), got {batch_size}"
    )


def batch_sharding(mesh: Mesh) -> NamedSharding:
  """Rows over the axis "data"."""
  return NamedSharding(mesh, P(DATA))


def batch_part(mesh: Mesh) -> tuple[int, int]:
  """The part of each batch that this process has to read, and the number of parts.

  Processes have the same part where their devices hold the same rows, as when the axis "model" goes across processes.

  Raises:
    ValueError: a process without a device in the mesh, or parts that are not equal.
  """
  rows: dict[int, list[int]] = {process: [] for process in range(jax.process_count())}
  for row, devices in enumerate(mesh.devices):
    for process in {device.process_index for device in devices.flat}:
      rows[process].append(row)
  parts = sorted({tuple(numbers) for numbers in rows.values()})
  if sum(map(len, parts)) != mesh.shape[DATA] or len(set(map(len, parts))) != 1:
    raise ValueError(
      f"mesh.data={mesh.shape[DATA]}, mesh.model={mesh.shape[MODEL]}: expected a mesh that cuts batches into equal "
      f"parts for {jax.process_count()} processes, got rows of it by process: {rows}"
    )
  return parts.index(tuple(rows[jax.process_index()])), len(parts)


def replicated(mesh: Mesh) -> NamedSharding:
  """The same on every device."""
  return NamedSharding(mesh, P())


def variable_shardings(mesh: Mesh, variables: Any) -> Any:
  """A sharding for each array of a tree of variables, by `RULES`; what no rule names lies on every device.

  Raises:
    ValueError: an axis that a rule cuts has no size that the mesh axis divides.
  """

  def sharding(path: Any, leaf: Any) -> NamedSharding:
    name = "/".join(str(getattr(part, "key", getattr(part, "name", part))) for part in path).removesuffix("/value")
    for rule, spec in RULES:
      if re.search(rule + "$", name):
        axis, cut = next((axis, cut) for axis, cut in enumerate(spec) if cut)
        if leaf.shape[axis] % mesh.shape[cut]:
          if cut == DATA:  # rows of a batch that is not used here
            return replicated(mesh)
          raise ValueError(
            f"mesh.model={mesh.shape[MODEL]}: expected a divisor of the number of heads and of mlp_dim, "
            f"got {name} of shape {leaf.shape}"
          )
        return NamedSharding(mesh, spec)
    return replicated(mesh)

  return jax.tree_util.tree_map_with_path(sharding, variables)


def optimizer_shardings(optimizer: optax.GradientTransformation, mesh: Mesh, opt_state: Any, params: Any) -> Any:
  """Moments lie as their parameters do, all else on every device."""
  return optax.tree_map_params(
    optimizer,
    lambda _, sharding: sharding,
    opt_state,
    params,
    transform_non_params=lambda _: replicated(mesh),
  )
