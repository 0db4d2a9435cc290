"""A run that is killed at any moment and started again ends as one that was never stopped, to the bit."""

import json
import random
import signal

import pytest

from tests.lra import small

# Checkpoints at 40, 50, 80, 100 and 120, records at multiples of 7, and dropout.
ARG = (
  "mgk,prior=em,length=24,steps=120,warmup=20,eval_every=50,checkpoint_every=40,log_every=7,"
  "dropout=0.1,attention_dropout=0.1"
)


def write_reviews(folder):
  """Good ones to train on and bad ones to judge by, so many that this takes longer than a save.

  A model that has learnt to call everything good is as bad at every evaluation: the first one is the best.
  """
  rng = random.Random(0)
  for part, number in (("train/pos", 60), ("train/neg", 2), ("test/pos", 2), ("test/neg", 1500)):
    (folder / "aclImdb" / part).mkdir(parents=True)
    for i in range(number):
      (folder / "aclImdb" / part / f"{i}_5.txt").write_bytes(rng.randbytes(rng.randint(5, 30)))


def torn(workdir):
  """What is left, or there so far, of checkpoints that are not complete."""
  return list((workdir / "checkpoints").glob("*.orbax-checkpoint-tmp"))


def between_checkpoints(workdir):
  """Some steps after a checkpoint, which those steps are not in."""
  saved, done = small.checkpoints(workdir), small.records(workdir, "train")
  return bool(saved and done) and max(done) > saved[-1] and not torn(workdir)


def evaluating(workdir):
  """The checkpoint of an evaluation is there, its result is not."""
  saved = small.checkpoints(workdir)
  return 50 in saved and not torn(workdir) and saved[-1] % 50 == 0 and saved[-1] not in small.records(workdir, "valid")


def saving(workdir):
  """In the middle of a save, when the best step is known to the checkpoint before it."""
  return any(int(path.name.partition(".")[0]) >= 100 for path in torn(workdir))


def kill_when(moment, command, workdir):
  """Runs the command and kills it for good at a moment; the process is halted while that is looked at again."""
  with small.start(command) as process:
    hit = False
    while not hit:
      small.wait_for(lambda: moment(workdir), process)
      process.send_signal(signal.SIGSTOP)
      hit = moment(workdir)
      process.send_signal(signal.SIGKILL if hit else signal.SIGCONT)
    process.communicate(timeout=60)
  assert process.returncode == -signal.SIGKILL
  assert moment(workdir), "it was killed at another moment"


@pytest.mark.parametrize(
  "moments", [[saving], pytest.param([between_checkpoints, evaluating, saving], marks=pytest.mark.slow)], ids=len
)
def test_killed(tmp_path, moments):
  write_reviews(tmp_path / "raw")
  prepared = small.prepare_raw("text", tmp_path)
  reference, killed = tmp_path / "reference", tmp_path / "killed"
  with small.start(small.command(ARG, reference, prepared, "text")) as never_stopped:
    command = small.command(ARG, killed, prepared, "text")
    for moment in moments:
      kill_when(moment, command, killed)
    assert max(small.checkpoints(killed)) in (80, 100) and small.records(killed, "valid")
    done = small.run(command)
    out, err = never_stopped.communicate(timeout=300)
  assert (never_stopped.returncode, done.returncode) == (0, 0), (err, done.stderr)
  assert not torn(killed), "what a kill left behind is removed"
  assert len((killed / "environment.jsonl").read_text().splitlines()) == len(moments) + 1

  small.assert_same_run(killed, reference)
  assert done.stdout.splitlines()[:2] == out.splitlines()[:2]  # parameters, steps and accuracies
  summary = json.loads((killed / "summary.json").read_text())
  assert summary["best_step"] == 50 and small.checkpoints(killed) == [50, 100, 120]
  # What is compared holds all that a run consists of, and it has moved.
  last, before = small.checkpoint(killed, 120), small.checkpoint(killed, 100)
  assert last["['step']"] == 120
  moved = [name for name in last if not (last[name] == before[name]).all()]
  for part in ("['params']", "['variables']", "['opt_state']"):
    assert any(name.startswith(part) for name in moved)
