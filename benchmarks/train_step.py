"""Whole training steps of models with all and with half the heads, side by side: time, memory, parameters, FLOPs.

    python -m benchmarks.train_step                                 # batch 32, 2,048 tokens: some minutes
    python -m benchmarks.train_step --batch 8 --accumulation 4
    python -m benchmarks.train_step --language_models               # a minute

The models are those of configs/lra/listops.py, two layers 64 wide, with dropout and AdamW, on random sequences that
fill the length. Where PyTorch is installed, the same models in its usual style take part: written from the equations,
with all distances and weights materialised (`benchmarks.torch_model`). With --language_models they are those of
configs/lm/wikitext2_small.py, on words that are drawn by Zipf's law. Contenders take turns in one process and the
median of their times is shown: trust the ratios, not the seconds.
"""

import functools
import importlib.util
import platform
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

import lm.model
import lra.model
import lra.tasks
from benchmarks import timing, vocabulary
from benchmarks.timing import Contender, Measurement, Program
from configs.lm import wikitext2_small
from configs.lra import listops
from lm import datasets
from mgk_jax import console, training
from mgk_jax.analysis import flops, parameters
from mgk_jax.training import mesh as meshes, state as states, step as steps

MODELS = (("softmax", 2), ("mgk", 1), ("smgk", 1), ("linear", 2), ("mlk", 1))
TORCH_MODELS = (("softmax", 2), ("mgk", 1), ("smgk", 1))
LANGUAGE_MODELS = (("softmax", 4), ("mgk", 2), ("smgk", 2), ("linear", 4), ("mlk", 2))


class Model(NamedTuple):
  """A contender and its number of parameters."""

  contender: Contender
  parameters: int


def ours(attention: str, heads: int, batch: int, length: int, accumulation: int) -> Model:
  """A classifier of ListOps."""
  config = listops.get_config(f"{attention},heads={heads},length={length},batch={batch},accumulation={accumulation}")
  settings = lra.model.model_config(config, lra.tasks.get("listops").task)
  make_model = functools.partial(lra.model.make_model, settings)
  cost = flops.training_flops(settings, batch, length).training
  return _model(_name(attention, heads), config, make_model, lra.model.classify, examples(batch, length), cost)


def language_model(attention: str, heads: int) -> Model:
  """A language model of WikiText-2."""
  config = wikitext2_small.get_config(f"{attention},heads={heads}")
  vocab_size, batch, length = datasets.get(config.dataset).vocab_size, config.batch_size, config.data.length
  cost = flops.language_model_flops(lm.model.model_config(config, vocab_size), batch, length).training
  make_model = lm.model.maker(config, vocab_size)
  return _model(_name(attention, heads), config, make_model, lm.model.predict, words(batch, length, vocab_size), cost)


def _model(name: str, config: Any, make_model: Any, objective: Any, rows: dict[str, np.ndarray], cost: float) -> Model:
  """A training step as the programs run it, on one device."""
  optimizer, _ = training.make_optimizer(num_steps=config.num_steps, **config.optimizer)
  mesh = meshes.make_mesh(1, 1, devices=jax.devices()[:1])
  structure, init, shardings = states.plan(make_model, optimizer, mesh, 0)

  def prepare() -> Program:
    step = steps.make_train_step(structure, objective, optimizer, accumulation_steps=config.accumulation_steps)
    state = jax.jit(init, out_shardings=shardings)()
    compiled: Any = steps.compile_train_step(step, mesh, shardings)
    compiled = compiled.lower(state, rows).compile()

    def run() -> None:
      nonlocal state
      state, sums = compiled(state, rows)
      jax.block_until_ready((state, sums))

    return Program(run, compiled.memory_analysis().temp_size_in_bytes)

  return Model(Contender(name, prepare, cost), parameters.count(jax.eval_shape(init).params))


def in_torch(attention: str, heads: int, batch: int, length: int) -> Model:
  """The same in PyTorch's usual style."""
  from benchmarks import torch_model

  settings = lra.model.model_config(
    listops.get_config(f"{attention},heads={heads},length={length}"), lra.tasks.get("listops").task
  )
  model = torch_model.Classifier(settings)
  rows = examples(batch, length)
  contender = Contender(
    f"{_name(attention, heads)}, torch, materialised",
    lambda: Program(torch_model.training_step(model, rows["tokens"], rows["labels"]), rest=0.3),
    flops.training_flops(settings, batch, length).training,
  )
  return Model(contender, sum(p.numel() for p in model.parameters()))


