"""Steps of training and of evaluation, as the loop compiles them."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

import mgk_jax
from lra import model as lra_model
from mgk_jax.training import make_mesh, make_optimizer, state as states, step as steps
from tests.nn.compiling import jit
from tests.training import regression

ADAM = {"schedule": "constant", "learning_rate": 0.01, "warmup_steps": 0, "num_steps": 10, "b1": 0.9, "b2": 0.99}


def equal(a, b):
  return jax.tree.all(jax.tree.map(lambda x, y: bool(np.array_equal(x, y)), a, b))


def kept(state):
  """A copy, since a step takes its state away."""
  return jax.tree.map(lambda x: np.array(x), state)


def test_one_step_by_hand():
  """The gradient of the mean loss, sums of metrics, the norm of the gradient, and the model's own variable."""
  problem, batch = regression.make(), regression.batch(5)
  start = kept(problem.state)
  state, sums = regression.make_step(problem)(problem.state, batch)
  kernel, bias = start.params["linear"]["kernel"][...], start.params["linear"]["bias"][...]
  errors = (batch["x"] @ kernel + bias)[:, 0] - batch["y"]
  by_kernel, by_bias = 2 * batch["x"].T @ errors[:, None] / 5, 2 * errors.mean(keepdims=True)
  np.testing.assert_allclose(state.params["linear"]["kernel"][...], kernel - 0.1 * by_kernel, rtol=1e-5)
  np.testing.assert_allclose(state.params["linear"]["bias"][...], bias - 0.1 * by_bias, rtol=1e-5)
  np.testing.assert_allclose(state.variables["seen"][...], batch["x"].mean(0), rtol=1e-5)
  assert int(state.step) == 1 and np.array_equal(state.rng, start.rng)
  got = {name: float(value) for name, value in sums.items()}
  norm = np.sqrt(np.sum(by_kernel**2) + np.sum(by_bias**2))
  assert got == pytest.approx(
    {"loss": np.sum(errors**2), "accuracy": np.sum(errors**2 < 0.5), "count": 5, "tokens": 25, "grad_norm": norm}
  )


def test_rows_of_weight_0_do_not_count():
  batch = regression.batch(6)
  padded = {name: np.concatenate([rows, 7 * np.ones_like(rows[:2])]) for name, rows in batch.items()}
  padded["weights"][6:] = 0
  results = []
  for rows in (batch, padded):
    problem = regression.make()
    results.append(regression.make_step(problem)(problem.state, rows))
  (state, sums), (state_padded, sums_padded) = results
  for name in sums:
    np.testing.assert_allclose(sums[name], sums_padded[name], rtol=1e-6)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), state.params, state_padded.params)


@pytest.mark.parametrize("parts", [2, 3])
def test_accumulation_is_the_whole_batch(parts):
  """Sums, gradients and three updates; the model's variable goes from part to part."""
  batches = [regression.batch(6, seed) for seed in range(3)]
  batches[1]["weights"][4:] = 0
  whole, cut = regression.make(), regression.make()
  state, state_cut = whole.state, cut.state
  step, step_cut = regression.make_step(whole), regression.make_step(cut, accumulation_steps=parts)
  seen = np.zeros(regression.INPUTS)
  for batch in batches:
    state, sums = step(state, batch)
    state_cut, sums_cut = step_cut(state_cut, batch)
    for name in sums:
      np.testing.assert_allclose(sums[name], sums_cut[name], rtol=1e-5, err_msg=name)
    for part in range(parts):  # dealt out like cards
      seen = seen / 2 + batch["x"][part::parts].mean(0)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), state.params, state_cut.params)
  np.testing.assert_allclose(state_cut.variables["seen"][...], seen, rtol=1e-5)


def test_accumulation_of_a_classifier_with_an_em_prior():
  """The prior after two parts is that of two training calls; the loss of the first part is by the prior before it."""
  settings = {"attention": "mgk", "prior": "em", "implementation": "reference", "dropout_rate": 0.0}
  config = classifier(**settings, attention_dropout_rate=0.0)
  optimizer, batch = optax.sgd(0.0), tokens(4)
  structure, init, _ = plan(config, optimizer)
  state = jit(init)()
  after, _ = jit(steps.make_train_step(structure, lra_model.classify, optimizer, accumulation_steps=2))(state, batch)

  @jit
  def by_calls(state):
    model = structure.merge(state.params, state.variables)
    for part in (0, 1):
      model(batch["tokens"][part::2], lengths=batch["lengths"][part::2], deterministic=False)
    return states.variables_of(model)

  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, atol=1e-6), after.variables, by_calls(state))
  prior = after.variables["encoder"]["blocks"][0]["attention"]["prior"][...]
  assert np.max(np.abs(prior - 0.5)) > 1e-3


def test_the_first_state_is_a_function_of_the_seed():
  states = [kept(regression.make(optimizer=optax.adam(0.1), seed=seed).state) for seed in (3, 3, 4)]
  assert equal(states[0], states[1])
  for a, b in (
    (states[0].params["linear"]["kernel"], states[2].params["linear"]["kernel"]),
    (states[0].rng, states[2].rng),
  ):
    assert not equal(a, b)


class Diary(nnx.Module):
  """Writes down the random number of each call."""

  def __init__(self):
    self.weight = nnx.Param(jnp.ones(()))
    self.calls = nnx.BatchStat(jnp.zeros((), jnp.int32))
    self.draws = nnx.BatchStat(jnp.zeros(12))


