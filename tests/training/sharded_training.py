"""A program for eight devices: short runs on several meshes, compared with those on one device.

Run by test_sharded_training in a process of its own, because the number of devices is fixed when JAX starts:

    XLA_FLAGS=--xla_force_host_platform_device_count=8 python -m tests.training.sharded_training
"""

import dataclasses
import functools
import sys
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec as P

import lra.model
from configs.lra import listops as config_file
from lra import input_pipeline, listops
from mgk_jax.data.rows import Rows
from mgk_jax.nn.dropout import Dropout
from mgk_jax.training import make_mesh, make_optimizer, mesh as meshes, state as states, step as steps

STEPS, BATCH, LENGTH, HEADS = 20, 8, 24, 4
SMALL = (
  f"steps={STEPS},batch={BATCH},length={LENGTH},layers=1,emb_dim=8,mlp_dim=8,heads={HEADS},head_dim=4,classifier_dim=8,"
  "warmup=5,lr=1e-3"
)
MESHES = ((8, 1), (4, 2), (2, 4))
# Each mesh once, as compiling a step takes seconds; or every attention on every mesh.
CASES = {"smgk": ((4, 2),), "mgk,prior=em": ((2, 4),), "softmax": ((8, 1),)}
ALL_CASES = dict.fromkeys([*CASES, "mlk"], MESHES)


def examples(count: int, seed: int) -> list[dict[str, Any]]:
  """Sequences of different lengths, some as long as a batch and one empty."""
  rng = np.random.default_rng(seed)
  lengths = [0, LENGTH, LENGTH + 5, *rng.integers(1, LENGTH, count - 3)]
  tokens = [rng.integers(1, listops.TASK.vocab_size, length).astype(np.uint8) for length in lengths]
  return [{"tokens": sequence, "label": int(rng.integers(10))} for sequence in tokens]


TRAIN, VALID = examples(50, 0), examples(29, 1)  # 29 is a multiple of no number of devices


@dataclasses.dataclass
class Run:
  """What came of a run."""

  first: states.TrainState
  last: states.TrainState
  losses: np.ndarray
  evaluation: dict[str, float]


def put(batch: input_pipeline.Batch, mesh: jax.sharding.Mesh) -> dict[str, jax.Array]:
  return {name: jax.device_put(rows, meshes.batch_sharding(mesh)) for name, rows in batch.items()}


def run(variant: str, mesh: jax.sharding.Mesh, evaluates: bool, start: states.TrainState | None = None) -> Run:
  """Trains as a shrunken config says, dropout on, and evaluates; from a state of its own unless there is one."""
  config = config_file.get_config(f"{variant},{SMALL}")
  assert config.model.dropout_rate == 0.1 and config.model.get("attention_dropout_rate", 0.1) == 0.1
  settings = lra.model.model_config(config, listops.TASK)
  optimizer, _ = make_optimizer(num_steps=STEPS, **config.optimizer)
  make_model = functools.partial(lra.model.make_model, settings)
  structure, init, shardings = states.plan(make_model, optimizer, mesh, config.seed)
  state = jax.device_put(start, shardings) if start else jax.jit(init, out_shardings=shardings)()
  first = jax.tree.map(np.array, state)  # copies, since a step takes its state away
  for x, sharding in zip(jax.tree.leaves(state), jax.tree.leaves(shardings), strict=True):
    assert x.sharding.is_equivalent_to(sharding, x.ndim)
  check_layout(state, mesh)

  train_step = steps.compile_train_step(
    steps.make_train_step(structure, lra.model.classify, optimizer), mesh, shardings
  )
  rows = Rows(BATCH)
  batches = input_pipeline.train_batches(TRAIN, listops.TASK, rows=rows, length=LENGTH, seed=config.seed)
  losses = []
  for _ in range(STEPS):
    before = state
    state, sums = train_step(state, put(next(batches), mesh))
    taken = {x.is_deleted() for x in jax.tree.leaves((before.params, before.variables)) if x.ndim}
    assert taken == {True}, "the state is not donated"
    losses.append(float(sums["loss"] / sums["count"]))
  check_layout(state, mesh)

  totals: dict[str, float] = {}
  if evaluates:
    eval_step = steps.compile_eval_step(steps.make_eval_step(structure, lra.model.classify), mesh, shardings)
    for batch in input_pipeline.EvalBatches(VALID, listops.TASK, rows=rows, length=LENGTH):
      _, sums = eval_step(state.params, state.variables, put(batch, mesh))
      for name, value in sums.items():
        totals[name] = totals.get(name, 0.0) + float(value)
  return Run(first, state, np.array(losses), totals)