def examples(batch: int, length: int) -> dict[str, np.ndarray]:
  """Random sequences that fill the length."""
  random = np.random.default_rng(0)
  return {
    "tokens": random.integers(1, lra.tasks.get("listops").task.vocab_size, (batch, length), dtype=np.int32),
    "lengths": np.full(batch, length, np.int32),
    "labels": random.integers(0, 10, batch, dtype=np.int32),
    "weights": np.ones(batch, np.float32),
  }


def words(batch: int, length: int, vocab_size: int) -> dict[str, np.ndarray]:
  """Random text by Zipf's law."""
  shares = vocabulary.zipf(vocab_size)
  text = np.random.default_rng(0).choice(vocab_size, (batch, length + 1), p=shares).astype(np.int32)
  return {"tokens": text[:, :-1], "targets": text[:, 1:], "weights": np.ones((batch, length), np.float32)}


def table(models: Sequence[Model], measurements: Sequence[Measurement]) -> str:
  """Ratios to softmax attention with all heads, ours and PyTorch's."""
  seconds = timing.by_name(measurements)
  baselines = [name for name in seconds if name.startswith("softmax")]
  rows = [["model", "ms", *(f"× {name}" for name in baselines), "temporary MiB", "parameters", "GFLOP"]]
  for model, m in zip(models, measurements, strict=True):
    ratios = [f"{m.seconds / seconds[name]:.2f}" for name in baselines]
    memory = "" if m.temporary_bytes is None else f"{m.temporary_bytes / 2**20:,.0f}"
    size, cost = f"{model.parameters:,}", f"{(m.contender.flops or 0) / 1e9:,.0f}"
    rows.append([m.contender.name, f"{m.seconds * 1e3:,.0f}", *ratios, memory, size, cost])
  return timing.markdown(rows)


def _name(attention: str, heads: int) -> str:
  return f"{attention} {heads} head{'s' if heads > 1 else ''}"


def main(argv: Sequence[str] | None = None) -> None:
  """Measures what the command line asks for and prints a table."""
  parser = console.parser("benchmarks.train_step", __doc__)
  parser.add_argument("--batch", type=int, default=32, help="examples in a step (default 32)")
  parser.add_argument("--length", type=int, default=2048, help="tokens of each (default 2048)")
  parser.add_argument("--accumulation", type=int, default=1, help="parts that the batch is cut into (default 1)")
  parser.add_argument("--repeats", type=int, default=3, help="rounds of which the median is taken (default 3)")
  parser.add_argument("--language_models", action="store_true", help="those of WikiText-2 in place of ListOps")
  parser.add_argument("--no-torch", action="store_true", help="leave PyTorch out, where it is installed")
  arguments = parser.parse_args(argv)
  batch, length = arguments.batch, arguments.length
  if arguments.language_models:
    models = [language_model(*model) for model in LANGUAGE_MODELS]
    print("a training step, float32, configs/lm/wikitext2_small.py")
  else:
    models = [ours(*model, batch, length, arguments.accumulation) for model in MODELS]
    if importlib.util.find_spec("torch") and not arguments.no_torch:
      models += [in_torch(*model, batch, length) for model in TORCH_MODELS]
    print(f"a training step, float32, batch {batch}, {length} tokens, in {arguments.accumulation} part(s)")
  print(f"{platform.machine()}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n")
  measurements = timing.measure([model.contender for model in models], arguments.repeats)
  print(table(models, measurements))
  seconds = timing.by_name(measurements)
  for attention, heads in TORCH_MODELS:
    name = _name(attention, heads)
    if f"{name}, torch, materialised" in seconds:
      print(f"\n{name}: {seconds[f'{name}, torch, materialised'] / seconds[name]:.1f} × faster than in torch")


if __name__ == "__main__":
  main()  # memory is handed back: what these models take together is more than many a machine has
