"""Adaptive input embedding and adaptive softmax for large vocabularies, with one table for both.

Words are numbered by frequency and cut into clusters. The head of the softmax has a logit for each word of the first
cluster and one for each further cluster as a whole, whose words share its probability by a softmax of their own:

    p(w) = p(w | head)                          w in the first cluster
    p(w) = p(cluster | head) · p(w | cluster)   w in another

So a word costs the logits of its own cluster and of the head, not those of the vocabulary. With `div_val` > 1,
cluster i has vectors of features / div_val^i dimensions and a projection. The scheme is that of Transformer-XL.
"""

import itertools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx
from flax.typing import Dtype
from jaxtyping import Array, Float, Int

from mgk_jax.kernels.cross_entropy import linear_cross_entropy
from mgk_jax.kernels.rows import over_rows

WEIGHT_STD, PROJECTION_STD = 0.02, 0.01


class AdaptiveVocabulary(nnx.Module):
  """A vocabulary as embeddings of words and, with the same vectors, as a softmax over words.

  Parameters: `tables`, [cluster size, features of the cluster] each; `projections`, [features of the cluster, features]
  each, where div_val > 1; `bias` [vocab_size]; `cluster_weight` [clusters − 1, features] and `cluster_bias`. What is
  not tied the softmax has once more: `softmax_tables`, and `softmax_projections` of the clusters in question.

  Args:
    vocab_size: number of words, which are numbered by falling frequency.
    features: D, of the model.
    cutoffs: the first word of each cluster but the first; none for a plain softmax.
    div_val: by what the dimensions of each cluster's vectors are divided against those of the one before.
    tie_embeddings: whether the softmax has the tables of the embeddings.
    tie_projections: whether it has their projections: for all clusters, or one answer for each.
    dtype: in which embeddings are returned; None for that of the parameters.
    param_dtype: of the parameters.
    rngs: for the parameters.

  Raises:
    ValueError: cutoffs that are not ascending within the vocabulary, more divisions than there are features, or
      another number of ties than of clusters.

  Example:
    >>> vocabulary = mgk_jax.AdaptiveVocabulary(1000, 16, cutoffs=(100, 500), rngs=nnx.Rngs(0))
    >>> [table.shape for table in vocabulary.tables]
    [(100, 16), (400, 16), (500, 16)]
    >>> vocabulary.log_probs(jnp.ones((3, 16))).shape
    (3, 1000)
  """

  def __init__(
    self,
    vocab_size: int,
    features: int,
    cutoffs: Sequence[int] = (),
    *,
    div_val: int = 1,
    tie_embeddings: bool = True,
    tie_projections: bool | Sequence[bool] = True,
    dtype: Dtype | None = None,
    param_dtype: Dtype = jnp.float32,
    rngs: nnx.Rngs,
  ):
    widths = cluster_widths(vocab_size, features, cutoffs, div_val)
    ties = ties_of_projections(tie_projections, len(widths))
    self.vocab_size, self.features, self.dtype = vocab_size, features, dtype
    self.edges = (0, *cutoffs, vocab_size)

    def normal(std: float, *shape: int) -> nnx.Param:
      return nnx.Param(nnx.initializers.normal(std)(rngs.params(), shape, param_dtype))

    def tables() -> nnx.List:
      sizes = [b - a for a, b in itertools.pairwise(self.edges)]
      return nnx.List([normal(WEIGHT_STD, size, width) for size, width in zip(sizes, widths, strict=True)])

    self.tables = tables()
    self.projections = nnx.List([normal(PROJECTION_STD, width, features) for width in widths if div_val > 1])
    self.bias = nnx.Param(jnp.zeros(vocab_size, param_dtype))
    # None instead of empty arrays, which checkpoints cannot hold.
    self.cluster_weight = normal(WEIGHT_STD, len(cutoffs), features) if cutoffs else nnx.data(None)
    self.cluster_bias = nnx.Param(jnp.zeros(len(cutoffs), param_dtype)) if cutoffs else nnx.data(None)
    self.softmax_tables = nnx.data(None) if tie_embeddings else tables()
    self.softmax_projections = nnx.Dict(
      {str(i): normal(PROJECTION_STD, width, features) for i, width in enumerate(widths) if div_val > 1 and not ties[i]}
    )

  @property
  def num_clusters(self) -> int:
    """The first one included."""
    return len(self.edges) - 1

  def embed(self, tokens: Int[Array, "*batch"]) -> Float[Array, "*batch D"]:
    """The words' vectors times √D."""
    total: Any = 0
    for i, table in enumerate(self.tables):
      first, last = self.edges[i], self.edges[i + 1]
      inside = (tokens >= first) & (tokens < last)
      vectors = jnp.take(table[...], jnp.clip(tokens - first, 0, last - first - 1), axis=0)
      vectors = vectors @ self.projections[i][...] if self.projections else vectors
      total = total + jnp.where(inside[..., None], vectors, 0)
    return (total * self.features**0.5).astype(self.dtype or total.dtype)

  def nll(self, hidden: Float[Array, "*batch D"], targets: Int[Array, "*batch"]) -> Float[Array, "*batch"]:
    """−log p(target), in float32. Logits exist for some rows at a time; those of a cluster for its own words only."""
    projections = [self._projection(i) for i in range(self.num_clusters)]
    tails = [(self._table(i), self._bias(i)) for i in range(1, self.num_clusters)]
    return over_rows(self._nll_of_rows, (hidden, targets), (projections, [self._head(), *tails]))

  def _nll_of_rows(self, rows: tuple[jax.Array, jax.Array], weights: Any) -> jax.Array:
    """`nll` of the rows that a device holds; `weights` are projections, and vectors with biases, of each cluster."""
    hidden, words = rows[0].reshape(-1, self.features), rows[1].reshape(-1)
    projections, layers = weights
    weight, bias = layers[0]
    cluster = jnp.searchsorted(jnp.asarray(self.edges[1:-1], words.dtype), words, side="right")
    in_head = jnp.where(cluster == 0, words, self.edges[1] + cluster - 1)
    losses = linear_cross_entropy(_project(hidden, projections[0]), weight, bias, in_head)
    for i in range(1, self.num_clusters):
      # The cluster's words first: the rest of the rows is not computed.
      order = jnp.argsort(cluster != i, stable=True)
      inside = jnp.clip(words[order] - self.edges[i], 0, self.edges[i + 1] - self.edges[i] - 1)
      weight, bias = layers[i]
      vectors = _project(hidden[order], projections[i])
      part = linear_cross_entropy(vectors, weight, bias, inside, jnp.sum(cluster == i))
      losses = losses.at[order].add(part)
    return losses.reshape(rows[1].shape)

  def log_probs(self, hidden: Float[Array, "*batch D"]) -> Float[Array, "*batch vocab"]:
    """log p of all words, for a few rows, as in generation: memory O(rows · vocab_size)."""
    weight, bias = self._head()
    head = jax.nn.log_softmax(_linear(_project(hidden, self._projection(0)), weight, bias))
    parts = [head[..., : self.edges[1]]]
    for i in range(1, self.num_clusters):
      inside = jax.nn.log_softmax(_linear(_project(hidden, self._projection(i)), self._table(i), self._bias(i)))
      parts.append(head[..., self.edges[1] + i - 1, None] + inside)
    return jnp.concatenate(parts, axis=-1)

  def _projection(self, i: int) -> jax.Array | None:
    """From the model's outputs to the dimensions of cluster i, [features of the cluster, features]."""
    return self.softmax_projections.get(str(i), self.projections[i])[...] if self.projections else None

  def _table(self, i: int) -> jax.Array:
    """The vectors of cluster i in the softmax."""
    return (self.tables if self.softmax_tables is None else self.softmax_tables)[i][...]

  def _bias(self, i: int) -> jax.Array:
    return self.bias[...][self.edges[i] : self.edges[i + 1]]

  def _head(self) -> tuple[jax.Array, jax.Array]:
    """Weights and biases of the first cluster's words and of the other clusters."""
    if self.cluster_weight is None or self.cluster_bias is None:
      return self._table(0), self._bias(0)
    weight = jnp.concatenate([self._table(0), self.cluster_weight[...]])
    return weight, jnp.concatenate([self._bias(0), self.cluster_bias[...]])


