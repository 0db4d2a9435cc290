"""Generation gives every word the probability that a pass over the whole text gives it; the command."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import mgk_jax
from lm import generate, trained
from lm.generator import Generator, continuations
from lm.sampling import Sampling
from mgk_jax import training
from mgk_jax.training import state as states
from tests.nn import projecting

V, SIZE = 20, 24
PROMPTS = [[3, 1, 4], [1, 5, 9, 2, 6, 5, 3], [5]]


def make(**settings):
  sizes = {"num_layers": 1, "emb_dim": 8, "mlp_dim": 8, "num_heads": 2, "head_dim": 4, "cutoffs": (5, 12)}
  config = mgk_jax.LanguageModelConfig(vocab_size=V, max_len=SIZE, **sizes, **settings)
  structure, state = states.create(
    lambda rngs: projecting.randomise(mgk_jax.LanguageModel(config, rngs=rngs)), optax.sgd(1.0), training.make_mesh(), 0
  )
  return structure, (state.params, state.variables)


def write(generator, arrays, prompts, num_tokens, seed=0):
  parts = list(generator(*arrays, prompts, num_tokens, seed))
  return [
    continuations([getattr(part, name) for part in parts], prompts, num_tokens) for name in ("tokens", "log_probs")
  ]


@pytest.mark.parametrize("attention", ["softmax", "linear", "mgk", "smgk", "mlk", "smlk"])
def test_token_by_token_it_is_the_full_pass(attention):
  """For prompts of different lengths together: each chosen word is the likeliest, and each log p that of one pass."""
  structure, arrays = make(attention=attention, implementation="reference")
  tokens, log_probs = write(Generator(structure, Sampling(temperature=0.0), steps=4), arrays, PROMPTS, 10)
  model = structure.merge(*arrays)
  model.eval()
  texts = np.zeros((3, SIZE), np.int32)
  for row, (prompt, continued) in enumerate(zip(PROMPTS, tokens, strict=True)):
    texts[row, : len(prompt) + 10] = [*prompt, *continued]
  everything = np.asarray(jax.jit(lambda texts: model.log_probs(model.hidden(texts)))(jnp.asarray(texts)))
  for row, prompt in enumerate(PROMPTS):
    expected = everything[row, len(prompt) - 1 : len(prompt) + 9]
    assert np.array_equal(tokens[row], expected.argmax(-1))
    np.testing.assert_allclose(log_probs[row], expected.max(-1), atol=1e-4)


def test_seeds_prompts_and_sizes_of_calls():
  """A seed decides all; what is made at once does not matter, nor that a long prompt is read in pieces."""
  structure, arrays = make(attention="mgk", implementation="reference")
  sampling = Sampling(temperature=1.5, top_k=15)
  whole = Generator(structure, sampling, steps=8)
  first, again, other = (write(whole, arrays, PROMPTS[:2], 9, seed)[0] for seed in (0, 0, 1))
  assert all(np.array_equal(*rows) for rows in zip(first, again, strict=True))
  assert not all(np.array_equal(*rows) for rows in zip(first, other, strict=True))
  in_pieces = write(Generator(structure, sampling, steps=5), arrays, PROMPTS[:2], 9)[0]
  assert all(np.array_equal(*rows) for rows in zip(first, in_pieces, strict=True))


def test_a_cache_that_slides():
  """With a cache of four words and one layer, the next word depends on the last four alone, and on where they are."""
  structure, arrays = make(attention="softmax", implementation="reference")
  generator = Generator(structure, Sampling(temperature=0.0), cache_len=4, steps=6)
  tokens, log_probs = write(generator, arrays, [[7, 7, 7, 7, 7, 1, 2, 3, 4], [8, 9, 8, 9, 8, 1, 2, 3, 4]], 6)
  assert np.array_equal(*tokens)
  np.testing.assert_allclose(*log_probs, atol=1e-5)
  model = structure.merge(*arrays)
  hidden = model.hidden(jnp.array([[1, 2, 3, 4]]), positions=jnp.arange(5, 9), deterministic=True)
  np.testing.assert_allclose(log_probs[0][0], model.log_probs(hidden[0, -1]).max(), atol=1e-4)


def test_malformed():
  structure, arrays = make(attention="softmax")
  generator = Generator(structure, Sampling())
  with pytest.raises(ValueError, match="prompts: expected at least one, each of at least one word"):
    next(generator(*arrays, [[1], []], 3))
  with pytest.raises(ValueError, match="num_tokens: expected at least 1, got 0"):
    next(generator(*arrays, [[1]], 0))
  with pytest.raises(ValueError, match="cache_len: expected at least 1, got 0"):
    Generator(structure, Sampling(), cache_len=0)


def test_the_command(run, capsys):
  (run / "prompts.txt").write_text("word1 word2\nsomething word3\n")
  arguments = [f"--workdir={run / 'run'}", f"--prepared_dir={run}", "--num_tokens=7", "--top_p=0.9", "--no_unk"]
  generate.main([*arguments, f"--prompts={run / 'prompts.txt'}", "--prompt=Ω", "--json", "--seed=2"])
  shown = capsys.readouterr()
  result = json.loads(shown.out)
  assert [text["prompt"] for text in result["texts"]] == ["Ω", "word1 word2", "something word3"]
  assert [text["unknown"] for text in result["texts"]] == [0, 0, 1]
  assert "Note: 1 words of 'something word3' are not in the vocabulary." in shown.err
  assert "words/s, 3 texts at once" in shown.err and result["tokens_per_second"] > 0
  corpus = trained.load(run / "run", prepared_dir=run).corpus
  for text in result["texts"]:
    assert len(corpus.encode(text["continuation"])) == 7 and "<unk>" not in text["continuation"]
    assert text["log_prob"] < 0

  generate.main([*arguments, "--greedy"])  # without a prompt
  assert capsys.readouterr().out.strip()


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--top_k=0"], "top_k: expected at least 1, got 0"),
    (["--num_samples=0"], "--num_samples: expected at least 1, got 0"),
    (["--prompts=nowhere.txt"], "nowhere.txt"),
    (["--step=99"], "expected best, latest or one of"),
  ],
)
def test_messages(run, arguments, message):
  with pytest.raises(SystemExit) as stopped:
    generate.main([f"--workdir={run / 'run'}", f"--prepared_dir={run}", *arguments])
  assert message in str(stopped.value)
