"""The model of a task from a config, and what it is trained to do."""

from typing import Any

import jax.numpy as jnp
import ml_collections
import optax
from flax import nnx

import mgk_jax
from lra.task import Task
from mgk_jax.training import Batch, Sums


def model_config(config: ml_collections.ConfigDict, task: Task) -> mgk_jax.ClassifierConfig:
  """The settings of the model: those of the config, and those that the task decides.

  Raises:
    ValueError, TypeError: a setting that is not allowed; the message lists what is.
  """
  kind = mgk_jax.ClassifierConfig if task.num_sequences == 1 else mgk_jax.DualEncoderConfig
  settings = config.model.to_dict()
  return kind(vocab_size=task.vocab_size, max_len=config.data.length, num_classes=task.num_classes, **settings)


def make_model(config: mgk_jax.ClassifierConfig, rngs: nnx.Rngs) -> nnx.Module:
  """A classifier of one sequence or of two."""
  if isinstance(config, mgk_jax.DualEncoderConfig):
    return mgk_jax.DualEncoder(config, rngs=rngs)
  return mgk_jax.Classifier(config, rngs=rngs)


def classify(model: Any, batch: Batch, rngs: nnx.Rngs | None) -> Sums:
  """Cross-entropy and right answers, summed over the examples of a batch; with `rngs` as in training."""
  mode = {"deterministic": rngs is None, "rngs": rngs}
  if "tokens" in batch:
    logits = model(batch["tokens"], lengths=batch["lengths"], **mode)
    tokens = jnp.sum(batch["lengths"])
  else:
    pair = {name: batch[name] for name in ("lengths1", "lengths2")}
    logits = model(batch["tokens1"], batch["tokens2"], **pair, **mode)
    tokens = jnp.sum(batch["lengths1"] + batch["lengths2"])
  losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])
  right = jnp.argmax(logits, axis=-1) == batch["labels"]
  weights = batch["weights"]
  return {
    "loss": jnp.sum(losses * weights),
    "accuracy": jnp.sum(right * weights),
    "count": jnp.sum(weights),
    "tokens": tokens,
  }
