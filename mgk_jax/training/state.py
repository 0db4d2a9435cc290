"""What changes in training, and how it starts: laid out on the mesh from the first moment."""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from mgk_jax.training import mesh as meshes


class TrainState(NamedTuple):
  """All that a step reads and writes; the same structure also holds the shardings of it all.

  Attributes:
    step: number of steps done.
    params: what the optimiser changes.
    variables: what the model changes itself, such as EM priors.
    opt_state: of the optimiser.
    rng: data of the key from which each step derives its own.
  """

  step: Any
  params: Any
  variables: Any
  opt_state: Any
  rng: Any


class Structure(NamedTuple):
  """What does not change: the model without its arrays."""

  graphdef: nnx.GraphDef
  streams: nnx.State  # random streams of the modules' own, which training does not use: it brings a key to each call

  def merge(self, params: nnx.State, variables: nnx.State) -> Any:
    """The model, with copies of its variables so that it may change them under a gradient."""
    return nnx.merge(self.graphdef, params, self.streams, variables, copy=True)


def variables_of(model: nnx.Module) -> nnx.State:
  """The variables of a model that are neither parameters nor random streams."""
  return nnx.state(model, nnx.Not(nnx.Any(nnx.Param, nnx.RngState)))


def create(
  make_model: Callable[[nnx.Rngs], nnx.Module], optimizer: optax.GradientTransformation, mesh: Mesh, seed: int
) -> tuple[Structure, TrainState]:
  """A model's structure and its first state, a function of the seed alone, whatever the mesh."""
  structure, init, shardings = plan(make_model, optimizer, mesh, seed)
  return structure, jax.jit(init, out_shardings=shardings)()


def plan(
  make_model: Callable[[nnx.Rngs], nnx.Module], optimizer: optax.GradientTransformation, mesh: Mesh, seed: int
) -> tuple[Structure, Callable[[], TrainState], TrainState]:
  """The structure, a function that makes the first state, and that state's shardings; no array is made."""

  def init() -> TrainState:
    key = jax.random.key(seed)
    model = make_model(nnx.Rngs(jax.random.fold_in(key, 0)))
    params = nnx.state(model, nnx.Param)
    rng = jax.random.key_data(jax.random.fold_in(key, 1))
    return TrainState(jnp.zeros((), jnp.int32), params, variables_of(model), optimizer.init(params), rng)

  abstract_model = nnx.eval_shape(lambda: make_model(nnx.Rngs(0)))
  graphdef, *parts = nnx.split(abstract_model, nnx.Param, nnx.RngState, ...)
  streams = jax.tree.map(_unused_stream, parts[1])
  state = jax.eval_shape(init)
  params = meshes.variable_shardings(mesh, state.params)
  shardings = TrainState(
    step=meshes.replicated(mesh),
    params=params,
    variables=meshes.variable_shardings(mesh, state.variables),
    opt_state=meshes.optimizer_shardings(optimizer, mesh, state.opt_state, params),
    rng=meshes.replicated(mesh),
  )
  return Structure(graphdef, streams), init, shardings


def _unused_stream(leaf: Any) -> jax.Array:
  """An array for a stream that is never drawn from."""
  return jax.random.key(0) if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key) else jnp.zeros(leaf.shape, leaf.dtype)
