"""How the next word is chosen from its probabilities."""

import dataclasses

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Int


@dataclasses.dataclass(frozen=True)
class Sampling:
  """A choice of words: p ∝ exp(log p / temperature), of the most probable ones only.

  Attributes:
    temperature: below 1 for likelier words, above 1 for others; 0 for always the most probable one (greedy).
    top_k: so many of the most probable words; None for all.
    top_p: the fewest of the most probable words that have this probability together, after temperature and top_k; None
      for all.
    excluded: words that are never chosen, by number.

  Raises:
    ValueError: a number that is not allowed.
  """

  temperature: float = 1.0
  top_k: int | None = None
  top_p: float | None = None
  excluded: tuple[int, ...] = ()

  def __post_init__(self) -> None:
    """Checks the numbers."""
    if not 0 <= self.temperature < float("inf"):
      raise ValueError(f"temperature: expected 0 (greedy) or a positive number, got {self.temperature}")
    if self.top_k is not None and self.top_k < 1:
      raise ValueError(f"top_k: expected at least 1, got {self.top_k}")
    if self.top_p is not None and not 0 < self.top_p <= 1:
      raise ValueError(f"top_p: expected a probability above 0, got {self.top_p}")


def sample(log_probs: Float[Array, "B V"], key: jax.Array, sampling: Sampling) -> Int[Array, "B"]:
  """One word for each row.

  Args:
    log_probs: log p of all words.
    key: of this choice.
    sampling: how to choose. Of equally probable words the first one counts as the most probable.
  """
  if sampling.excluded:
    log_probs = log_probs.at[..., jnp.array(sampling.excluded)].set(-jnp.inf)
  if sampling.temperature == 0:
    return jnp.argmax(log_probs, axis=-1).astype(jnp.int32)
  logits = log_probs / sampling.temperature
  if sampling.top_k is None and sampling.top_p is None:
    return jax.random.categorical(key, logits).astype(jnp.int32)
  V = logits.shape[-1]
  logits, words = jax.lax.top_k(logits, min(sampling.top_k or V, V))
  if sampling.top_p is not None:
    shares = jax.nn.softmax(logits)
    before = jnp.cumsum(shares, axis=-1) - shares  # a word stays as long as those before it do not suffice
    logits = jnp.where(before < sampling.top_p, logits, -jnp.inf).at[..., 0].set(logits[..., 0])
  chosen = jax.random.categorical(key, logits)
  return jnp.take_along_axis(words, chosen[..., None], axis=-1)[..., 0].astype(jnp.int32)
