"""The floating-point operations of the models' matrix products, counted from their settings.

Counted: every product of an [m, k] with a [k, n] matrix as 2·m·n·k, at the full static length, padding included. Only
what the mathematics needs, in the cheapest form that the kernels have:

- softmax: one score product q·k per pair of positions, one product of the weights with the values.
- mgk: M score products and one value product, with the soft and with the hard E step.
- smgk: one score product and one value product; q·b and k·b for the M shifts; with the soft E step the product of the
  factors, M wide for each pair. Variances that differ between components take that form away: as mgk.
- linear, mlk, smlk: key features with values and query features with their sum, each with a column for the normaliser;
  the random features of feature_map="favor" as the products that they are.
- causal: T(T + 1)/2 pairs instead of T². Linear attention has no pairs and costs the same (its recurrent form).
- adaptive softmax: the head for each word; of each other cluster, and of projections, the share of words that it has.
- prior="em": in training, the scores in the responsibilities once more, without a gradient; for smgk only the factors'
  product, since the score product cancels in them.

Training counts three times the forward pass: each product has a gradient by either factor, of its size each. Random
features count twice, as their projection is not trained.

Not counted: exponentials, sums and all else elementwise (softmax, layer norms, squared norms of keys, GELU, dropout),
embedding look-ups, sums over responsibilities, the optimiser, products inside a feature map of your own, and what an
implementation computes again (remat, the scores in the backward pass of blocked attention, products inside a chunk of
causal linear attention) or saves (padding past an example's length).

Why not XLA's `cost_analysis`: it counts the body of a loop once, however often it runs, and blocked kernels are loops.
"""

import dataclasses
import itertools
import math
from collections.abc import Sequence

from mgk_jax.kernels import feature_maps
from mgk_jax.nn import adaptive, choices, names
from mgk_jax.nn.config import ClassifierConfig, DualEncoderConfig, EncoderConfig, LanguageModelConfig

Config = EncoderConfig | LanguageModelConfig


@dataclasses.dataclass(frozen=True)
class Flops:
  """The count for one batch. The parts, all but `em`, are those of one forward pass.

  Attributes:
    projections: queries, keys, values and outputs.
    random_features: of feature_map="favor".
    attention_scores: queries with keys; with shifted keys also queries and keys with shifts, and the factors' product;
      in linear attention query features with the sum over keys.
    attention_values: weights, or key features, with values.
    mlp: of all blocks.
    classifier: of the pooled outputs; of a language model, the softmax, and the projections of embeddings.
    em: what re-estimating priors adds to a training step.
    num_tokens: in the batch, padding included.
  """

  projections: int
  random_features: int
  attention_scores: int
  attention_values: int
  mlp: int
  classifier: int
  em: int
  num_tokens: int

  @property
  def forward(self) -> int:
    """Of a forward pass."""
    attention = self.projections + self.random_features + self.attention_scores + self.attention_values
    return attention + self.mlp + self.classifier

  @property
  def training(self) -> int:
    """Of a training step, forward and backward."""
    return 3 * self.forward - self.random_features + self.em

  @property
  def forward_per_token(self) -> float:
    """Of a forward pass, by tokens; it grows with the length unless attention is linear."""
    return self.forward / self.num_tokens


def training_flops(config: ClassifierConfig | DualEncoderConfig, batch_size: int, length: int) -> Flops:
  """The FLOPs of a `Classifier`, or of a `DualEncoder`, which encodes two sequences for each example.

  Args:
    config: the model's settings.
    batch_size: examples in a batch.
    length: static length of the sequences, at most config.max_len.

  Raises:
    ValueError, TypeError: sizes that the model does not take, or settings of something else.
  """
  if not isinstance(config, ClassifierConfig):
    raise TypeError(f"config: expected a ClassifierConfig or DualEncoderConfig, got {type(config).__name__}")
  B, T = choices.positive_int("batch_size", batch_size), choices.positive_int("length", length)
  if T > config.max_len:
    raise ValueError(f"length: expected at most max_len={config.max_len}, got {T}")
  is_dual = isinstance(config, DualEncoderConfig)
  sequences = 2 * B if is_dual else B
  D, C = config.emb_dim, config.classifier_dim
  return Flops(
    **_blocks(config, sequences, T + (config.pooling == "cls")),
    classifier=B * 2 * C * ((4 * D if is_dual else D) + config.num_classes),
    num_tokens=sequences * T,
  )


