"""A small NNX Transformer, once with nnx.MultiHeadAttention and once with MixtureAttention and half the heads.

    python examples/nnx_transformer.py
    python examples/nnx_transformer.py --steps 600 --length 32 --layers 4

The task: does the first digit of a sequence come up in it again? Seconds on a CPU.
"""

import argparse
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import mgk_jax

WIDTH, DIGITS = 32, 16


class Block(nnx.Module):
  """A layer as in any Transformer; `attention` makes the part that is swapped."""

  def __init__(self, attention: Callable[..., nnx.Module], rngs: nnx.Rngs):
    self.norm1, self.norm2 = (nnx.LayerNorm(WIDTH, rngs=rngs) for _ in range(2))
    self.attention = attention(rngs=rngs)
    self.mlp = nnx.Sequential(nnx.Linear(WIDTH, 64, rngs=rngs), nnx.gelu, nnx.Linear(64, WIDTH, rngs=rngs))

  def __call__(self, x: jax.Array) -> jax.Array:
    """[B, T, D] to the same."""
    x = x + self.attention(self.norm1(x))
    return x + self.mlp(self.norm2(x))


class Transformer(nnx.Module):
  """Two logits from the first position."""

  def __init__(self, attention: Callable[..., nnx.Module], layers: int, length: int, rngs: nnx.Rngs):
    self.tokens = nnx.Embed(DIGITS, WIDTH, rngs=rngs)
    self.positions = nnx.Embed(length, WIDTH, rngs=rngs)
    self.blocks = nnx.List([Block(attention, rngs) for _ in range(layers)])
    self.logits = nnx.Linear(WIDTH, 2, rngs=rngs)

  def __call__(self, digits: jax.Array) -> jax.Array:
    """Digits [B, T] to logits [B, 2]."""
    x = self.tokens(digits) + self.positions(jnp.arange(digits.shape[1]))
    for block in self.blocks:
      x = block(x)
    return self.logits(x[:, 0])


def softmax(rngs: nnx.Rngs) -> nnx.Module:
  """What Flax has: four heads."""
  return nnx.MultiHeadAttention(num_heads=4, in_features=WIDTH, decode=False, rngs=rngs)


def mixture(rngs: nnx.Rngs) -> nnx.Module:
  """The same with another name, and two heads of the same width, each with two keys for a position."""
  return mgk_jax.MixtureAttention(num_heads=2, in_features=WIDTH, head_dim=WIDTH // 4, keys="shifted", rngs=rngs)


def examples(random: np.random.Generator, size: int, length: int) -> tuple[jax.Array, jax.Array]:
  """Digits [size, length], in half of which the first one comes again, and whether it does."""
  digits = random.integers(0, DIGITS - 1, (size, length))
  digits[:, 1:] += digits[:, 1:] >= digits[:, :1]  # all but the first digit
  labels = random.integers(0, 2, size)
  digits[np.arange(size), random.integers(1, length, size)] = np.where(labels, digits[:, 0], digits[:, 1])
  return jnp.asarray(digits), jnp.asarray(labels)


@nnx.jit
def train_step(model: Transformer, optimizer: nnx.Optimizer, digits: jax.Array, labels: jax.Array) -> None:
  """One step of AdamW."""

  def loss(model: Transformer) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(digits), labels).mean()

  optimizer.update(model, nnx.grad(loss)(model))


predict = nnx.jit(Transformer.__call__)


def main(argv: Sequence[str] | None = None) -> dict[str, float]:
  """Trains both and returns their accuracies on new sequences."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--steps", type=int, default=200, help="of 128 sequences each (default 200)")
  parser.add_argument("--layers", type=int, default=2, help="of both models (default 2)")
  parser.add_argument("--length", type=int, default=16, help="digits in a sequence (default 16)")
  args = parser.parse_args(argv)
  accuracies = {}
  for attention in (softmax, mixture):
    model = Transformer(attention, args.layers, args.length, nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(5e-3), wrt=nnx.Param)
    random = np.random.default_rng(0)
    for _ in range(args.steps):
      train_step(model, optimizer, *examples(random, 128, args.length))
    digits, labels = examples(np.random.default_rng(1), 1000, args.length)
    accuracies[attention.__name__] = float(jnp.mean(jnp.argmax(predict(model, digits), axis=-1) == labels))
    parameters = sum(x.size for x in jax.tree.leaves(nnx.state(model, nnx.Param)))
    print(f"{attention.__name__}: {parameters:,} parameters, accuracy {accuracies[attention.__name__]:.1%}")
  return accuracies


if __name__ == "__main__":
  main()
