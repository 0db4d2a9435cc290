"""The perplexity of the paper's Table 3: a window slides over the text, and each word is predicted from a full one.

The first window of `window` words predicts a word after each of its positions. Every further window begins `stride`
words later (one, in the paper) and predicts only the words after its last `stride` positions. So every word but the
first is predicted exactly once, all but the first few from at least `window` − `stride` + 1 words before it.

Windows share nothing: a word has another position in each, and all layers see it. What can be left out, exactly, is
all that only serves positions that do not count: their vocabulary and, with a stride of one, their last layer.
"""

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh

import mgk_jax
from lm.trained import evaluated
from mgk_jax.data.rows import Rows
from mgk_jax.kernels.heads import sharded_heads
from mgk_jax.training import mesh as meshes
from mgk_jax.training.signals import StopRequest
from mgk_jax.training.state import Structure

CPU_ACTIVATIONS = 2**20  # of an MLP's hidden layer: what does not stay in the caches of a CPU is slower
CPU_WORDS = 1024  # enough for products of full speed
ACCELERATOR_ROWS = 128


@dataclasses.dataclass(frozen=True)
class Protocol:
  """How a text is cut: windows of `window` words, each `stride` words after the one before.

  Raises:
    ValueError: no words, or a stride that leaves words out.
  """

  window: int
  stride: int = 1

  def __post_init__(self) -> None:
    """Checks the numbers."""
    if self.window < 1:
      raise ValueError(f"window: expected at least 1, got {self.window}")
    if not 1 <= self.stride <= self.window:
      raise ValueError(f"stride: expected 1 to window = {self.window}, or words would be left out, got {self.stride}")

  def describe(self, unit: str) -> str:
    """In words."""
    if self.stride == self.window:
      return f"segments of {self.window} {unit}s, each on its own"
    slides = f"sliding by {self.stride} {unit}{'s' if self.stride > 1 else ''}"
    return f"windows of {self.window} {unit}s {slides}" + (", as in the paper" if self.stride == 1 else "")