def language_model_flops(
  config: LanguageModelConfig, batch_size: int, length: int, shares: Sequence[float] | None = None
) -> Flops:
  """The FLOPs of a `LanguageModel`.

  Args:
    config: the model's settings.
    batch_size: segments in a batch.
    length: words of a segment.
    shares: how many of the words belong to each cluster of the adaptive softmax, as parts of 1; None for Zipf's law,
      by which the word of rank r comes with a probability proportional to 1 / r.

  Raises:
    ValueError, TypeError: sizes that are not positive, or another number of shares than of clusters.
  """
  B, T = choices.positive_int("batch_size", batch_size), choices.positive_int("length", length)
  D, edges = config.emb_dim, [0, *config.cutoffs, config.vocab_size]
  sizes = [last - first for first, last in itertools.pairwise(edges)]
  if shares is None:
    harmonic = [math.log(edge) + 0.5772 if edge else 0.0 for edge in edges]
    shares = [(last - first) / harmonic[-1] for first, last in itertools.pairwise(harmonic)]
  if len(shares) != len(sizes):
    raise ValueError(f"shares: expected one for each of {len(sizes)} clusters, got {len(shares)}")
  widths = adaptive.cluster_widths(config.vocab_size, D, config.cutoffs, config.div_val)
  softmax = widths[0] * (sizes[0] + len(sizes) - 1)
  softmax += sum(
    round(share * width * size) for share, width, size in zip(shares[1:], widths[1:], sizes[1:], strict=True)
  )
  projections = 0
  if config.div_val > 1:  # of embeddings, of the head, and of the words of other clusters
    embedding = sum(round(share * width * D) for share, width in zip(shares, widths, strict=True))
    projections = embedding + widths[0] * D + (embedding - round(shares[0] * widths[0] * D))
  return Flops(**_blocks(config, B, T), classifier=B * T * 2 * (softmax + projections), num_tokens=B * T)


def _blocks(config: Config, sequences: int, T: int) -> dict[str, int]:
  """The parts of all blocks."""
  D, N, H = config.emb_dim, config.num_heads, config.head_dim
  variant = names.VARIANTS[config.attention]
  M = variant.get("num_components", config.num_components)
  head = _linear_head(config, M, T) if variant["kernel"] == "linear" else _quadratic_head(config, M, T)
  heads, positions = config.num_layers * sequences * N, config.num_layers * sequences * T
  return {
    "projections": positions * 2 * D * N * H * (3 + (M if variant["keys"] == "projected" else 1)),
    **{part: heads * flops for part, flops in head.items()},
    "mlp": positions * 2 * 2 * D * config.mlp_dim,
  }


def _quadratic_head(config: Config, M: int, T: int) -> dict[str, int]:
  """The parts of one head for one sequence."""
  H = config.head_dim
  pairs = T * (T + 1) // 2 if config.is_causal else T * T
  product = 2 * pairs * H
  if config.attention == "smgk" and not isinstance(config.variance, tuple):
    shifts = 2 * (2 * T * H * M)
    estimate = 2 * pairs * M if config.estep == "soft" and M > 1 else 0
    scores = product + shifts + estimate
  else:
    scores = estimate = M * product
  em = estimate if config.prior == "em" and M > 1 else 0  # one component has nothing to estimate
  return {"random_features": 0, "attention_scores": scores, "attention_values": product, "em": em}


def _linear_head(config: Config, M: int, T: int) -> dict[str, int]:
  """The parts of one head for one sequence."""
  H = config.head_dim
  F = feature_maps.num_features(config.feature_map, H)
  product = 2 * T * F * (H + 1)
  features = 2 * T * (1 + M) * H * F if config.feature_map == "favor" else 0
  return {"random_features": features, "attention_scores": product, "attention_values": product, "em": 0}
