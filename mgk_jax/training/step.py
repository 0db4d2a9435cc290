"""One step of training and one of evaluation, as pure functions to be compiled."""

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import Mesh

from mgk_jax.kernels.heads import sharded_heads
from mgk_jax.training import mesh as meshes
from mgk_jax.training.state import Structure, TrainState, variables_of

Batch = Mapping[str, jax.Array]
Sums = dict[str, jax.Array]  # metrics summed over the examples of a batch; "count" is the number of examples
EvalStep = Callable[[nnx.State, nnx.State, Batch], tuple[nnx.State, Sums]]
Objective = Callable[[Any, Batch, nnx.Rngs | None], Sums]  # of a model; "loss" is what training makes small


def make_train_step(
  structure: Structure,
  objective: Objective,
  optimizer: optax.GradientTransformation,
  *,
  accumulation_steps: int = 1,
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
  """A step of training: (state, batch) to (state, sums of the metrics and "grad_norm").

  The loss is the sum over the batch divided by its count. With accumulation the batch is cut into parts, one after
  another, so that only one part's activations are held. Each step, and each part of it, has a key of its own.
  """

  def gradient(params: nnx.State, variables: nnx.State, batch: Batch, key: jax.Array) -> Any:
    def summed_loss(params: nnx.State) -> Any:
      model = structure.merge(params, variables)
      sums = objective(model, batch, nnx.Rngs(dropout=key))
      return sums["loss"], (sums, variables_of(model))

    return jax.grad(summed_loss, has_aux=True)(params)

  def step(state: TrainState, batch: Batch) -> tuple[TrainState, Sums]:
    key = jax.random.fold_in(jax.random.wrap_key_data(state.rng), state.step)
    if accumulation_steps == 1:
      grads, (sums, variables) = gradient(state.params, state.variables, batch, key)
    else:

      def accumulate(carry: Any, part: Any) -> Any:
        grads, sums, variables = carry
        number, batch = part
        more_grads, (more_sums, variables) = gradient(state.params, variables, batch, jax.random.fold_in(key, number))
        return (*jax.tree.map(jnp.add, (grads, sums), (more_grads, more_sums)), variables), None

      parts = jax.tree.map(lambda x: _deal(x, accumulation_steps), dict(batch))
      first = jax.tree.map(lambda x: x[0], parts)
      shapes = jax.eval_shape(gradient, state.params, state.variables, first, key)
      zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), (shapes[0], shapes[1][0]))
      start = (*zeros, state.variables)
      (grads, sums, variables), _ = jax.lax.scan(accumulate, start, (jnp.arange(accumulation_steps), parts))
    grads = jax.tree.map(lambda grad: grad / sums["count"], grads)
    updates, opt_state = optimizer.update(grads, state.opt_state, state.params)
    params = optax.apply_updates(state.params, updates)
    sums = sums | {"grad_norm": optax.tree.norm(grads)}
    return TrainState(state.step + 1, params, variables, opt_state, state.rng), sums

  return step


def _deal(x: jax.Array, parts: int) -> jax.Array:
  """[B, …] as [parts, B / parts, …], dealt out like cards: the rows of a device stay there."""
  return jnp.moveaxis(x.reshape(-1, parts, *x.shape[1:]), 1, 0)


def make_eval_step(structure: Structure, objective: Objective) -> EvalStep:
  """A step of evaluation: (params, variables, batch) to (variables, sums of the metrics).

  The variables are those for the next batch, for models that carry something along; EM priors stay as they are.
  """

  def step(params: nnx.State, variables: nnx.State, batch: Batch) -> tuple[nnx.State, Sums]:
    model = structure.merge(params, variables)
    model.eval()
    sums = objective(model, batch, None)
    return variables_of(model), sums

  return step


def compile_train_step(
  step: Callable[[TrainState, Batch], tuple[TrainState, Sums]], mesh: Mesh, shardings: TrainState
) -> Callable[[TrainState, Batch], tuple[TrainState, Sums]]:
  """The step under jit: the state is donated and stays where it lies, metrics are on every device."""
  return jax.jit(
    _on(mesh, step),
    in_shardings=(shardings, meshes.batch_sharding(mesh)),
    out_shardings=(shardings, meshes.replicated(mesh)),
    donate_argnums=0,
  )


def compile_eval_step(step: EvalStep, mesh: Mesh, shardings: TrainState) -> EvalStep:
  """The step of evaluation under jit."""
  return jax.jit(
    _on(mesh, step),
    in_shardings=(shardings.params, shardings.variables, meshes.batch_sharding(mesh)),
    out_shardings=(shardings.variables, meshes.replicated(mesh)),
  )


def _on(mesh: Mesh, step: Callable[..., Any]) -> Callable[..., Any]:
  """The step with its attention cut as batch and heads are."""

  @functools.wraps(step)
  def on_mesh(*arguments: Any) -> Any:
    with sharded_heads(mesh, batch=meshes.DATA, heads=meshes.MODEL):
      return step(*arguments)

  return on_mesh
