"""Tokens per second in generation, after a short and after a long text.

    python -m benchmarks.decoding                          # after 1,024 and 16,384 words: some minutes
    python -m benchmarks.decoding --lengths 256 4096 --batch 4

The model is that of the paper for WikiText-103. Linear attention (mlk) has a state of constant size; Gaussian attention
(mgk) a cache of the last 256 words, or one of all words so far, whose cost grows. Contenders take turns in one process
and the median of their times is shown: trust the ratios, not the seconds.
"""

import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

import mgk_jax
from benchmarks import timing
from benchmarks.timing import Contender, Measurement, Program
from lm import datasets
from lm.generator import Generator
from lm.sampling import Sampling
from mgk_jax import console, training
from mgk_jax.training import state as states

WORDS = 32  # that are generated in each round


class Variant(NamedTuple):
  """An attention, and how many words it sees: a number, or None for all so far."""

  attention: str
  num_heads: int
  cache_len: int | None

  def __str__(self) -> str:
    linear = self.attention in ("linear", "mlk", "smlk")
    sees = "constant state" if linear else f"the last {self.cache_len}" if self.cache_len else "all words"
    return f"{self.attention} {self.num_heads} heads, {sees}"


VARIANTS = (Variant("mlk", 4, 256), Variant("linear", 8, 256), Variant("mgk", 4, 256), Variant("mgk", 4, None))


def contender(variant: Variant, config: mgk_jax.LanguageModelConfig, length: int, batch: int) -> Contender:
  """Generation of `WORDS` words after a text of `length` words."""

  def prepare() -> Program:
    structure, state = states.create(
      lambda rngs: mgk_jax.LanguageModel(config, rngs=rngs), optax.sgd(1.0), training.make_mesh(1, 1), 0
    )
    generator = Generator(structure, Sampling(), variant.cache_len or length + WORDS, steps=WORDS)
    text = np.random.default_rng(0).integers(0, config.vocab_size, (batch, length), np.int32)
    arrays = state.params, state.variables
    carry = generator.read(*arrays, text)
    nothing = np.zeros((batch, WORDS), np.int32)
    place = nothing, nothing.astype(bool), jax.random.key(0), length
    program = generator.write.lower(*arrays, carry, *place).compile()

    def run() -> None:
      nonlocal carry
      carry, _ = jax.block_until_ready(program(*arrays, carry, *place))

    return Program(run, program.memory_analysis().temp_size_in_bytes)

  return Contender(f"{variant} after {length}", prepare)


def table(variants: Sequence[Variant], lengths: Sequence[int], batch: int, measurements: Sequence[Measurement]) -> str:
  """Tokens per second after each length, and how much slower it is after the longest than after the shortest."""
  seconds = timing.by_name(measurements)
  rows = [["model", *(f"tokens/s after {length:,}" for length in lengths), f"time × after {lengths[0]:,}"]]
  for variant in variants:
    times = [seconds[f"{variant} after {length}"] for length in lengths]
    rows.append([str(variant), *(f"{batch * WORDS / t:,.1f}" for t in times), f"{times[-1] / times[0]:.2f}"])
  return timing.markdown(rows)


def measure(
  variants: Sequence[Variant], lengths: Sequence[int], batch: int, repeats: int, **settings: Any
) -> list[Measurement]:
  """All variants after all lengths; `settings` are those of the models."""

  def config(variant: Variant) -> mgk_jax.LanguageModelConfig:
    return mgk_jax.LanguageModelConfig(attention=variant.attention, num_heads=variant.num_heads, **settings)

  pairs = [(variant, length) for variant in variants for length in lengths]
  return timing.measure([contender(variant, config(variant), length, batch) for variant, length in pairs], repeats)


def main(argv: Sequence[str] | None = None) -> None:
  """Measures what the command line asks for and prints a table."""
  parser = console.parser("benchmarks.decoding", __doc__)
  parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 16_384], help="words so far, ascending")
  parser.add_argument("--batch", type=int, default=1, help="texts at once (default 1)")
  parser.add_argument("--layers", type=int, default=16, help="of the model (default 16)")
  parser.add_argument("--repeats", type=int, default=5, help="rounds of which the median is taken (default 5)")
  args = parser.parse_args(argv)
  vocab_size = datasets.get("wikitext103").vocab_size
  print(f"generation, float32, {args.batch} at once, {vocab_size:,} words in the vocabulary")
  print(f"{platform.machine()}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n")
  settings = {"vocab_size": vocab_size, "num_layers": args.layers}
  measurements = measure(VARIANTS, args.lengths, args.batch, args.repeats, **settings)
  print(table(VARIANTS, args.lengths, args.batch, measurements))


if __name__ == "__main__":
  timing.keep_memory()
  main()
