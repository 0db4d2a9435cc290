"""Sliding-window evaluation (`lm.windows`) against one window at a time: seconds for a window, side by side.

    python -m benchmarks.windows                                      # the model of configs/lm/wikitext2_small.py
    python -m benchmarks.windows --config=wikitext103                 # that of the paper

The loop is what one writes down first: a compiled pass over one window, with the vocabulary at all of its positions,
of which the last one is kept; once with the adaptive softmax of the model and once with all logits (`log_probs`). What
can be saved is vocabulary, the last layer and small products; the other layers see each word at another position in
each window, so that a deep model over few words gains little. Contenders take turns in one process and the median of
their times is shown: trust the ratios, not the seconds.
"""

import functools
import importlib
import platform
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax

import lm.model
import mgk_jax
from benchmarks import timing, vocabulary
from benchmarks.timing import Contender, Measurement, Program
from lm import datasets, windows
from lm.trained import evaluated
from lm.windows import Protocol, Scorer, Windows
from mgk_jax import console, training
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
    words, shares = config.vocab_size, vocabulary.zipf(config.vocab_size)
    self.tokens = np.random.default_rng(0).choice(words, window + 10 * self.batch_size, p=shares)

  def _text(self, num_windows: int) -> Windows:
    """A text of so many windows that are not the first."""
    return Windows(self.tokens[: self.protocol.window + num_windows + 1].astype(np.int32), self.protocol)

  def _score(self, params, variables, tokens: jax.Array, targets: jax.Array, *, all_logits: bool) -> jax.Array:
    """The last position of a window, and all others for nothing."""
    model = evaluated(self.structure, params, variables)
    if not all_logits:
      return model.nll(tokens, targets)[0, -1]
    log_probs = model.log_probs(model.hidden(tokens))
    return -jnp.take_along_axis(log_probs, targets[..., None], axis=-1)[0, -1, 0]

  def batched(self) -> Contender:
    """`lm.windows`, one batch."""

    def prepare() -> Program:
      scorer = Scorer(self.structure, self.mesh, self.protocol, self.batch_size)
      text = self._text(self.batch_size)

      def run() -> None:
        assert sum(number for number, _ in scorer.losses(*self.arrays, text, first=1)) == self.batch_size

      return Program(run)

    return Contender(BATCHED, prepare)

  def loop(self, *, all_logits: bool) -> Contender:
    """One window."""
    score = functools.partial(self._score, all_logits=all_logits)
    tokens = self.tokens[None, : self.protocol.window + 1].astype(np.int32)
    arguments = *self.arrays, tokens[:, :-1], tokens[:, 1:]
    return Contender(DENSE_LOOP if all_logits else LOOP, lambda: timing.compiled(score, *arguments))

  def largest_difference(self, num_windows: int) -> float:
    """Between −log p of the first words by `lm.windows` and by a window at a time with all logits."""
    scorer = Scorer(self.structure, self.mesh, self.protocol, self.batch_size)
    text = self._text(num_windows)
    batched = np.concatenate([losses for _, losses in scorer.losses(*self.arrays, text, first=1)])
    score = jax.jit(functools.partial(self._score, all_logits=True))
    window = self.protocol.window
    pieces = (text.tokens[None, start : start + window + 1] for start in range(1, num_windows + 1))
    alone = np.array([score(*self.arrays, piece[:, :-1], piece[:, 1:]) for piece in pieces])
    return float(np.max(np.abs(batched - alone)))

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
  parser = console.parser("benchmarks.windows", __doc__)
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
  number = measured.batch_size
  print(f"\nlargest difference of −log p over {number} windows: {measured.largest_difference(number):.1e}")


if __name__ == "__main__":
  timing.keep_memory()
  main()
