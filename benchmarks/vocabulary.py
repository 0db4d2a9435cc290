"""The adaptive softmax against the dense one over the same vocabulary: time and memory, forward and backward.

    python -m benchmarks.vocabulary                                   # 8 × 256 words of WikiText-103: a minute or two
    python -m benchmarks.vocabulary --corpus=prepared/wikitext103     # with the frequencies of a prepared corpus

What the adaptive softmax costs depends on how rare the words are. Words are drawn by their frequency: from the counts
of a prepared corpus or else from `ANCHORS`, points of the curve of frequency by rank between which it is a power law.
Contenders take turns in one process and the median of their times is shown: trust the ratios, not the seconds. The
dense softmax needs some 8 GB here.
"""

import platform
from collections.abc import Mapping, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import mgk_jax
from benchmarks import timing
from benchmarks.timing import Contender
from lm import datasets
from lm.corpus import Corpus
from mgk_jax import console
from mgk_jax.kernels.cross_entropy import linear_cross_entropy

CUTOFFS = (20_000, 40_000, 200_000)
DENSE, ADAPTIVE = "dense softmax", "adaptive softmax"
WIKITEXT = datasets.get("wikitext103")

# Rank and share of text. The frequent words as in WikiText-2, whose articles are a part of WikiText-103; the last word
# of WikiText-103 comes three times, as rarer ones are <unk>.
ANCHORS: Mapping[int, float] = {
  1: 0.0542,
  10: 0.0164,
  100: 7.00e-4,
  1_000: 9.72e-5,
  10_000: 7.66e-6,
  WIKITEXT.vocab_size: 3 / WIKITEXT.num_tokens["train"],
}


def profile(anchors: Mapping[int, float], vocab_size: int) -> np.ndarray:
  """p of words by rank, [vocab_size]: power laws between the anchors, which are ranks from 1 on."""
  ranks = np.arange(1, vocab_size + 1)
  shares = np.exp(np.interp(np.log(ranks), np.log(list(anchors)), np.log(list(anchors.values()))))
  return shares / shares.sum()


def zipf(vocab_size: int) -> np.ndarray:
  """p of words by rank where the word of rank r comes 1/r as often as the first."""
  return profile({1: 1.0, vocab_size: 1 / vocab_size}, vocab_size)


def contenders(
  shares: np.ndarray, cutoffs: Sequence[int], features: int, num_words: int, *, dense: bool = True
) -> list[Contender]:
  """Both softmaxes, each with derivatives by outputs of the model and by all its parameters.

  Args:
    shares: p of the words, by rank.
    cutoffs: of the adaptive softmax.
    features: D.
    num_words: how many are predicted.
    dense: whether the one that has all logits at once takes part.
  """
  V, random = len(shares), np.random.default_rng(0)
  targets = jnp.asarray(random.choice(V, num_words, p=shares), jnp.int32)
  hidden = jnp.asarray(random.standard_normal((num_words, features)), jnp.float32)
  graph, state = nnx.split(mgk_jax.AdaptiveVocabulary(V, features, cutoffs, rngs=nnx.Rngs(0)))
  params, treedef = jax.tree.flatten(state)
  table = jnp.asarray(random.normal(0, 0.02, (V, features)), jnp.float32)
  bias = jnp.zeros(V)

  def adaptive(hidden: jax.Array, *params: jax.Array) -> jax.Array:
    return nnx.merge(graph, jax.tree.unflatten(treedef, params)).nll(hidden, targets)

  def all_at_once(hidden: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    log_probs = jax.nn.log_softmax(hidden @ table.T + bias)
    return -jnp.take_along_axis(log_probs, targets[:, None], axis=1)[:, 0]

  def in_chunks(hidden: jax.Array, table: jax.Array, bias: jax.Array) -> jax.Array:
    return linear_cross_entropy(hidden, table, bias, targets)

  edges = np.array([0, *cutoffs, V])
  sizes, held = np.diff(edges), np.histogram(targets, edges)[0]
  logits = num_words * (sizes[0] + len(cutoffs)) + np.sum(held[1:] * sizes[1:])
  product = 3 * 2 * features  # forward, and backward by either factor
  found = [
    timing.gradient(ADAPTIVE, adaptive, (hidden, *params), float(product * logits)),
    timing.gradient(f"{DENSE}, in chunks", in_chunks, (hidden, table, bias), float(product * num_words * V)),
  ]
  if dense:
    found.append(timing.gradient(DENSE, all_at_once, (hidden, table, bias), float(product * num_words * V)))
  return found


def main(argv: Sequence[str] | None = None) -> None:
  """Measures what the command line asks for and prints a table."""
  parser = console.parser("benchmarks.vocabulary", __doc__)
  parser.add_argument("--corpus", help="a prepared corpus, with its own vocabulary and frequencies")
  parser.add_argument("--cutoffs", type=int, nargs="*", default=CUTOFFS, help="of the adaptive softmax")
  parser.add_argument(
    "--vocab_size", type=int, default=WIKITEXT.vocab_size, help="without a corpus (default: WikiText-103)"
  )
  parser.add_argument("--features", type=int, default=128, help="width of the model (default 128)")
  parser.add_argument("--batch", type=int, default=8, help="texts (default 8)")
  parser.add_argument("--length", type=int, default=256, help="words of each (default 256)")
  parser.add_argument("--repeats", type=int, default=5, help="rounds of which the median is taken (default 5)")
  parser.add_argument("--no-dense", action="store_true", help="leave out the softmax that has all logits at once")
  args = parser.parse_args(argv)
  if args.corpus:
    counts = Corpus(args.corpus).counts
    shares = counts / counts.sum()
  else:
    shares = profile(ANCHORS, args.vocab_size)
  clusters = [shares[a:b].sum() for a, b in zip((0, *args.cutoffs), (*args.cutoffs, len(shares)), strict=True)]
  print(f"forward and backward, float32, {args.batch} × {args.length} words, {len(shares):,} words in the vocabulary")
  print(f"shares of the clusters: {', '.join(f'{share:.2%}' for share in clusters)}")
  print(f"{platform.machine()}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n")
  words = args.batch * args.length
  measurements = timing.measure(
    contenders(shares, args.cutoffs, args.features, words, dense=not args.no_dense), args.repeats
  )
  print(timing.table(measurements, [DENSE, f"{DENSE}, in chunks"]))


if __name__ == "__main__":
  timing.keep_memory()
  main()
