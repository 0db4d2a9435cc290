"""The model of a config, and what it is trained to do."""

import functools
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from flax import nnx
from jaxtyping import Array, Bool, Float, Int

import mgk_jax
from mgk_jax.training import Batch, Sums


def model_config(config: ml_collections.ConfigDict, vocab_size: int) -> mgk_jax.LanguageModelConfig:
  """The settings of the model: those of the config, and the size of the corpus's vocabulary.

  Raises:
    ValueError, TypeError: a setting that is not allowed; the message lists what is.
  """
  return mgk_jax.LanguageModelConfig(vocab_size=vocab_size, max_len=config.data.length, **config.model.to_dict())


def maker(config: ml_collections.ConfigDict, vocab_size: int) -> Callable[[nnx.Rngs], mgk_jax.LanguageModel]:
  """Makes the model that a config trains; its parameters have the same names with and without a carried state."""
  settings = model_config(config, vocab_size)
  if config.data.get("carry_state"):
    return functools.partial(_carrying, settings, config.batch_size)
  return functools.partial(_plain, settings)


def _plain(settings: mgk_jax.LanguageModelConfig, rngs: nnx.Rngs) -> mgk_jax.LanguageModel:
  return mgk_jax.LanguageModel(settings, rngs=rngs)


def _carrying(settings: mgk_jax.LanguageModelConfig, batch_size: int, rngs: nnx.Rngs) -> mgk_jax.LanguageModel:
  return CarryingLanguageModel(settings, batch_size, rngs=rngs)


class Carried(nnx.Variable):
  """What a row of a batch has left behind for the same row of the next one."""


class CarryingLanguageModel(mgk_jax.LanguageModel):
  """A model whose linear attention goes on, from one batch to the next, from the state that the rows have left.

  Gradients end where a batch begins. Positions start again with each segment, so that there are never any that
  training has not seen.
  """

  def __init__(self, config: mgk_jax.LanguageModelConfig, batch_size: int, *, rngs: nnx.Rngs):
    super().__init__(config, rngs=rngs)
    self.carried = nnx.List([Carried(leaf) for leaf in self._split(self.init_state(batch_size))[0]])

  def carry_on(
    self, tokens: Int[Array, "B T"], begins: Bool[Array, "B"], **mode: Any
  ) -> Float[Array, "B T D"]:  # fmt: skip
    """`hidden`, after all that the rows have had so far; where `begins`, after nothing."""
    start, join = self._split(self.init_state(tokens.shape[0]))
    state = [
      jnp.where(begins.reshape(-1, *[1] * (fresh.ndim - 1)), fresh, variable[...])
      for variable, fresh in zip(self.carried, start, strict=True)
    ]
    hidden, after = self.extend(tokens, join(state), positions=jnp.arange(tokens.shape[1]), **mode)
    for variable, leaf in zip(self.carried, self._split(after)[0], strict=True):
      variable[...] = jax.lax.stop_gradient(leaf)
    return hidden

  def _split(self, state: Any) -> tuple[list[jax.Array], Callable[[Sequence[jax.Array]], Any]]:
    """The arrays of a state that rows have, and a function that puts others in their place.

    How many words there were is not among them: each segment counts from 0.
    """
    leaves, treedef = jax.tree.flatten(state)
    places = [place for place, leaf in enumerate(leaves) if leaf.ndim]

    def join(rows: Sequence[jax.Array]) -> Any:
      replaced = dict(zip(places, rows, strict=True))
      return jax.tree.unflatten(treedef, [replaced.get(place, leaf) for place, leaf in enumerate(leaves)])

    return [leaves[place] for place in places], join


def predict(model: Any, batch: Batch, rngs: nnx.Rngs | None) -> Sums:
  """−log p of the targets of a batch, summed; with `rngs` as in training."""
  mode: dict[str, Any] = {"deterministic": rngs is None, "rngs": rngs}
  if "begins" in batch:
    hidden = model.carry_on(batch["tokens"], batch["begins"], **mode)
  else:
    hidden = model.hidden(batch["tokens"], **mode)
  losses = model.losses(hidden, batch["targets"], batch["weights"])
  count = jnp.sum(batch["weights"])
  return {"loss": jnp.sum(losses), "count": count, "tokens": count}


def perplexity(metrics: Mapping[str, float], unit: str) -> dict[str, float]:
  """What the mean loss over segments means, called what it is; of bytes also in bits.

  The words at the beginning of a segment have little before them, so that it is mostly higher than the perplexity of
  the paper's protocol (`lm.evaluate`).
  """
  loss = metrics["loss"]
  found = {"segment_perplexity": math.exp(min(loss, 700.0))}  # the largest float is e^709
  return found | ({"segment_bits_per_byte": loss / math.log(2)} if unit == "byte" else {})


def cluster_shares(config: mgk_jax.LanguageModelConfig, counts: np.ndarray) -> list[float]:
  """How much of a corpus belongs to each cluster of the adaptive softmax, by how often each word comes."""
  edges = [0, *config.cutoffs, len(counts)]
  return [float(counts[first:last].sum() / counts.sum()) for first, last in itertools.pairwise(edges)]
