"""Checkpoints: bit for bit, the right ones kept, the torn ones ignored, the unreadable ones named."""

import functools
import os
import resource
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax import nnx

from mgk_jax.training import TrainingStopped, TrainState
from mgk_jax.training.checkpoints import Checkpoints

FACTS = {
  "best": {"step": 3, "accuracy": 1 / 3},
  "data": {"next_index": 7},
  "window": {"steps": 0, "sums": {}},
  "none": None,
}


def bits(seed, shape, dtype):
  """Any bits at all, NaNs with payloads and negative zeros among them."""
  size = np.dtype(dtype).itemsize
  words = np.random.default_rng(seed).integers(0, 256, (*shape, size), np.uint8)
  return jnp.asarray(words.view(dtype)[..., 0])


def make_state(step=0):
  return TrainState(
    step=jnp.int32(step),
    params=nnx.State(
      {"blocks": {0: {"kernel": nnx.Param(bits(step, (3, 4), np.float32))}}, "bias": nnx.Param(jnp.float32(-0.0))}
    ),
    variables=nnx.State({"prior": nnx.BatchStat(bits(step, (5,), ml_dtypes.bfloat16))}),
    opt_state=({"mu": bits(step, (300, 300), np.float32), "count": jnp.int32(step)}, ()),
    rng=bits(step, (2,), np.uint32),
  )


def like(state):
  return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)


def raw(state):
  return [(x.dtype, x.shape, np.asarray(x).tobytes()) for x in jax.tree.leaves(state)]


def saved_steps(directory):
  return sorted(int(path.name) for path in directory.iterdir() if path.name.isdigit())


@pytest.fixture(scope="module")
def two(tmp_path_factory):
  """A directory with checkpoints of steps 5 and 7."""
  directory = tmp_path_factory.mktemp("two") / "checkpoints"
  with Checkpoints(directory) as checkpoints:
    for step in (5, 7):
      checkpoints.save(step, make_state(step), FACTS | {"step": step})
  return directory


@pytest.fixture
def copied(two, tmp_path):
  return shutil.copytree(two, tmp_path / "checkpoints")


def test_reading_says_nothing(two, caplog):
  with Checkpoints(two, read_only=True):
    pass
  assert not caplog.records


def test_bit_for_bit(two):
  with Checkpoints(two, read_only=True) as checkpoints:
    assert checkpoints.steps == [5, 7]
    for step in (5, 7):
      state, facts = checkpoints.restore(step, like(make_state()))
      assert raw(state) == raw(make_state(step))
      assert jax.tree.structure(state) == jax.tree.structure(make_state())
      assert facts == checkpoints.facts(step) == FACTS | {"step": step}


def test_what_is_done_after_a_save_is_not_in_it(tmp_path):
  """Steps take the saved arrays away while they are written; 16 MB of them, so that it is still going on."""
  state = {str(number): jnp.full(1 << 20, float(number)) for number in range(4)}
  abstract, expected = like(state), raw(state)

  @functools.partial(jax.jit, donate_argnums=0)
  def step(state):
    return jax.tree.map(lambda x: x + 1, state)

  with Checkpoints(tmp_path / "checkpoints") as checkpoints:
    jax.block_until_ready(step(jax.tree.map(jnp.copy, state)))
    checkpoints.save(1, state, {})
    for _ in range(5):
      state = step(state)
    jax.block_until_ready(state)
    checkpoints.wait()
    restored, _ = checkpoints.restore(1, abstract)
  assert raw(restored) == expected
  assert float(state["0"][0]) == 5


def test_the_newest_two_and_the_best_are_kept(tmp_path):
  kept = {}
  with Checkpoints(tmp_path / "checkpoints") as checkpoints:
    for step in range(1, 9):
      checkpoints.save(step, {"x": jnp.float32(step)}, {})
      if step in (2, 5):  # found to be the best after it was saved, as in a run
        checkpoints.best_step = step
      checkpoints.wait()
      kept[step] = saved_steps(tmp_path / "checkpoints")
      assert checkpoints.steps == kept[step]
    state, _ = checkpoints.restore(5, like({"x": jnp.float32(0)}))
    assert float(state["x"]) == 5
  assert kept == {
    1: [1], 2: [1, 2], 3: [2, 3], 4: [2, 3, 4], 5: [2, 4, 5], 6: [5, 6], 7: [5, 6, 7], 8: [5, 7, 8],
  }  # fmt: skip