def draw(model, batch, rngs):
  number = jax.random.uniform(rngs.dropout())
  model.draws[...] = model.draws[...].at[model.calls[...]].set(number)
  model.calls[...] += 1
  return {"loss": model.weight[...] * jnp.sum(batch["x"]), "count": jnp.float32(1)}


def test_each_step_and_each_part_has_a_key_of_its_own():
  def draws(seed):
    optimizer = optax.sgd(0.0)
    structure, init, _ = states.plan(lambda _: Diary(), optimizer, make_mesh(1), seed)
    step = jax.jit(steps.make_train_step(structure, draw, optimizer, accumulation_steps=3))
    state = init()
    for _ in range(4):
      state, _ = step(state, {"x": np.ones(6, np.float32)})
    return np.asarray(state.variables["draws"][...]).tolist()

  first = draws(0)
  assert len(set(first)) == 12 and min(first) > 0
  assert draws(0) == first
  assert not set(draws(1)) & set(first)


def test_the_same_step_gives_the_same_bits_and_the_next_another_mask():
  problem, batch = regression.make(rate=0.5), regression.batch(32)
  step = regression.make_step(problem)
  saved = kept(problem.state)
  after, sums = step(problem.state, batch)
  again, sums_again = step(saved, batch)
  assert equal(kept(after), kept(again)) and equal(sums, sums_again)
  later, sums_later = step(saved._replace(step=np.int32(1)), batch)  # the same but for the number of the step
  assert not equal(kept(later).params, kept(again).params)
  assert float(sums_later["loss"]) != float(sums["loss"])


def test_the_state_is_donated():
  problem, batch = regression.make(), regression.batch(4)
  state, _ = regression.make_step(problem)(problem.state, batch)
  assert all(x.is_deleted() for x in jax.tree.leaves(problem.state))
  assert not any(x.is_deleted() for x in jax.tree.leaves(state))


def test_evaluation_is_deterministic_and_changes_nothing():
  problem, batch = regression.make(rate=0.5), regression.batch(5)
  evaluate = steps.compile_eval_step(
    steps.make_eval_step(problem.structure, regression.objective), problem.mesh, problem.shardings
  )
  before = kept(problem.state)
  variables, sums = evaluate(problem.state.params, problem.state.variables, batch)
  assert equal((variables, sums), evaluate(problem.state.params, problem.state.variables, batch))
  assert equal(variables, problem.state.variables)
  assert equal(before, kept(problem.state))
  predicted = batch["x"] @ before.params["linear"]["kernel"][...] + before.params["linear"]["bias"][...]
  np.testing.assert_allclose(sums["loss"], np.sum((predicted[:, 0] - batch["y"]) ** 2), rtol=1e-5)
  assert sums.keys() == {"loss", "accuracy", "count", "tokens"}


def test_gradients_are_clipped_by_their_global_norm():
  """A clipped step is a step with the scaled gradient; the norm that is reported is that before."""
  optimizer, _ = make_optimizer(**ADAM, eps=1e-3, clip_norm=0.01)
  unclipped, _ = make_optimizer(**ADAM, eps=1e-3)
  problem, batch = regression.make(optimizer=optimizer), regression.batch(6)
  scaled = regression.make(optimizer=unclipped)
  before = kept(problem.state)
  state, sums = regression.make_step(problem, optimizer)(problem.state, batch)
  norm = float(sums["grad_norm"])
  assert norm > 0.1

  def small(model, batch, rngs):
    sums = regression.objective(model, batch, rngs)
    return sums | {"loss": sums["loss"] * 0.01 / norm}

  expected, sums = regression.make_step(scaled, unclipped, objective=small)(scaled.state, batch)
  assert float(sums["grad_norm"]) == pytest.approx(0.01, rel=1e-5)
  jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5), state.params, expected.params)
  assert not equal(kept(state).params, before.params)


def classifier(**settings):
  sizes = {"vocab_size": 9, "max_len": 6, "num_layers": 1, "emb_dim": 8, "mlp_dim": 8, "head_dim": 4}
  return mgk_jax.ClassifierConfig(**sizes, num_classes=3, classifier_dim=8, **settings)


def tokens(size):
  rng = np.random.default_rng(0)
  return {
    "tokens": rng.integers(1, 9, (size, 6)).astype(np.int32),
    "lengths": rng.integers(2, 7, size).astype(np.int32),
    "labels": rng.integers(0, 3, size).astype(np.int32),
    "weights": np.ones(size, np.float32),
  }


def plan(config, optimizer):
  return states.plan(lambda rngs: lra_model.make_model(config, rngs), optimizer, make_mesh(1), 0)


def test_bfloat16_computes_on_float32_parameters():
  optimizer, _ = make_optimizer(**ADAM, eps=1e-6)
  structure, init, _ = plan(classifier(dtype="bfloat16"), optimizer)
  step = steps.make_train_step(structure, lra_model.classify, optimizer)
  state = jax.eval_shape(init)
  after, sums = jax.eval_shape(step, state, tokens(4))
  floats = [x.dtype for x in jax.tree.leaves(after) if jnp.issubdtype(x.dtype, jnp.floating)]
  assert len(floats) > 3 * 20 and set(floats) == {jnp.dtype("float32")}  # parameters and two moments of each
  assert after == state  # nothing changes its shape or dtype
  assert {x.dtype for x in jax.tree.leaves(sums)} <= {jnp.dtype("float32"), jnp.dtype("int32")}
  text = str(jax.make_jaxpr(step)(state, tokens(4)))
  products = [line for line in text.splitlines() if "dot_general[" in line]
  assert any(":bf16[" in line.split("=")[0] for line in products)
