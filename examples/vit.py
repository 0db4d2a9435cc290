"""A vision Transformer with mixtures of Gaussian keys on images of CIFAR's size.

    python examples/vit.py                                          # pictures of stripes that are drawn here
    python examples/vit.py --attention softmax --heads 4
    python examples/vit.py --data_dir cifar-10-batches-bin --steps 20000 --layers 6 --width 192 --patch 4

Stripes run in one of four directions, in any two colours, under noise; a minute on a CPU. CIFAR-10 is read from the
folder or archive of its official binary or Python version, and wants a GPU or a long night.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import mgk_jax
from lra import image


def stripes(random: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
  """Pictures uint8 [size, 32, 32, 3] and their directions, 0 to 3."""
  labels = random.integers(0, 4, size)
  angle, phase, width = np.pi / 4 * labels, random.uniform(0, 2 * np.pi, size), random.uniform(1.0, 2.0, size)
  y, x = np.mgrid[:32, :32][:, None]
  waves = np.sin(
    (np.cos(angle)[:, None, None] * x + np.sin(angle)[:, None, None] * y) / width[:, None, None] + phase[:, None, None]
  )
  mixed = (waves[..., None] + 1) / 2
  colours = random.uniform(0, 255, (2, size, 1, 1, 3))
  pictures = mixed * colours[0] + (1 - mixed) * colours[1] + random.normal(0, 25, (size, 32, 32, 3))
  return np.clip(pictures, 0, 255).astype(np.uint8), labels


@nnx.jit
def train_step(model: mgk_jax.ViT, optimizer: nnx.Optimizer, pictures: jax.Array, labels: jax.Array) -> jax.Array:
  """One step; returns the loss."""

  def loss(model: mgk_jax.ViT) -> jax.Array:
    logits = model(pictures / 127.5 - 1, deterministic=False)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

  value, gradients = nnx.value_and_grad(loss)(model)
  optimizer.update(model, gradients)
  return value


@nnx.jit
def count_right(model: mgk_jax.ViT, pictures: jax.Array, labels: jax.Array) -> jax.Array:
  """How many pictures get their label."""
  return jnp.sum(jnp.argmax(model(pictures / 127.5 - 1, deterministic=True), axis=-1) == labels)


def main(argv: Sequence[str] | None = None) -> float:
  """Trains, and returns the accuracy on pictures that were not trained on."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--data_dir", type=Path, help="CIFAR-10, a folder or an archive (default: stripes)")
  parser.add_argument("--attention", default="smgk", help="softmax, linear, mgk, smgk, mlk or smlk (default smgk)")
  parser.add_argument("--heads", type=int, default=2, help="of 32 dimensions (default 2)")
  parser.add_argument("--layers", type=int, default=2, help="blocks (default 2)")
  parser.add_argument("--width", type=int, default=64, help="of the model (default 64)")
  parser.add_argument("--patch", type=int, default=8, help="pixels of a patch's side, a divisor of 32 (default 8)")
  parser.add_argument("--steps", type=int, default=300, help="training steps (default 300)")
  parser.add_argument("--batch", type=int, default=64, help="pictures in a step (default 64)")
  args = parser.parse_args(argv)

  random = np.random.default_rng(0)
  if args.data_dir:
    (pictures, labels), test = (image.pictures(args.data_dir, split) for split in ("train", "test"))
  else:
    (pictures, labels), test = stripes(random, 4096), stripes(random, 512)
  config = mgk_jax.ViTConfig(
    num_classes=10 if args.data_dir else 4,
    patch_size=args.patch,
    attention=args.attention,
    num_heads=args.heads,
    head_dim=32,
    num_layers=args.layers,
    emb_dim=args.width,
    mlp_dim=2 * args.width,
  )
  model = mgk_jax.ViT(config, rngs=nnx.Rngs(0))
  rate = optax.warmup_cosine_decay_schedule(0.0, 2e-3, max(1, args.steps // 10), args.steps)
  optimizer = nnx.Optimizer(model, optax.adamw(rate, weight_decay=0.05), wrt=nnx.Param)
  for step in range(args.steps):
    chosen = random.integers(0, len(pictures), args.batch)
    batch = pictures[chosen]
    if args.data_dir:  # a flipped car is a car, but flipped stripes run in another direction
      batch = np.where(random.random(args.batch)[:, None, None, None] < 0.5, batch[:, :, ::-1], batch)
    loss = train_step(model, optimizer, batch, labels[chosen])
    if (step + 1) % max(1, args.steps // 5) == 0:
      print(f"step {step + 1}: loss {loss:.3f}")
  parts = (tuple(jnp.asarray(x[i : i + 256]) for x in test) for i in range(0, len(test[0]), 256))
  accuracy = sum(float(count_right(model, *part)) for part in parts) / len(test[0])
  print(f"{args.attention} with {args.heads} heads: test accuracy {accuracy:.1%} of {len(test[0]):,} pictures")
  return accuracy


if __name__ == "__main__":
  main()
