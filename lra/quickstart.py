"""A first run: an sMGK Transformer and a softmax one with twice the heads learn to evaluate short ListOps expressions.

    python -m lra.quickstart

Both get the same expressions in the same order, none of them twice, and are tested on expressions that neither has
seen. The defaults take a few minutes on two CPU cores.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
import tqdm
from flax import nnx

import mgk_jax
from lra import listops

MIN_LENGTH, MAX_DEPTH, MAX_ARGS = 8, 3, 5  # operators within operators and no deeper, and enough different expressions


class Result(NamedTuple):
  """What became of one model."""

  attention: str
  num_heads: int
  num_parameters: int
  accuracy: float
  seconds: float


def main(argv: Sequence[str] | None = None) -> list[Result]:
  """Trains and tests both models and prints a table."""
  args = _parse(argv)
  test = next(_batches(args, args.test_size))
  print(f"Short ListOps, e.g. {listops.decode(test.tokens[0])} = {test.labels[0]}")
  print(f"{args.steps} steps of {args.batch_size} expressions of at most {args.max_length} tokens, seed {args.seed}")
  results = [train(args, "smgk", args.heads, test), train(args, "softmax", 2 * args.heads, test)]
  print(_table(results, np.bincount(test.labels).max() / args.test_size, args.test_size))
  return results


def train(args: argparse.Namespace, attention: str, num_heads: int, test: listops.Batch) -> Result:
  """Trains one classifier on the expressions that follow the test set in the stream, and tests it."""
  started = time.perf_counter()
  config = mgk_jax.ClassifierConfig(
    vocab_size=len(listops.VOCABULARY),
    max_len=args.max_length,
    num_classes=listops.NUM_CLASSES,
    attention=attention,
    num_heads=num_heads,
    dropout_rate=0.0,
    attention_dropout_rate=0.0,
  )
  graphdef, *states = nnx.split(mgk_jax.Classifier(config, rngs=nnx.Rngs(args.seed)), nnx.Param, ...)
  params, rest = states
  optimizer = optax.adam(optax.cosine_onecycle_schedule(args.steps, args.learning_rate))
  opt_state = optimizer.init(params)

  step = make_step(graphdef, optimizer)
  batches = _batches(args, args.batch_size, skip=args.test_size)
  with _Progress(f"{attention}, {num_heads} head{'s' if num_heads > 1 else ''}", args.steps) as progress:
    for batch in itertools.islice(batches, args.steps):
      params, rest, opt_state, metrics = step(params, rest, opt_state, batch)
      progress.update(metrics)

  predict = jax.jit(
    lambda tokens, lengths: nnx.merge(graphdef, params, rest)(tokens, lengths=lengths, deterministic=True)
  )
  accuracy = np.mean(np.argmax(predict(test.tokens, test.lengths), axis=-1) == test.labels)
  num_parameters = sum(x.size for x in jax.tree.leaves(params))
  return Result(attention, num_heads, num_parameters, float(accuracy), time.perf_counter() - started)


def make_step(graphdef: nnx.GraphDef, optimizer: optax.GradientTransformation) -> Callable[..., Any]:
  """One jitted step (params, rest, opt_state, batch) -> (params, rest, opt_state, metrics); the state is donated."""

  def loss(params: nnx.State, rest: nnx.State, batch: listops.Batch) -> Any:
    model = nnx.merge(graphdef, params, rest, copy=True)
    logits = model(batch.tokens, lengths=batch.lengths, deterministic=False)
    losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch.labels)
    metrics = {"loss": jnp.mean(losses), "accuracy": jnp.mean(jnp.argmax(logits, axis=-1) == batch.labels)}
    return metrics["loss"], (nnx.state(model, nnx.Not(nnx.Param)), metrics)

  def step(params: nnx.State, rest: nnx.State, opt_state: optax.OptState, batch: listops.Batch) -> Any:
    grads, (rest, metrics) = jax.grad(loss, has_aux=True)(params, rest, batch)
    updates, opt_state = optimizer.update(grads, opt_state, params)
    return optax.apply_updates(params, updates), rest, opt_state, metrics

  return jax.jit(step, donate_argnums=(0, 1, 2))


class _Progress:
  """A bar on a terminal, else ten lines; the metrics shown are means since they were last shown."""

  def __init__(self, name: str, steps: int):
    self.bar = tqdm.tqdm(total=steps, desc=name, unit="step", disable=None)
    self.name, self.steps, self.done = name, steps, 0
    self.recent: list[dict[str, jax.Array]] = []  # on the device until they are shown, so that no step waits for them

  def __enter__(self) -> "_Progress":
    return self

  def __exit__(self, *_: object) -> None:
    self.bar.close()

  def update(self, metrics: dict[str, jax.Array]) -> None:
    self.done += 1
    self.bar.update()
    self.recent.append(metrics)
    if self.done % max(1, self.steps // (10 if self.bar.disable else 50)) == 0:
      shown = {name: f"{np.mean([m[name] for m in self.recent]):.3f}" for name in metrics}
      self.recent.clear()
      self.bar.set_postfix(shown)
      if self.bar.disable:
        print(f"{self.name}: step {self.done}/{self.steps}", *(f"{n} {v}" for n, v in shown.items()), flush=True)


def _batches(args: argparse.Namespace, size: int, *, skip: int = 0) -> Iterator[listops.Batch]:
  """Batches of the stream of expressions that belongs to the seed, without the first `skip` expressions."""
  stream = listops.generate(
    args.seed, min_length=MIN_LENGTH - 1, max_length=args.max_length + 1, max_depth=MAX_DEPTH, max_args=MAX_ARGS
  )
  stream = itertools.islice(stream, skip, None)
  while True:
    yield listops.pad(list(itertools.islice(stream, size)), args.max_length)


def _table(results: Sequence[Result], majority: float, test_size: int) -> str:
  rows = [("model", "heads", "parameters", "test accuracy", "seconds")]
  rows += [
    (r.attention, str(r.num_heads), f"{r.num_parameters:,}", f"{r.accuracy:.1%}", f"{r.seconds:.0f}") for r in results
  ]
  rows += [
    ("most frequent label", "", "", f"{majority:.1%}", ""),
    ("chance", "", "", f"{1 / listops.NUM_CLASSES:.1%}", ""),
  ]
  lines = [f"{row[0]:<20}" + "".join(f"{cell:>15}" for cell in row[1:]) for row in rows]
  spread = 1.96 * max(r.accuracy * (1 - r.accuracy) / test_size for r in results) ** 0.5
  return "\n".join(["", *lines, "", f"{test_size} test expressions, so ±{spread:.1%} by chance alone (95%)."])


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
  parser = argparse.ArgumentParser(
    prog="python -m lra.quickstart",
    description="Trains an sMGK Transformer and a softmax one with twice the heads on short ListOps expressions.",
    epilog="example: python -m lra.quickstart --steps 500 --heads 2",
    formatter_class=argparse.ArgumentDefaultsHelpFormatter,
  )
  parser.add_argument("--steps", type=_positive, default=2500, help="training steps of each model")
  parser.add_argument("--batch-size", type=_positive, default=64, help="expressions per step")
  parser.add_argument(
    "--heads", type=_positive, default=1, help="heads of the sMGK model; the softmax model has twice as many"
  )
  parser.add_argument("--learning-rate", type=float, default=2e-3, help="peak of the one-cycle schedule")
  parser.add_argument("--max-length", type=_positive, default=24, help="longest expression in tokens")
  parser.add_argument("--test-size", type=_positive, default=2000, help="expressions kept for the test")
  parser.add_argument("--seed", type=int, default=0, help="of the data and of the parameters")
  args = parser.parse_args(argv)
  if args.max_length < MIN_LENGTH:
    parser.error(f"--max-length: expected at least {MIN_LENGTH} (shorter expressions are few), got {args.max_length}")
  return args


def _positive(text: str) -> int:
  number = int(text)
  if number < 1:
    raise argparse.ArgumentTypeError(f"expected a positive whole number, got {text}")
  return number


if __name__ == "__main__":
  main()
