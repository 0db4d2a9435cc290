"""SIGTERM and Ctrl-C as a wish that the training loop grants at its next step."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

_NAME = "stop"  # among the metrics of a step


class StopRequest:
  """Whether somebody asked to stop, and by which signal.

  Of several processes perhaps only one gets a signal, and all have to stop at the same step, or they wait for each
  other for ever. There a signal counts once all have heard of it: it goes with the metrics of a step, which every
  process reads at the same point.
  """

  def __init__(self) -> None:
    self.signal: signal.Signals | None = None  # that this process got
    self._heard: signal.Signals | None = None

  def __bool__(self) -> bool:
    return self._agreed is not None

  @property
  def exit_code(self) -> int:
    """128 + the number of the signal, as shells count."""
    return 128 + self._agreed if self._agreed else 0

  def announce(self, sums: dict[str, jax.Array], mesh: Mesh) -> dict[str, jax.Array]:
    """The metrics of a step and with them, if there are several processes, the signal that any of them got."""
    if jax.process_count() == 1:
      return sums
    own = np.full(len(mesh.local_devices), self.signal or 0, np.int32)
    _settle(sums)
    everywhere = NamedSharding(mesh, P(mesh.axis_names))
    return _settle(sums | {_NAME: _largest(jax.make_array_from_process_local_data(everywhere, own))})

  def hear(self, sums: dict[str, float]) -> dict[str, float]:
    """Takes in what was announced with the metrics of a step, and returns these."""
    if number := sums.get(_NAME):
      self._heard = signal.Signals(int(number))
    return {name: value for name, value in sums.items() if name != _NAME}

  @property
  def _agreed(self) -> signal.Signals | None:
    return self.signal if jax.process_count() == 1 else self._heard


@jax.jit
def _largest(numbers: jax.Array) -> jax.Array:
  return jnp.max(numbers)


def _settle(arrays: dict[str, jax.Array]) -> dict[str, jax.Array]:
  """Waits for them on CPUs, whose collectives between processes deadlock when programs run into each other."""
  return jax.block_until_ready(arrays) if jax.default_backend() == "cpu" else arrays


@contextlib.contextmanager
def listen() -> Iterator[StopRequest]:
  """Turns the first SIGTERM or SIGINT within the block into a `StopRequest`; a second one acts as it always does."""
  request = StopRequest()
  if threading.current_thread() is not threading.main_thread():
    yield request  # only the main thread can take signals; the run then ends as its thread does
    return
  previous = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}

  def restore() -> None:
    for number, handler in previous.items():
      signal.signal(number, handler)

  def handle(number: int, _: FrameType | None) -> None:
    request.signal = signal.Signals(number)
    restore()
    # Not by print: a signal that comes while the progress bar is written must not write to the same buffer.
    os.write(2, f"\n{request.signal.name}: saving and stopping after this step …\n".encode())

  for number in previous:
    signal.signal(number, handle)
  try:
    yield request
  finally:
    restore()
