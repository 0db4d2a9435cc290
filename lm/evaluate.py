"""The perplexity of a trained model by the protocol of the paper's Table 3, on any number of devices.

    python -m lm.evaluate --workdir=runs/wt103_mgk                       # the test set, windows that slide by one word
    python -m lm.evaluate --workdir=runs/wt103_mgk --split=valid --limit=10000       # an estimate from the first words
    python -m lm.evaluate --workdir=runs/wt103_mgk --segments            # as during training: cheap, mostly higher

A window of as many words as in training slides by one word; of the first window all positions count, of each other one
the last. Without --step it is the best checkpoint on the validation set. The same command goes on where it was stopped.
What comes out is also in evaluation/ in the work directory, of which nothing else is changed.
"""

import dataclasses
import json
import math
import time
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from lm import trained, windows
from lm.datasets import SPLITS
from lm.windows import Protocol, Score, Scorer, Windows
from mgk_jax import console, training
from mgk_jax.data import DataError
from mgk_jax.training import mesh as meshes, processes, signals
from mgk_jax.training.progress import Progress
from mgk_jax.training.workdir import write_json

SECONDS_BETWEEN_SAVES = 20.0


def evaluate(
  workdir: str | Path,
  *,
  split: str = "test",
  step: str | int = "best",
  window: int | None = None,
  stride: int = 1,
  segments: bool = False,
  batch_size: int | None = None,
  limit: int | None = None,
  data_dir: str | Path | None = None,
  prepared_dir: str | Path | None = None,
) -> dict[str, Any]:
  """Perplexity of a checkpoint on a split.

  Args:
    workdir: of a run.
    split: "train", "valid" or "test".
    step: "best", "latest" or a number.
    window: words that are seen at once; None for as many as in training.
    stride: by how many words a window slides.
    segments: the same as a stride of `window`.
    batch_size: windows at once, in all; None for what suits the devices.
    limit: of how many words at most, from the beginning.
    data_dir, prepared_dir: as in `lm.train.train`.

  Returns:
    What is also written to evaluation/ in the work directory: "perplexity", "nll", "tokens", "protocol" and others; of
    bytes also "bits_per_byte".

  Raises:
    ValueError: a number that is not allowed.
    TrainingStopped: there is no such run or checkpoint, it cannot be read, or nothing can be written.
    Interrupted: it was asked to stop, and can be gone on with.
    DataError: there are no data.
  """
  run = trained.load(workdir, step=step, data_dir=data_dir, prepared_dir=prepared_dir)
  length = run.config.data.length if window is None else window
  protocol = Protocol(length, length if segments else stride)
  if limit is not None and limit < 1:
    raise ValueError(f"limit: expected at least one word, got {limit}")
  tokens = run.corpus.split(split)[: None if limit is None else limit + 1]
  text = Windows(tokens, protocol)
  settings = run.model().config
  if batch_size is None:
    batch_size = windows.default_batch_size(settings, protocol.window, run.mesh.shape[meshes.DATA])
  scorer = Scorer(run.structure, run.mesh, protocol, batch_size)

  facts = {
    "split": split,
    "step": run.step,
    **dataclasses.asdict(protocol),
    "limit": limit,
    "checkpoint": run.checksum,
    "text": zlib.crc32(np.ascontiguousarray(tokens).data),
  }
  store = _Store(run.directory, facts)
  seconds = time.monotonic()
  score = _score(scorer, run, text, store)
  unit = run.corpus.unit
  result = {
    "perplexity": math.exp(min(score.mean, 700.0)),  # the largest float is e^709
    "nll": score.mean,
    "tokens": score.count,
    "protocol": protocol.describe(unit),
    **({"bits_per_byte": score.mean / math.log(2)} if unit == "byte" else {}),
    **facts,
    "dataset": run.corpus.name,
    "attention": settings.attention,
    "num_heads": settings.num_heads,
    "seconds": time.monotonic() - seconds,
    "notes": run.corpus.notes,
  }
  store.finish(result)
  return result


