"""Continues texts word by word, from the state that the words so far have left.

Linear attention (linear, mlk, smlk) has a state of constant size: a word costs the same after a hundred words as after
a million, and all of them count. The other attentions have the keys and values of the last `cache_len` words: once
those are full they slide, a word sees the `cache_len` − 1 before it in each layer, and what left the cache lives on
only in what later words made of it. Positions go on counting, also past the lengths of training. As long as nothing
has left the cache, every word has the probability that a pass over the whole text gives it.
"""

import functools
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Int

from lm.sampling import Sampling, sample
from lm.trained import evaluated
from mgk_jax.training.state import Structure

WORDS_AT_ONCE = 32  # in one call of a compiled program
WORDS_READ_AT_ONCE = 1024


class Carry(NamedTuple):
  """Where texts are: the model's state, and its output [B, D] at the last word."""

  state: Any
  hidden: jax.Array


class Words(NamedTuple):
  """The next words of all texts; prompts go on in them until they end.

  Attributes:
    tokens: numbers of words, [B, T].
    log_probs: log p of each, before any temperature, [B, T].
    seconds: in which they were made.
  """

  tokens: Int[np.ndarray, "B T"]
  log_probs: Float[np.ndarray, "B T"]
  seconds: float


class Generator:
  """Continues texts with a model.

  Args:
    structure: the model without its arrays.
    sampling: how words are chosen.
    cache_len: how many words softmax and Gaussian attention see; None for as many as in training.
    steps: words that one call of the compiled program makes.

  Raises:
    ValueError: no room for words.
  """

  def __init__(
    self, structure: Structure, sampling: Sampling, cache_len: int | None = None, steps: int = WORDS_AT_ONCE
  ):
    if cache_len is not None and cache_len < 1:
      raise ValueError(f"cache_len: expected at least 1, got {cache_len}")
    self.structure, self.sampling, self.cache_len, self.steps = structure, sampling, cache_len, steps

  def __call__(
    self, params: Any, variables: Any, prompts: Sequence[Sequence[int]], num_tokens: int, seed: int = 0
  ) -> Iterator[Words]:
    """The words of all texts after the first `min(len(prompt))`, some at a time, until each prompt has `num_tokens`.

    Prompts of different lengths go on together: where one has ended, its text is the model's; shorter ones get more
    words than was asked for.

    Raises:
      ValueError: no prompts, an empty one, or no words to be made.
    """
    if not prompts or not all(len(prompt) for prompt in prompts):
      raise ValueError("prompts: expected at least one, each of at least one word, got an empty one")
    if num_tokens < 1:
      raise ValueError(f"num_tokens: expected at least 1, got {num_tokens}")
    lengths = np.array([len(prompt) for prompt in prompts], np.int32)
    padded = np.zeros((len(prompts), lengths.max() + self.steps), np.int32)
    for row, prompt in enumerate(prompts):
      padded[row, : len(prompt)] = prompt
    carry = self.read(params, variables, padded[:, : lengths.min()])
    key = jax.random.key(seed)
    write = None
    for first in range(lengths.min(), lengths.max() + num_tokens, self.steps):
      given = np.zeros((len(prompts), self.steps), np.int32)
      part = padded[:, first : first + self.steps]
      given[:, : part.shape[1]] = part
      is_given = np.arange(first, first + self.steps) < lengths[:, None]
      arguments = params, variables, carry, given, is_given, key, first
      write = write or self.write.lower(*arguments).compile()  # apart from the time that it takes to run
      began = time.perf_counter()
      carry, found = write(*arguments)
      tokens, log_probs = jax.device_get(found)
      yield Words(tokens, log_probs, time.perf_counter() - began)

  def read(self, params: Any, variables: Any, tokens: Int[np.ndarray, "B T"]) -> Carry:
    """After the beginning of all texts, in one pass, or in several to bound the memory that attention takes."""
    empty = self._start(params, variables, tokens.shape[0])
    pieces = range(0, tokens.shape[1], self._piece)
    return functools.reduce(
      lambda carry, first: self._read(params, variables, carry, tokens[:, first : first + self._piece]), pieces, empty
    )

  @property
  def _piece(self) -> int:
    return min(self.cache_len or WORDS_READ_AT_ONCE, WORDS_READ_AT_ONCE)

  @functools.cached_property
  def _start(self) -> Any:
    @functools.partial(jax.jit, static_argnums=2)
    def start(params: Any, variables: Any, batch_size: int) -> Carry:
      model = evaluated(self.structure, params, variables)
      state = model.init_state(batch_size, self.cache_len)
      hidden = jax.eval_shape(lambda: model.extend(jnp.zeros((batch_size, 1), jnp.int32), state)[0][:, 0])
      return Carry(state, jnp.zeros(hidden.shape, hidden.dtype))

    return start

  @functools.cached_property
  def _read(self) -> Any:
    @jax.jit
    def read(params: Any, variables: Any, carry: Carry, tokens: Int[Array, "B T"]) -> Carry:
      hidden, state = evaluated(self.structure, params, variables).extend(tokens, carry.state)
      return Carry(state, hidden[:, -1])

    return read

  @functools.cached_property
  def write(self) -> Any:
    """The compiled program for the next `steps` words, (tokens, log_probs) [B, steps] each, after a `Carry`.

    Its arguments: params, variables, the carry, words and whether they are given [B, steps], a key, and the place in
    the texts of the first one.
    """

    @functools.partial(jax.jit, donate_argnums=2)
    def write(
      params: Any, variables: Any, carry: Carry, given: jax.Array, is_given: jax.Array, key: jax.Array, first: jax.Array
    ) -> tuple[Carry, tuple[jax.Array, jax.Array]]:
      model = evaluated(self.structure, params, variables)

      def step(carry: Carry, place: tuple[jax.Array, ...]) -> tuple[Carry, tuple[jax.Array, jax.Array]]:
        number, given, is_given = place
        log_probs = model.log_probs(carry.hidden)
        chosen = sample(log_probs, jax.random.fold_in(key, number), self.sampling)
        token = jnp.where(is_given, given, chosen)
        hidden, state = model.extend(token[:, None], carry.state)
        return Carry(state, hidden[:, 0]), (token, jnp.take_along_axis(log_probs, token[:, None], axis=1)[:, 0])

      places = first + jnp.arange(self.steps), given.T, is_given.T
      carry, (tokens, log_probs) = jax.lax.scan(step, carry, places)
      return carry, (tokens.T, log_probs.T)

    return write


def continuations(parts: Sequence[np.ndarray], prompts: Sequence[Sequence[int]], num_tokens: int) -> list[np.ndarray]:
  """What came after each prompt, of tokens or log_probs [B, T]: `num_tokens` each, without those of the prompt."""
  joined = np.concatenate(parts, axis=1)
  shortest = min(len(prompt) for prompt in prompts)
  begins = [len(prompt) - shortest for prompt in prompts]
  return [row[begin : begin + num_tokens] for row, begin in zip(joined, begins, strict=True)]