class Windows:
  """The windows of a text, by number.

  Args:
    tokens: of the text.
    protocol: how it is cut.

  Raises:
    ValueError: there is nothing to predict.
  """

  def __init__(self, tokens: np.ndarray, protocol: Protocol):
    if len(tokens) < 2:
      raise ValueError(f"expected at least two words, of which one can be predicted, got {len(tokens)}")
    self.tokens, self.protocol = tokens, protocol
    self.num_targets = len(tokens) - 1

  def __len__(self) -> int:
    window, stride = self.protocol.window, self.protocol.stride
    return 1 + -(-max(0, self.num_targets - window) // stride)

  def first(self) -> dict[str, np.ndarray]:
    """The first window, [1, window] or as short as the text: words, the words after them, and weights."""
    size = min(self.protocol.window, self.num_targets)
    tokens, targets = np.array(self.tokens[:size], np.int32), np.array(self.tokens[1 : size + 1], np.int32)
    return {"tokens": tokens[None], "targets": targets[None], "weights": np.ones((1, size), np.float32)}

  def batch(self, first: int, rows: Rows) -> dict[str, np.ndarray]:
    """Some rows of a batch of windows from number `first` on: words [B, window], targets and weights [B, stride].

    What lies past the end of the text, and windows past the last one, have weight 0.
    """
    window, stride = self.protocol.window, self.protocol.stride
    batch = {
      "tokens": np.zeros((rows.local_size, window), np.int32),
      "targets": np.zeros((rows.local_size, stride), np.int32),
      "weights": np.zeros((rows.local_size, stride), np.float32),
    }
    numbers = range(first, first + rows.batch_size)[rows.slice]
    for row, number in enumerate(numbers):
      start = number * stride
      words = np.asarray(self.tokens[start : start + window])
      targets = np.asarray(self.tokens[start + window - stride + 1 : start + window + 1])
      batch["tokens"][row, : len(words)] = words
      batch["targets"][row, : len(targets)], batch["weights"][row, : len(targets)] = targets, 1
    return batch


@dataclasses.dataclass(frozen=True)
class Score:
  """What windows have said so far: how many there were, Σ −log p of their words, and the number of these."""

  windows: int = 0
  nll: float = 0.0
  count: int = 0

  def __add__(self, other: "Score") -> "Score":
    return Score(self.windows + other.windows, self.nll + other.nll, self.count + other.count)

  @property
  def mean(self) -> float:
    """−log p of a word."""
    return self.nll / self.count


class Scorer:
  """Scores windows with a model, cut over all devices of a mesh.

  Args:
    structure: the model without its arrays.
    mesh: of devices.
    protocol: how texts are cut.
    batch_size: windows at once, a multiple of the devices along the axis "data".

  Raises:
    ValueError: a batch that the mesh does not divide.
  """

  def __init__(self, structure: Structure, mesh: Mesh, protocol: Protocol, batch_size: int):
    devices = mesh.shape[meshes.DATA]
    if batch_size < 1 or batch_size % devices:
      raise ValueError(f"batch_size: expected a multiple of the {devices} devices, got {batch_size}")
    self.structure, self.mesh, self.protocol = structure, mesh, protocol
    self.rows = Rows(batch_size, *meshes.batch_part(mesh))

  def losses(self, params: Any, variables: Any, windows: Windows, first: int = 0) -> Iterator[tuple[int, np.ndarray]]:
    """From window `first` on: how many windows it was, and −log p of their words in order, batch by batch."""
    for number, losses, _ in self._batches(params, variables, windows, first, StopRequest()):
      yield number, losses

  def score(
    self, params: Any, variables: Any, windows: Windows, start: Score | None = None, stop: StopRequest | None = None
  ) -> Iterator[Score]:
    """The scores so far, batch by batch, going on from `start`; the last one is that of the whole text.

    Sums are made in float64 in the order of the text, so that they depend neither on the devices nor on interruptions,
    but for the last bits of each word's float32. With a `stop` request it ends after the batch at hand.
    """
    total = Score() if start is None else start
    stop = StopRequest() if stop is None else stop  # which is false until it is made
    for number, losses, stopped in self._batches(params, variables, windows, total.windows, stop):
      total = total + Score(number, float(np.sum(losses, dtype=np.float64)), len(losses))
      yield total
      if stopped:
        return

  def _batches(
    self, params: Any, variables: Any, windows: Windows, first: int, stop: StopRequest
  ) -> Iterator[tuple[int, np.ndarray, bool]]:
    pending: tuple[int, np.ndarray, Any] | None = None
    for number, batch, run in self._programs(windows, first):
      found = run(params, variables, {name: self._put(x, run) for name, x in batch.items()})
      if pending is not None:
        yield self._read(*pending, stop)
      # Read one batch late, so that devices never wait.
      pending = number, self._counted(windows, first, number), stop.announce({"losses": found}, self.mesh)
      first += number
    if pending is not None:
      yield self._read(*pending, stop)

  def _programs(self, windows: Windows, first: int) -> Iterator[tuple[int, dict[str, np.ndarray], Any]]:
    """Windows in a batch, the batch, and what is to be run on it."""
    if first == 0:
      yield 1, windows.first(), self._whole
      first = 1
    while first < len(windows):
      number = min(self.rows.batch_size, len(windows) - first)
      yield number, windows.batch(first, self.rows), self._last
      first += number

  def _read(self, number: int, counted: np.ndarray, found: Any, stop: StopRequest) -> tuple[int, np.ndarray, bool]:
    losses = stop.hear(jax.device_get(found))["losses"]
    return number, np.asarray(losses).ravel()[counted], bool(stop)

  def _counted(self, windows: Windows, first: int, number: int) -> np.ndarray:
    """Which of a batch's losses, in order, are of words that count."""
    if first == 0:
      return np.arange(min(self.protocol.window, windows.num_targets))
    begin = self.protocol.window + (first - 1) * self.protocol.stride  # targets before
    return np.arange(min(number * self.protocol.stride, windows.num_targets - begin))

  def _put(self, rows: np.ndarray, run: Any) -> jax.Array:
    sharding = meshes.replicated(self.mesh) if run is self._whole else meshes.batch_sharding(self.mesh)
    return jax.make_array_from_process_local_data(sharding, rows)

  @functools.cached_property
  def _whole(self) -> Callable[..., jax.Array]:
    return self._compile(None)

  @functools.cached_property
  def _last(self) -> Callable[..., jax.Array]:
    return self._compile(self.protocol.stride)

  def _compile(self, last: int | None) -> Callable[..., jax.Array]:
    """−log p of the targets of the last positions of a batch, or of all, on every device."""

    def run(params: Any, variables: Any, batch: dict[str, jax.Array]) -> jax.Array:
      with sharded_heads(self.mesh, batch=meshes.DATA, heads=meshes.MODEL):
        model = evaluated(self.structure, params, variables)
        hidden = model.hidden(batch["tokens"], last_only=last == 1)
        return model.losses(hidden if last is None else hidden[:, -last:], batch["targets"], batch["weights"])

    return jax.jit(run, out_shardings=meshes.replicated(self.mesh))


def default_batch_size(config: mgk_jax.LanguageModelConfig, window: int, devices: int) -> int:
  """Windows at once on so many devices: on CPUs as many as stay in their caches."""
  if jax.default_backend() == "cpu":
    return devices * max(1, max(CPU_WORDS, CPU_ACTIVATIONS // config.mlp_dim) // window)
  return devices * ACCELERATOR_ROWS
