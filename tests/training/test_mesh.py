"""Meshes by their sizes, what of a model lies where, and which rows a process reads; without the devices."""

from types import SimpleNamespace

import jax
import numpy as np
import pytest
from jax.sharding import AbstractMesh, PartitionSpec as P

import mgk_jax
from mgk_jax.training import make_mesh, make_optimizer, mesh as meshes, state as states

HEADS, MLP = 6, 10  # sizes that no other axis has
SIZES = {
  "vocab_size": 7,
  "max_len": 5,
  "num_layers": 2,
  "emb_dim": 8,
  "mlp_dim": MLP,
  "num_heads": HEADS,
  "head_dim": 4,
}


@pytest.mark.parametrize(
  ("sizes", "message"),
  [
    ((3, -1), r"expected a mesh axis that divides 8 devices, got 3"),
    ((-1, 3), r"expected a mesh axis that divides 8 devices, got 3"),
    ((-1, -1), r"expected at most one of mesh.data and mesh.model to be -1, got both"),
    ((4, 4), r"mesh: expected data × model <= 8 devices, got 4 × 4"),
    ((-1, 16), r"expected a mesh axis that divides 8 devices, got 16"),
    ((0, 1), r"mesh.data: expected a positive number or -1, got 0"),
    ((1, -2), r"mesh.model: expected a positive number or -1, got -2"),
  ],
)
def test_impossible_sizes(sizes, message):
  with pytest.raises(ValueError, match=message):
    make_mesh(*sizes, devices=range(8))


@pytest.mark.parametrize("sizes", [(-1, 1), (1, -1), (1, 1)])
def test_a_mesh_of_one_device(sizes):
  assert dict(make_mesh(*sizes, devices=jax.devices()[:1]).shape) == {"data": 1, "model": 1}


def plan(mesh, **settings):
  config = mgk_jax.ClassifierConfig(**SIZES, num_classes=3, classifier_dim=9, **settings)
  optimizer, _ = make_optimizer(
    schedule="one_cycle", learning_rate=1e-3, warmup_steps=2, num_steps=5, b1=0.9, b1_peak=0.8, b2=0.9, eps=1e-6,
    clip_norm=1.0,
  )  # fmt: skip
  _, init, shardings = states.plan(lambda rngs: mgk_jax.Classifier(config, rngs=rngs), optimizer, mesh, 0)
  return jax.eval_shape(init), shardings


def by_path(tree):
  return {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(tree)}


@pytest.mark.parametrize(
  "settings",
  [
    {"attention": "smgk"},
    {"attention": "mgk", "prior": "em", "learn_variance": True},
    {"attention": "softmax"},
    {"attention": "mlk", "prior_scope": "position"},
  ],
  ids=lambda settings: settings["attention"],
)
def test_heads_and_mlps_are_cut_and_nothing_else(settings):
  """Every axis of heads or of hidden units lies on "model", but for the few numbers of a prior."""
  mesh = AbstractMesh((4, 2), ("data", "model"))
  state, shardings = plan(mesh, **settings)
  shapes, placed = by_path(state.params), by_path(shardings.params)
  assert shapes.keys() == placed.keys()
  num_cut = 0
  for path, leaf in shapes.items():
    cut = [axis for axis, size in enumerate(leaf.shape) if size in (HEADS, MLP)]
    spec = P() if not cut or "prior" in path else P(*[None] * cut[0], "model")
    assert placed[path].spec == spec, path
    num_cut += spec != P()
  # Each of the two blocks has queries, keys and values with biases, what leads out of the heads, and the MLP.
  assert num_cut == 2 * (6 + 1 + 3) + 2 * (settings["attention"] == "smgk")
  assert all(sharding.spec == P() for sharding in by_path(shardings.variables).values())
  assert len(by_path(shardings.variables)) == (2 if settings.get("prior") == "em" else 0)

  moments = by_path(shardings.opt_state)
  for name in (".mu", ".nu"):
    of_params = {path.partition(name)[2]: sharding for path, sharding in moments.items() if name in path}
    assert of_params == placed
  assert all(sharding.spec == P() for path, sharding in moments.items() if ".mu" not in path and ".nu" not in path)
  assert shardings.step.spec == shardings.rng.spec == P()


@pytest.mark.parametrize(
  ("model", "what"), [(4, r"attention/key/bias of shape \(6"), (3, r"mlp_in/bias of shape \(10,")]
)
def test_heads_that_cannot_be_cut(model, what):
  with pytest.raises(
    ValueError, match=rf"mesh.model={model}: expected a divisor of the number of heads .*got .*{what}"
  ):
    plan(AbstractMesh((1, model), ("data", "model")))


# The processes of the devices of a mesh; for each process its part and how many parts there are.
PARTS = [
  ([[0], [0], [0], [0]], [(0, 1)]),
  ([[0], [0], [1], [1]], [(0, 2), (1, 2)]),
  ([[0, 0], [1, 1]], [(0, 2), (1, 2)]),
  ([[0, 1]], [(0, 1), (0, 1)]),
  ([[0, 1], [0, 1]], [(0, 1), (0, 1)]),
  ([[0, 1], [2, 3]], [(0, 2), (0, 2), (1, 2), (1, 2)]),
  ([[1], [0]], [(1, 2), (0, 2)]),
]


def parts(monkeypatch, processes):
  numbers = np.array(processes)
  devices = np.array([[SimpleNamespace(process_index=number) for number in row] for row in processes])
  mesh = SimpleNamespace(devices=devices, shape=dict(zip(("data", "model"), numbers.shape, strict=True)))
  count = numbers.max() + 1
  monkeypatch.setattr(jax, "process_count", lambda: count)
  for process in range(count):
    monkeypatch.setattr(jax, "process_index", lambda process=process: process)
    yield meshes.batch_part(mesh)


@pytest.mark.parametrize(("processes", "expected"), PARTS)
def test_the_part_of_a_process(monkeypatch, processes, expected):
  assert list(parts(monkeypatch, processes)) == expected


@pytest.mark.parametrize("processes", [[[0], [2]], [[0], [0], [1]], [[0, 1], [1, 1]]])
def test_parts_that_are_not_equal(monkeypatch, processes):
  with pytest.raises(ValueError, match=r"mesh.data=\d, mesh.model=\d: expected a mesh that cuts batches into equal"):
    list(parts(monkeypatch, processes))
