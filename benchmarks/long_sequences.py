"""Causal MLK on long sequences: time per token, and what memory a training step takes.

python -m benchmarks.long_sequences --length 131072      # one training step; prints the peak memory of the process
"""

import resource
import subprocess
import sys
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

import mgk_jax
from benchmarks import timing
from benchmarks.contenders import Attentions, Sizes
from mgk_jax import console

LAYERS = 2


def report(sizes: Sizes, longest: int, repeats: int) -> None:
  """Time per token from 1k to half of `longest` tokens, and the memory of a training step on `longest`."""
  lengths = [n for n in (2**k for k in range(10, 30)) if n <= longest // 2] or [longest]
  contenders = [
    Attentions(Sizes(1, n, sizes.heads, sizes.head_dim, sizes.components), is_causal=True).mlk() for n in lengths
  ]
  seconds = [m.seconds for m in timing.measure(contenders, repeats)]
  per_token = [s / n for s, n in zip(seconds, lengths, strict=True)]
  base = per_token[min(2, len(lengths) - 1)]
  rows = [
    ["N", *map(str, lengths)],
    ["ms", *(f"{s * 1e3:.1f}" for s in seconds)],
    ["µs a token", *(f"{s * 1e6:.2f}" for s in per_token)],
    [f"of that at N = {lengths[min(2, len(lengths) - 1)]}", *(f"{s / base:.2f}" for s in per_token)],
  ]
  print(f"\n### Causal MLK, B=1, {sizes.half} heads, D={sizes.head_dim}\n\n{timing.markdown(rows)}\n", flush=True)
  options = ["--length", str(longest), "--heads", str(sizes.half), "--head-dim", str(sizes.head_dim)]
  # In a process of its own, whose peak memory is that of this step alone.
  subprocess.run([sys.executable, "-m", "benchmarks.long_sequences", *options], check=True)


def train_step(length: int, heads: int, head_dim: int) -> float:
  """One step of AdamW on a stack of causal MLK layers with one sequence; returns the loss."""
  features, rngs = heads * head_dim, nnx.Rngs(0)
  layers = nnx.List([mgk_jax.from_name("mlk", num_heads=heads, in_features=features, rngs=rngs) for _ in range(LAYERS)])
  optimizer = nnx.Optimizer(layers, optax.adamw(1e-3), wrt=nnx.Param)

  @nnx.jit
  def step(layers: nnx.List, optimizer: nnx.Optimizer, x: jax.Array) -> jax.Array:
    def loss(layers: nnx.List) -> jax.Array:
      h = x
      for layer in layers:
        h = h + layer(h, is_causal=True, deterministic=False)
      return jnp.mean((h[:, :-1] - x[:, 1:]) ** 2)

    value, gradients = nnx.value_and_grad(loss)(layers)
    optimizer.update(layers, gradients)
    return value

  x = jnp.asarray(np.random.default_rng(0).standard_normal((1, length, features)), jnp.float32)
  return float(step(layers, optimizer, x))


def main(argv: Sequence[str] | None = None) -> None:
  """One training step, and the peak memory of this process."""
  parser = console.parser("benchmarks.long_sequences", __doc__)
  parser.add_argument("--length", type=int, default=131072)
  parser.add_argument("--heads", type=int, default=2)
  parser.add_argument("--head-dim", type=int, default=32)
  arguments = parser.parse_args(argv)
  loss = train_step(arguments.length, arguments.heads, arguments.head_dim)
  peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
  print(
    f"A training step of {LAYERS} layers of causal MLK, {arguments.heads} heads of {arguments.head_dim}, on "
    f"{arguments.length:,} tokens: loss {loss:.3f}, peak memory of the process {peak / 2**30:.2f} GiB"
  )


if __name__ == "__main__":
  main()
