"""Saving and loading a model: with Orbax, and as a safetensors file.

    python examples/saving.py                         # in a temporary folder
    python examples/saving.py --folder saved

Orbax is for training: it writes the optimizer's state as well, in parallel, of sharded arrays, from several hosts. A
safetensors file is for passing a model on: one file, without code in it, that any framework reads.
"""

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import orbax.checkpoint as ocp
from flax import nnx

import mgk_jax

CONFIG = mgk_jax.ClassifierConfig(vocab_size=16, max_len=32, num_classes=10, num_layers=1, attention="mgk", prior="em")


def make(seed: int) -> tuple[mgk_jax.Classifier, nnx.Optimizer]:
  """A model, and the optimizer that trains it."""
  model = mgk_jax.Classifier(CONFIG, rngs=nnx.Rngs(seed))
  return model, nnx.Optimizer(model, optax.adamw(1e-3), wrt=nnx.Param)


@nnx.jit
def train_step(model: mgk_jax.Classifier, optimizer: nnx.Optimizer, tokens: jax.Array, labels: jax.Array) -> None:
  """One step, which also changes the EM prior and the random streams of dropout."""

  def loss(model: mgk_jax.Classifier) -> jax.Array:
    return optax.softmax_cross_entropy_with_integer_labels(model(tokens), labels).mean()

  optimizer.update(model, nnx.grad(loss)(model))


def with_orbax(model: nnx.Module, optimizer: nnx.Optimizer, folder: Path) -> tuple[mgk_jax.Classifier, nnx.Optimizer]:
  """Saves everything, and puts it into a new model and a new optimizer."""
  with ocp.StandardCheckpointer() as checkpointer:
    checkpointer.save(folder, nnx.to_pure_dict(nnx.state((model, optimizer))))
    checkpointer.wait_until_finished()
    others = make(seed=1)
    state = nnx.state(others)
    nnx.replace_by_pure_dict(state, checkpointer.restore(folder, nnx.to_pure_dict(state)))
    nnx.update(others, state)
  return others


def with_safetensors(model: nnx.Module, file: Path) -> nnx.Module:
  """Saves the model without optimizer and random streams, and makes it again from the file alone."""
  mgk_jax.save_safetensors(model, file, metadata={"trained_on": "noise"})
  other, _ = make(seed=1)
  metadata = mgk_jax.load_safetensors(other, file)  # into a model that is there; or, as below, from its settings
  print(f"{file.name}: {metadata['module']}, {file.stat().st_size:,} bytes, {metadata['config'][:60]}…")
  return mgk_jax.from_safetensors(file)


def main(argv: Sequence[str] | None = None) -> dict[str, bool]:
  """Returns whether what was loaded is what was saved."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--folder", type=Path, help="where to save; nothing in it is overwritten")
  args = parser.parse_args(argv)
  random = np.random.default_rng(0)
  batch = jnp.asarray(random.integers(1, 16, (8, 32))), jnp.asarray(random.integers(0, 10, 8))
  model, optimizer = make(seed=0)
  train_step(model, optimizer, *batch)
  with tempfile.TemporaryDirectory() as temporary:
    folder = Path(args.folder or temporary).resolve()
    restored, its_optimizer = with_orbax(model, optimizer, folder / "orbax")
    rebuilt = with_safetensors(model, folder / "model.safetensors")

  @nnx.jit
  def logits(model: nnx.Module) -> jax.Array:
    return model(batch[0], deterministic=True)

  same = {"safetensors": bool(jnp.all(logits(rebuilt) == logits(model)))}
  states = (jax.tree.leaves(nnx.state(pair)) for pair in ((model, optimizer), (restored, its_optimizer)))
  same["orbax"] = all(bool(jnp.all(x == y)) for x, y in zip(*states, strict=True))
  print(f"from the safetensors file the same logits: {same['safetensors']}")
  print(f"from Orbax the same parameters, prior, random streams and moments: {same['orbax']}")
  return same


if __name__ == "__main__":
  main()
