"""`lm.evaluate`: the perplexity of a checkpoint, what is written down, and how it goes on where it was stopped."""

import json
import math
import os
import signal

import jax
import numpy as np
import pytest

from lm import evaluate, trained
from lm.corpus import Corpus
from lm.windows import Scorer
from mgk_jax import training
from mgk_jax.training.progress import Progress


def places(folder):
  return {"workdir": folder / "run", "prepared_dir": folder}


def test_perplexity_by_the_definition(run, capsys):
  result = evaluate.evaluate(**places(run))
  loaded = trained.load(**places(run))
  model, tokens = loaded.model(), np.asarray(loaded.corpus.test)
  nll = jax.jit(lambda words, targets: model.nll(words[None], targets[None])[0])
  losses = list(nll(tokens[:8], tokens[1:9]))
  losses += [nll(tokens[s : s + 8], tokens[s + 1 : s + 9])[-1] for s in range(1, len(tokens) - 8)]
  assert result["tokens"] == len(losses) == len(tokens) - 1
  assert result["nll"] == pytest.approx(float(np.mean(losses)), abs=1e-5)
  assert result["perplexity"] == pytest.approx(math.exp(result["nll"]))
  assert result["protocol"] == "windows of 8 words sliding by 1 word, as in the paper"
  assert (result["window"], result["stride"], result["attention"]) == (8, 1, "smgk")
  written = list((run / "run/evaluation").iterdir())
  assert [path.name for path in written] == [f"test_step{result['step']}_window8_stride1.json"]
  assert json.loads(written[0].read_text()) == result

  evaluate.main([f"--workdir={run / 'run'}", f"--prepared_dir={run}", "--limit=20"])
  shown = capsys.readouterr().out
  assert f"perplexity {math.exp(np.mean(losses[:20])):.2f}, nll" in shown and "20 words (the first)" in shown
  assert "protocol: windows of 8 words sliding by 1 word, as in the paper" in shown


def test_segments_are_what_training_says(run):
  result = evaluate.evaluate(**places(run), segments=True)
  summary = json.loads((run / "run/summary.json").read_text())
  assert result["step"] == summary["best_step"]
  assert result["perplexity"] == pytest.approx(summary["test"]["segment_perplexity"], rel=1e-5)
  assert result["protocol"] == "segments of 8 words, each on its own"


def test_bits_of_bytes(run, capsys, monkeypatch):
  monkeypatch.setattr(Corpus, "unit", "byte")
  evaluate.main([f"--workdir={run / 'run'}", f"--prepared_dir={run}", "--split=valid", "--window=5", "--json"])
  result = json.loads(capsys.readouterr().out)
  assert result["bits_per_byte"] == pytest.approx(math.log2(result["perplexity"]))
  assert f"{result['bits_per_byte']:.4f} bits per byte" in evaluate.describe(result)
  assert "5 bytes" in result["protocol"]


def test_goes_on_where_it_was_stopped(run, monkeypatch):
  """After SIGTERM what was done is saved and not done again; the result is the same to the last bit."""
  options = {**places(run), "split": "valid", "batch_size": 4}
  expected = evaluate.evaluate(**options)
  advance = Progress.advance

  def stop(progress, metrics=None, steps=1):
    advance(progress, metrics, steps)
    if progress.done == 9:
      os.kill(os.getpid(), signal.SIGTERM)

  monkeypatch.setattr(Progress, "advance", stop)
  with pytest.raises(training.Interrupted, match=r"Stopped after \d+ of \d+ windows, which are saved in ") as stopped:
    evaluate.evaluate(**options)
  assert stopped.value.exit_code == 128 + signal.SIGTERM
  partial = run / "run/evaluation" / f"valid_step{expected['step']}_window8_stride1.partial.json"
  done = json.loads(partial.read_text())["score"]["windows"]
  assert 9 <= done <= 17

  monkeypatch.setattr(Progress, "advance", advance)
  begun = []
  original = Scorer.score
  monkeypatch.setattr(Scorer, "score", lambda self, *rest: begun.append(rest[3].windows) or original(self, *rest))
  result = evaluate.evaluate(**options)
  assert begun == [done] and not partial.exists()
  assert {**result, "seconds": 0} == {**expected, "seconds": 0}

  # The beginning of another checkpoint's evaluation is none of this one's.
  facts = {name: expected[name] for name in ("split", "step", "window", "stride", "limit", "checkpoint", "text")}
  partial.write_text(json.dumps({"facts": facts | {"checkpoint": 1}, "score": {"windows": 1, "nll": 1e6, "count": 8}}))
  assert evaluate.evaluate(**options)["nll"] == expected["nll"] and begun[1:] == [0]


@pytest.mark.parametrize(
  ("arguments", "message"),
  [
    (["--window=0"], "window: expected at least 1, got 0"),
    (["--stride=9"], "stride: expected 1 to window = 8"),
    (["--limit=0"], "limit: expected at least one word, got 0"),
    (["--batch_size=0"], "batch_size: expected a multiple of"),
    (["--step=7"], "expected best, latest or one of"),
    (["--workdir=nowhere"], "is no work directory of a run"),
  ],
)
def test_messages(run, arguments, message):
  with pytest.raises(SystemExit) as stopped:
    evaluate.main([f"--workdir={run / 'run'}", f"--prepared_dir={run}", *arguments])
  assert message in str(stopped.value)