def check_layout(state: states.TrainState, mesh: jax.sharding.Mesh) -> None:
  """A device has its share of the heads and hidden units, of their parameters and of both moments, and no more."""
  model = mesh.shape["model"]
  cut = {"query": 1, "key": 1, "value": 1, "out": 0}
  moments = [x for x in jax.tree.leaves(state.opt_state, is_leaf=lambda x: hasattr(x, "mu")) if hasattr(x, "mu")]
  assert len(moments) == 1
  for tree in (state.params, moments[0].mu, moments[0].nu):
    block = tree["encoder"]["blocks"][0]
    for name, axis in cut.items():
      kernel = block["attention"][name]["kernel"][...]
      assert kernel.addressable_shards[0].data.shape[axis] == HEADS // model == kernel.shape[axis] // model
    assert block["mlp_in"]["kernel"][...].addressable_shards[0].data.shape == (8, 8 // model)
    assert block["mlp_out"]["kernel"][...].addressable_shards[0].data.shape == (8 // model, 8)
    embedding = tree["encoder"]["token_embedding"]["embedding"][...]
    assert embedding.sharding.is_fully_replicated and len(embedding.sharding.device_set) == mesh.size


def difference(a: Any, b: Any) -> float:
  pairs = zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True)
  return max((float(np.max(np.abs(np.asarray(x) - np.asarray(y)))) for x, y in pairs), default=0.0)


def check_variant(variant: str, sizes: tuple[tuple[int, int], ...]) -> None:
  """The same losses to 1e-5, the same parameters and EM priors, and the same answers in evaluation."""
  evaluates = variant == "smgk"
  one = run(variant, make_mesh(1, 1, devices=jax.devices()[:1]), evaluates)
  assert difference(one.first.params, one.last.params) > 1e-3, "nothing was learned"
  assert evaluates == (one.evaluation.get("count") == len(VALID))
  if "em" in variant:
    assert difference(one.first.variables, one.last.variables) > 1e-2
  for data, model in sizes:
    own = variant == "smgk" and model > 1
    many = run(variant, make_mesh(data, model), evaluates, None if own else one.first)
    assert difference(one.first, many.first) == 0, f"{variant} on {data} × {model} starts from other numbers"
    np.testing.assert_allclose(many.losses, one.losses, atol=1e-5, rtol=0, err_msg=f"{variant} on {data} × {model}")
    for name in ("params", "variables"):
      assert difference(getattr(one.last, name), getattr(many.last, name)) < 1e-5
    for name in ("accuracy", "count", "tokens") if evaluates else ():
      assert many.evaluation[name] == one.evaluation[name], f"{variant} on {data} × {model}: {name}"
    print(f"{variant} on {data} × {model}: {np.max(np.abs(many.losses - one.losses)):.1e}", file=sys.stderr)


def check_dropout() -> None:
  """A mask is a function of the key, however rows and columns are cut."""
  x, key, dropout = jnp.ones((8, 6, 16)), jax.random.key(0), Dropout(0.5)
  expected = dropout(x, rngs=key)
  mesh = make_mesh(4, 2)
  for spec in (P("data"), P("data", None, "model"), P(None, "model", "data")):
    sharding = NamedSharding(mesh, spec)
    got = jax.jit(lambda x, key: dropout(x, rngs=key), out_shardings=sharding)(jax.device_put(x, sharding), key)
    assert np.array_equal(got, expected)


def check_meshes() -> None:
  for sizes, shape in {(-1, 1): (8, 1), (-1, 2): (4, 2), (2, -1): (2, 4), (2, 1): (2, 1), (1, 8): (1, 8)}.items():
    mesh = make_mesh(*sizes)
    assert mesh.devices.shape == shape and mesh.axis_names == ("data", "model")
    assert meshes.batch_part(mesh) == (0, 1)


def main(which: str = "some") -> None:
  assert jax.device_count() == 8, jax.devices()
  check_meshes()
  check_dropout()
  for variant, sizes in (ALL_CASES if which == "all" else CASES).items():
    check_variant(variant, sizes)
  print("all equal")


if __name__ == "__main__":
  main(*sys.argv[1:])