def test_a_checkpoint_that_was_not_finished_is_removed(copied):
  """As it lies there when a process is killed while it writes."""
  for torn in ("9.orbax-checkpoint-tmp", "8.orbax-checkpoint-tmp-1234"):
    shutil.copytree(copied / "7", copied / torn)
    shutil.rmtree(copied / torn / "facts")
  with Checkpoints(copied, read_only=True) as checkpoints:
    assert checkpoints.steps == [5, 7]
  assert len(os.listdir(copied)) == 4  # who only reads removes nothing: somebody may be writing it
  with Checkpoints(copied) as checkpoints:
    assert checkpoints.steps == [5, 7]
    checkpoints.save(9, make_state(9), {})
    checkpoints.wait()
    assert raw(checkpoints.restore(9, like(make_state()))[0]) == raw(make_state(9))
  assert sorted(os.listdir(copied)) == ["7", "9"]


def largest(directory):
  return max((path for path in directory.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def flip_a_bit(step):
  path = largest(step)
  content = bytearray(path.read_bytes())
  content[len(content) // 2] ^= 1
  path.write_bytes(content)


DAMAGES = {
  "one bit": flip_a_bit,
  "half a file": lambda step: (path := largest(step)).write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
  "an empty file": lambda step: largest(step).write_bytes(b""),
  "another file": lambda step: (path := largest(step)).write_bytes(bytes(path.stat().st_size)),
  "no file": lambda step: largest(step).unlink(),
  "no state": lambda step: shutil.rmtree(step / "state"),
  "no facts": lambda step: shutil.rmtree(step / "facts"),
  "half the facts": lambda step: (step / "facts" / "metadata").write_text('{"best": {'),
  "an empty directory": lambda step: [shutil.rmtree(step), step.mkdir()],
}


QUICK = {"one bit", "no facts"}


@pytest.mark.parametrize(
  "damage", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in DAMAGES]
)
def test_an_unreadable_checkpoint_is_named(copied, damage):
  DAMAGES[damage](copied / "7")
  with pytest.raises(TrainingStopped) as stopped, Checkpoints(copied) as checkpoints:
    checkpoints.restore(7, like(make_state()))
  message = str(stopped.value)
  assert message.startswith(f"The checkpoint of step 7 in {copied} cannot be read: ")
  assert f"move the directory {copied / '7'} away and start again" in message
  shutil.move(copied / "7", copied.parent / "away")
  with Checkpoints(copied) as checkpoints:  # as the message says
    assert checkpoints.steps == [5]
    assert raw(checkpoints.restore(5, like(make_state()))[0]) == raw(make_state(5))


def test_a_checkpoint_of_another_model_is_not_read(copied):
  state = like(make_state())
  other = state._replace(rng=jax.ShapeDtypeStruct((4,), np.uint32, sharding=state.rng.sharding))
  for wrong in (other, state._replace(variables=nnx.State({}))):
    with (
      pytest.raises(TrainingStopped, match=r"The checkpoint of step 7 in .* cannot be read"),
      Checkpoints(copied) as checkpoints,
    ):
      checkpoints.restore(7, wrong)


def test_a_full_disk_leaves_the_last_good_checkpoint(copied):
  """The limit of a file's size stands in for the end of the disk."""
  limits = resource.getrlimit(resource.RLIMIT_FSIZE)
  with pytest.raises(TrainingStopped) as stopped, Checkpoints(copied) as checkpoints:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 16, limits[1]))
    try:
      checkpoints.save(9, make_state(9), {})
      checkpoints.wait()
    finally:
      resource.setrlimit(resource.RLIMIT_FSIZE, limits)
  message = str(stopped.value)
  assert message.startswith(f"The checkpoint of step 9 could not be written to {copied}: ")
  assert "The last good checkpoint is that of step 7." in message
  with Checkpoints(copied) as checkpoints:
    assert checkpoints.steps == [5, 7]
    assert raw(checkpoints.restore(7, like(make_state()))[0]) == raw(make_state(7))


def test_another_dtype_is_not_read(copied):
  state = like(make_state())
  prior = jax.ShapeDtypeStruct((5,), np.float32, sharding=state.rng.sharding)
  other = state._replace(variables=nnx.State({"prior": nnx.BatchStat(prior)}))
  with pytest.raises(TrainingStopped, match=r"The checkpoint of step 7 in .* cannot be read"):
    with Checkpoints(copied) as checkpoints:
      checkpoints.restore(7, other)


def test_reading_only_writes_nothing(two):
  before = sorted(two.rglob("*"))
  with Checkpoints(two, read_only=True) as checkpoints:
    checkpoints.facts(7)
  assert sorted(two.rglob("*")) == before


def test_a_relative_directory(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  with Checkpoints(Path("run/checkpoints")) as checkpoints:
    checkpoints.save(1, {"x": jnp.float32(3)}, {})
  assert saved_steps(tmp_path / "run" / "checkpoints") == [1]
