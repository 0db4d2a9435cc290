"""Writes text with a trained model.

    python -m lm.generate --workdir=runs/wt103_mgk --prompt="The history of"
    python -m lm.generate --workdir=runs/wt103_mgk --prompt=A --prompt=B --num_tokens=500 --top_p=0.9 --seed=3
    python -m lm.generate --workdir=runs/wt103_mgk --prompts=prompts.txt --greedy --json

Words are separated by spaces, as in the corpus, and those that it does not know are <unk>; the end of a line is <eos>,
with which a text without a prompt begins. Without --step it is the best checkpoint on the validation set.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lm import trained
from lm.generator import Generator, Words, continuations
from lm.raw import UNKNOWN
from lm.sampling import Sampling
from mgk_jax import console, training
from mgk_jax.data import DataError
from mgk_jax.training.progress import Progress


def generate(
  run: trained.Trained,
  prompts: Sequence[str],
  *,
  num_tokens: int = 100,
  sampling: Sampling | None = None,
  cache_len: int | None = None,
  seed: int = 0,
) -> dict[str, Any]:
  """Continues each of the prompts.

  Args:
    run: the model.
    prompts: texts; an empty one stands for the beginning of a line.
    num_tokens: words to be written after each.
    sampling: how words are chosen.
    cache_len: how many words softmax and Gaussian attention see; None for as many as in training.
    seed: of all choices; the same seed writes the same texts.

  Returns:
    {"texts": a dictionary for each prompt, with "prompt", "continuation", the mean "log_prob" of its words, and
    "unknown", how many words of the prompt the vocabulary lacks; "tokens_per_second", of all texts together}.

  Raises:
    ValueError: a number that is not allowed.
  """
  encoded = [run.corpus.encode(prompt).tolist() or run.corpus.encode("\n").tolist() for prompt in prompts]
  generator = Generator(run.structure, sampling or Sampling(), cache_len)
  total = max(map(len, encoded)) - min(map(len, encoded)) + num_tokens
  parts: list[Words] = []
  with Progress("generating", total=total, unit=run.corpus.unit, leave=False) as progress:
    for part in generator(run.params, run.variables, encoded, num_tokens, seed):
      parts.append(part)
      progress.advance(steps=min(generator.steps, total - progress.done))
  tokens = continuations([part.tokens for part in parts], encoded, num_tokens)
  log_probs = continuations([part.log_probs for part in parts], encoded, num_tokens)
  known = None if run.corpus.unit == "byte" else set(run.corpus.words)
  return {
    "texts": [
      {
        "prompt": prompt,
        "continuation": run.corpus.decode(row),
        "log_prob": float(np.mean(scores)),
        "unknown": 0 if known is None else sum(word not in known for word in prompt.encode().split()),
      }
      for prompt, row, scores in zip(prompts, tokens, log_probs, strict=True)
    ],
    "tokens_per_second": sum(part.tokens.size for part in parts) / sum(part.seconds for part in parts),
  }


def describe(result: dict[str, Any], unit: str) -> str:
  """The texts, each after its prompt."""
  between = "" if unit == "byte" else " "
  return "\n\n".join(f"{text['prompt']}{between}{text['continuation']}".strip() for text in result["texts"])


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  parser = console.parser("lm.generate", __doc__)
  parser.add_argument("--workdir", required=True, help="of the run")
  parser.add_argument("--step", default="best", help="best (the default), latest, or the number of a step")
  parser.add_argument("--prompt", action="append", default=[], help="how a text begins; may be given several times")
  parser.add_argument("--prompts", help="a file with one prompt in each line")
  parser.add_argument("--num_samples", type=int, default=1, help="texts for each prompt (default 1)")
  parser.add_argument("--num_tokens", type=int, default=100, help="words after each prompt (default 100)")
  parser.add_argument("--greedy", action="store_true", help="always the most probable word; as --temperature=0")
  parser.add_argument("--temperature", type=float, default=1.0, help="below 1 for likelier words (default 1)")
  parser.add_argument("--top_k", type=int, help="choose among so many of the most probable words")
  parser.add_argument("--top_p", type=float, help="choose among the most probable words of this probability together")
  parser.add_argument("--no_unk", action="store_true", help="never write <unk>")
  parser.add_argument("--cache_len", type=int, help="words that attention sees (default: as many as in training)")
  parser.add_argument("--seed", type=int, default=0, help="of all choices (default 0)")
  parser.add_argument("--data_dir", help="raw files, if they are not prepared yet")
  parser.add_argument("--prepared_dir", help="where prepared data are")
  parser.add_argument("--json", action="store_true", help="print JSON")
  args = parser.parse_args(argv)
  with training.reported(DataError, ValueError, OSError):
    prompts = [*args.prompt, *(Path(args.prompts).read_text().splitlines() if args.prompts else [])] or [""]
    if args.num_samples < 1:
      raise ValueError(f"--num_samples: expected at least 1, got {args.num_samples}")
    sampling = Sampling(0.0 if args.greedy else args.temperature, args.top_k, args.top_p)  # before a model is loaded
    run = trained.load(
      args.workdir,
      step=args.step,
      data_dir=args.data_dir,
      prepared_dir=args.prepared_dir,
      devices=jax.local_devices()[:1],
    )
    if args.no_unk and run.corpus.unit == "word":
      sampling = Sampling(sampling.temperature, args.top_k, args.top_p, (run.corpus.words.index(UNKNOWN),))
    result = generate(
      run,
      [prompt for prompt in prompts for _ in range(args.num_samples)],
      num_tokens=args.num_tokens,
      sampling=sampling,
      cache_len=args.cache_len,
      seed=args.seed,
    )
    print(json.dumps(result) if args.json else describe(result, run.corpus.unit))
    for text in result["texts"]:
      if text["unknown"]:
        print(f"Note: {text['unknown']} words of {text['prompt']!r} are not in the vocabulary.", file=sys.stderr)
    together = f", {len(result['texts'])} texts at once" if len(result["texts"]) > 1 else ""
    print(f"{result['tokens_per_second']:,.1f} {run.corpus.unit}s/s{together}", file=sys.stderr)


if __name__ == "__main__":
  main()
