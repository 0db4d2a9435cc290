"""A small Linen Transformer with MixtureAttention, wrapped by nnx.bridge.to_linen in one line.

    python examples/linen_transformer.py
    python examples/linen_transformer.py --prior em

Linen keeps the parameters in the collection "params" and, with an EM prior, the prior in "EMPrior", which training
changes without a gradient. The task: does the first digit of a sequence come up in it again? Seconds on a CPU.
"""

import argparse
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen, nnx

import mgk_jax

WIDTH, DIGITS = 32, 16


class Block(linen.Module):
  """A layer as in any Transformer."""

  prior: str
  max_len: int

  @linen.compact
  def __call__(self, x: jax.Array, deterministic: bool) -> jax.Array:
    """[B, T, D] to the same."""
    # In the place of linen.MultiHeadDotProductAttention(num_heads=4):
    attention = nnx.bridge.to_linen(
      mgk_jax.MixtureAttention, num_heads=2, in_features=WIDTH, prior=self.prior, max_len=self.max_len
    )
    x = x + attention(linen.LayerNorm()(x), deterministic=deterministic)
    return x + linen.Dense(WIDTH)(linen.gelu(linen.Dense(64)(linen.LayerNorm()(x))))


class Transformer(linen.Module):
  """Two logits from the first position."""

  prior: str
  layers: int

  @linen.compact
  def __call__(self, digits: jax.Array, deterministic: bool = True) -> jax.Array:
    """Digits [B, T] to logits [B, 2]."""
    length = digits.shape[1]
    x = linen.Embed(DIGITS, WIDTH)(digits) + linen.Embed(length, WIDTH)(jnp.arange(length))
    for _ in range(self.layers):
      x = Block(self.prior, length)(x, deterministic)
    return linen.Dense(2)(x[:, 0])


def examples(random: np.random.Generator, size: int, length: int) -> tuple[jax.Array, jax.Array]:
  """Digits [size, length], in half of which the first one comes again, and whether it does."""
  digits = random.integers(0, DIGITS - 1, (size, length))
  digits[:, 1:] += digits[:, 1:] >= digits[:, :1]  # all but the first digit
  labels = random.integers(0, 2, size)
  digits[np.arange(size), random.integers(1, length, size)] = np.where(labels, digits[:, 0], digits[:, 1])
  return jnp.asarray(digits), jnp.asarray(labels)


def main(argv: Sequence[str] | None = None) -> dict[str, Any]:
  """Trains, and returns the accuracy on new sequences and the variables."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--prior", choices=("sgd", "em"), default="sgd", help="how π is learned (default sgd)")
  parser.add_argument("--steps", type=int, default=200, help="of 128 sequences each (default 200)")
  parser.add_argument("--layers", type=int, default=2, help="of the model (default 2)")
  parser.add_argument("--length", type=int, default=16, help="digits in a sequence (default 16)")
  args = parser.parse_args(argv)
  random, optimizer = np.random.default_rng(0), optax.adamw(5e-3)
  model = Transformer(args.prior, args.layers)
  variables = jax.jit(model.init)(jax.random.key(0), examples(random, 128, args.length)[0])
  opt_state = optimizer.init(variables["params"])
  others = [name for name in variables if name != "params"]

  @jax.jit
  def train_step(variables: Any, opt_state: Any, digits: jax.Array, labels: jax.Array) -> tuple[Any, Any]:
    def loss(params: Any) -> tuple[jax.Array, Any]:
      logits, changed = model.apply({**variables, "params": params}, digits, deterministic=False, mutable=others)
      return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean(), changed

    gradients, changed = jax.grad(loss, has_aux=True)(variables["params"])
    updates, opt_state = optimizer.update(gradients, opt_state, variables["params"])
    return {**changed, "params": optax.apply_updates(variables["params"], updates)}, opt_state

  for _ in range(args.steps):
    variables, opt_state = train_step(variables, opt_state, *examples(random, 128, args.length))
  digits, labels = examples(np.random.default_rng(1), 1000, args.length)
  accuracy = float(jnp.mean(jnp.argmax(jax.jit(model.apply)(variables, digits), axis=-1) == labels))
  print(f"collections {', '.join(variables)}: accuracy {accuracy:.1%}")
  return {"accuracy": accuracy, "variables": variables}


if __name__ == "__main__":
  main()
