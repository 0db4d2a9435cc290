"""Which rows of a batch a process reads."""

import grain
import jax

READING = grain.ReadOptions(
  num_threads=1, prefetch_buffer_size=4
)  # the work is done per batch, so one thread is enough


class Rows:
  """The rows of a batch that a process reads: one of several equal, contiguous parts.

  Which one is decided by the mesh, see `mgk_jax.training.mesh.batch_part`. Without a part it is that of the process by
  its number, which is right where the axis "data" goes across all processes and "model" across none.
  """

  def __init__(self, batch_size: int, part: int | None = None, num_parts: int | None = None):
    part = jax.process_index() if part is None else part
    num_parts = jax.process_count() if num_parts is None else num_parts
    if batch_size % num_parts:
      raise ValueError(f"batch_size: expected a multiple of the {num_parts} parts for processes, got {batch_size}")
    self.batch_size = batch_size
    self.local_size = batch_size // num_parts
    self.slice = slice(part * self.local_size, (part + 1) * self.local_size)
