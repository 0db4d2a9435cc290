"""Several processes that are one run: how they meet, and what they tell each other."""

import argparse
from typing import NamedTuple

import jax
import numpy as np
from jax.experimental import multihost_utils

MOST_BYTES = 1 << 14  # of a text; what is longer is cut


class Place(NamedTuple):
  """Which of several processes this one is: the values of `FLAGS`."""

  distributed: bool = False
  coordinator: str | None = None
  num_processes: int | None = None
  process_id: int | None = None


FLAGS = {  # by the names of `Place`, with what they are for
  "distributed": "this is one of several processes, as on a TPU pod, under Slurm, Open MPI or Kubernetes; elsewhere, "
  "--coordinator, --num_processes and --process_id say which",
  "coordinator": "with --distributed: HOST:PORT of process 0",
  "num_processes": "with --distributed: how many processes there are",
  "process_id": "with --distributed: which process this is, from 0",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
  """Puts the `FLAGS` into a parser."""
  parser.add_argument("--distributed", action="store_true", help=FLAGS["distributed"])
  parser.add_argument("--coordinator", help=FLAGS["coordinator"], metavar="HOST:PORT")
  parser.add_argument("--num_processes", type=int, help=FLAGS["num_processes"], metavar="N")
  parser.add_argument("--process_id", type=int, help=FLAGS["process_id"], metavar="I")


def join(place: Place) -> None:
  """Waits for the other processes, if there are any; to be called before any other use of JAX.

  On a TPU pod and under Slurm, Open MPI or Kubernetes JAX finds out itself where they are.

  Raises:
    ValueError: not all that is needed, or JAX finds nothing.
  """
  given = {f"--{name}": value for name, value in place._asdict().items() if name != "distributed"}
  missing = [name for name, value in given.items() if value is None]
  if not place.distributed:
    if len(missing) < len(given):
      raise ValueError("--coordinator, --num_processes and --process_id go with --distributed")
    return
  if 0 < len(missing) < len(given):
    raise ValueError(f"expected all of {', '.join(given)} or none; missing: {', '.join(missing)}")
  try:
    jax.distributed.initialize(place.coordinator, place.num_processes, place.process_id)
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
