"""Sliding-window evaluation (`lm.windows`) against one window at a time: seconds for a window, side by side.

    python -m benchmarks.windows                                      # the model of configs/lm/wikitext2_small.py
    python -m benchmarks.windows --config=wikitext103                 # that of the paper

The loop is what one writes down first: a compiled pass over one window, with the vocabulary at all of its positions,
of which the last one is kept; once with the adaptive softmax of the model and once with all logits (`log_probs`). What
can be saved is vocabulary, the last layer and small products; the other layers see each word at another position in
each window, so that a deep model over few words gains little. Contenders take turns in one process and the median of
their times is shown: trust the ratios, not the seconds.
"""

import argparse
import importlib
import platform
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

import lm.model
import mgk_jax
from benchmarks import timing
from benchmarks.timing import Contender, Measurement, Program
from lm import datasets, windows
from lm.trained import evaluated
from lm.windows import Protocol, Scorer, Windows
from mgk_jax import training
from mgk_jax.training import state as states

BATCHED, LOOP, DENSE_LOOP = "batched", "a window at a time", "a window at a time, all logits"


class Measured:
  """The contenders for one model; each times `num_windows` windows a round."""

  def __init__(self, config: mgk_jax.LanguageModelConfig, window: int, batch_size: int | None = None):
    self.mesh = training.make_mesh(1, 1, devices=jax.devices()[:1])
    self.structure, state = states.create(
      lambda rngs: mgk_jax.LanguageModel(config, rngs=rngs), optax.sgd(1.0), self.mesh, 0
    )
    self.arrays = state.params, state.variables
    self.protocol = Protocol(window)
    self.batch_size = batch_size or windows.default_batch_size(config, window, 1)
    ranks = np.arange(1, config.vocab_size + 1)
    shares = 1 / ranks / np.sum(1 / ranks)
    self.tokens = np.random.default_rng(0).choice(config.vocab_size, window + 10 * self.batch_size, p=shares)

  def batched(self) -> Contender:
    """`lm.windows`, one batch."""

    def prepare() -> Program:
      scorer = Scorer(self.structure, self.mesh, self.protocol, self.batch_size)
      text = Windows(self.tokens[: self.protocol.window + self.batch_size + 1].astype(np.int32), self.protocol)

      def run() -> None:
        assert sum(number for number, _ in scorer.losses(*self.arrays, text, first=1)) == self.batch_size

      return Program(run)

    return Contender(BATCHED, prepare)

  def loop(self, *, all_logits: bool) -> Contender:
    """One window."""

    def score(params, variables, tokens: jax.Array, targets: jax.Array) -> jax.Array:
      model = evaluated(self.structure, params, variables)
      if not all_logits:
        return model.nll(tokens, targets)[0, -1]
      log_probs = model.log_probs(model.hidden(tokens))
      return -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[0, -1, 0]

    tokens = self.tokens[None, : self.protocol.window + 1].astype(np.int32)
    arguments = *self.arrays, tokens[:, :-1], tokens[:, 1:]
    return Contender(DENSE_LOOP if all_logits else LOOP, lambda: timing.compiled(score, *arguments))

  def measure(self, repeats: int) -> list[Measurement]:
    """All of them."""
    return timing.measure([self.batched(), *(self.loop(all_logits=x) for x in (False, True))], repeats)

  def table(self, measurements: Sequence[Measurement]) -> str:
    """Milliseconds for a window, and how many times faster the batched form is."""
    seconds = {m.contender.name: m.seconds for m in measurements}
    seconds[BATCHED] /= self.batch_size
    rows = [["evaluation", "ms for a window", "× batched"]]
    rows += [[name, f"{time * 1e3:.2f}", f"{time / seconds[BATCHED]:.1f}"] for name, time in seconds.items()]
    return timing.markdown(rows)


def main(argv: Sequence[str] | None = None) -> None:
  """Measures what the command line asks for and prints a table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--config", default="wikitext2_small", help="one of configs/lm (default wikitext2_small)")
  parser.add_argument("--arg", default="mgk,heads=2", help="of the config (default mgk,heads=2)")
  parser.add_argument("--window", type=int, help="words (default: as in training)")
  parser.add_argument("--batch_size", type=int, help="windows at once (default: what suits the device)")
  parser.add_argument("--repeats", type=int, default=5, help="rounds of which the median is taken (default 5)")
  args = parser.parse_args(argv)
  config = importlib.import_module(f"configs.lm.{args.config}").get_config(args.arg)
  settings = lm.model.model_config(config, datasets.get(config.dataset).vocab_size)
  measured = Measured(settings, args.window or config.data.length, args.batch_size)
  print(f"sliding windows of {measured.protocol.window} words, {args.config}:{args.arg}, {measured.batch_size} at once")
  print(f"{platform.machine()}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n")
  print(measured.table(measured.measure(args.repeats)))


if __name__ == "__main__":
  main()
