"""Several processes that are one run: how they meet, and what they tell each other."""

import jax
import numpy as np
from jax.experimental import multihost_utils

MOST_BYTES = 1 << 14  # of a text; what is longer is cut


def join(address: str | None, number: int | None, index: int | None) -> None:
  """Waits for the other processes of a run; to be called before any other use of JAX.

  Args:
    address: HOST:PORT of the first process. None on a TPU pod and under Slurm, Open MPI or Kubernetes, where JAX finds
      this and the rest itself.
    number: how many processes there are.
    index: which one this is, from 0.

  Raises:
    ValueError: not all of them, or JAX finds nothing.
  """
  given = {"--coordinator": address, "--num_processes": number, "--process_id": index}
  if missing := [name for name, value in given.items() if value is None]:
    if len(missing) < len(given):
      raise ValueError(f"expected all of {', '.join(given)} or none; missing: {', '.join(missing)}")
  try:
    jax.distributed.initialize(address, number, index)
  except ValueError as error:
    raise ValueError(
      f"--distributed: {error}. Expected a TPU pod, Slurm, Open MPI or Kubernetes; elsewhere start every process with "
      "--coordinator=HOST:PORT --num_processes=N --process_id=I"
    ) from error


def from_first(text: str) -> str:
  """The text of the first process, in all of them; each has to call this, and waits for the others."""
  if jax.process_count() == 1:
    return text
  content = np.frombuffer(text.encode()[:MOST_BYTES], np.uint8)
  message = np.zeros(MOST_BYTES, np.uint8)
  message[: len(content)] = content
  shared = multihost_utils.broadcast_one_to_all(message)
  return np.asarray(shared, np.uint8).tobytes().rstrip(b"\0").decode(errors="ignore")