def _score(scorer: Scorer, run: trained.Trained, text: Windows, store: "_Store") -> Score:
  """All windows, going on from what the store has, with what is done put there now and then."""
  score, saved = store.load(), time.monotonic()
  progress = Progress(
    store.name, total=len(text), done=score.windows, unit="window", leave=False, enabled=jax.process_index() == 0
  )
  with signals.listen() as stop, progress:
    for now in scorer.score(run.params, run.variables, text, score, stop):
      progress.advance({"perplexity": math.exp(min(now.mean, 700.0))}, now.windows - score.windows)
      score = now
      if time.monotonic() - saved > SECONDS_BETWEEN_SAVES:
        store.save(score)
        saved = time.monotonic()
    if stop and score.windows < len(text):
      store.save(score)
      raise training.Interrupted(
        f"Stopped after {score.windows:,} of {len(text):,} windows, which are saved in {store.partial}. "
        "Start again with the same command to go on.",
        stop.exit_code,
      )
  return score


class _Store:
  """What is known of an evaluation so far, in the work directory, and at last its result; process 0 writes it."""

  def __init__(self, directory: training.Workdir, facts: dict[str, Any]):
    self.facts = facts
    limit = f"_limit{facts['limit']}" if facts["limit"] else ""
    self.name = f"{facts['split']}_step{facts['step']}_window{facts['window']}_stride{facts['stride']}{limit}"
    self.result = directory.path / "evaluation" / f"{self.name}.json"
    self.partial = self.result.with_suffix(".partial.json")

  def load(self) -> Score:
    """What was done before, with this very checkpoint, text and protocol; else nothing."""
    score = Score()
    if jax.process_index() == 0 and self.partial.exists():
      try:
        content = json.loads(self.partial.read_text())
        if content["facts"] == self.facts:
          score = Score(**content["score"])
      except (OSError, ValueError, KeyError, TypeError):
        pass  # what cannot be read is done again
    return Score(**json.loads(processes.from_first(json.dumps(dataclasses.asdict(score)))))

  def save(self, score: Score) -> None:
    """Writes down what is done.

    Raises:
      TrainingStopped: it cannot be written.
    """
    self._write(self.partial, {"facts": self.facts, "score": dataclasses.asdict(score)})

  def finish(self, result: dict[str, Any]) -> None:
    """Writes the result, in the place of what was done on the way to it.

    Raises:
      TrainingStopped: it cannot be written.
    """
    self._write(self.result, result)
    if jax.process_index() == 0:
      self.partial.unlink(missing_ok=True)

  def _write(self, path: Path, content: dict[str, Any]) -> None:
    if jax.process_index() != 0:
      return
    try:
      path.parent.mkdir(exist_ok=True)
      write_json(path, content)
    except OSError as error:
      raise training.TrainingStopped(f"{path} cannot be written: {error}") from error


def describe(result: dict[str, Any]) -> str:
  """The result in a few lines."""
  unit = "bytes" if "bits_per_byte" in result else "words"
  bits = f", {result['bits_per_byte']:.4f} bits per byte" if "bits_per_byte" in result else ""
  lines = [
    f"{result['dataset']} {result['split']}, step {result['step']}: perplexity {result['perplexity']:.2f}{bits}, "
    f"nll {result['nll']:.4f}, {result['tokens']:,} {unit}" + (" (the first)" if result["limit"] else ""),
    f"protocol: {result['protocol']}",
  ]
  return "\n".join([*lines, *(f"data: {note}" for note in result["notes"])])


def main(argv: Sequence[str] | None = None) -> None:
  """The command."""
  parser = console.parser("lm.evaluate", __doc__)
  parser.add_argument("--workdir", required=True, help="of the run")
  parser.add_argument("--split", default="test", choices=SPLITS)
  parser.add_argument("--step", default="best", help="best (the default), latest, or the number of a step")
  parser.add_argument("--window", type=int, help="words that are seen at once (default: as many as in training)")
  parser.add_argument("--stride", type=int, default=1, help="by how many words a window slides (default: 1)")
  parser.add_argument("--segments", action="store_true", help="windows that do not overlap")
  parser.add_argument("--batch_size", type=int, help="windows at once, on all devices together")
  parser.add_argument("--limit", type=int, help="so many words from the beginning, and no more")
  parser.add_argument("--data_dir", help="raw files, if they are not prepared yet")
  parser.add_argument("--prepared_dir", help="where prepared data are")
  processes.add_arguments(parser)
  parser.add_argument("--json", action="store_true", help="print JSON")
  args = vars(parser.parse_args(argv))
  as_json = args.pop("json")
  with training.reported(DataError, ValueError):
    processes.join(processes.Place(*(args.pop(name) for name in processes.FLAGS)))
    result = evaluate(**args)
    if jax.process_index() == 0:
      print(json.dumps(result) if as_json else describe(result))


if __name__ == "__main__":
  main()