def _project(x: jax.Array, projection: jax.Array | None) -> jax.Array:
  return x if projection is None else x @ projection.T


def _linear(x: jax.Array, weight: jax.Array, bias: jax.Array) -> jax.Array:
  return jnp.einsum("...d,cd->...c", x, weight, preferred_element_type=jnp.float32) + bias


def cluster_widths(vocab_size: int, features: int, cutoffs: Sequence[int], div_val: int) -> list[int]:
  """The dimensions of each cluster's vectors; ValueError for what makes no clusters."""
  edges = [0, *cutoffs, vocab_size]
  if any(a >= b for a, b in itertools.pairwise(edges)):
    raise ValueError(f"cutoffs: expected ascending numbers in (0, vocab_size = {vocab_size}), got {list(cutoffs)}")
  widths = [features // div_val**i for i in range(len(edges) - 1)] if div_val >= 1 else [0]
  if not all(widths):
    raise ValueError(f"div_val: expected at least one dimension in each cluster, got div_val = {div_val}: {widths}")
  return widths


def ties_of_projections(tie_projections: bool | Sequence[bool], clusters: int) -> list[bool]:
  """One answer for each cluster; ValueError for another number of them."""
  ties = [tie_projections] * clusters if isinstance(tie_projections, bool) else list(tie_projections)
  if len(ties) != clusters or not all(isinstance(tie, bool) for tie in ties):
    raise ValueError(f"tie_projections: expected a bool, or one for each of {clusters} clusters, got {ties}")
  return ties
