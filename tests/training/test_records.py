"""metrics.jsonl and TensorBoard files, over resumes and after a process was killed."""

import json
import struct

import pytest
from tensorboardX.proto import event_pb2

from mgk_jax.training import TrainingStopped
from mgk_jax.training.records import Records, read


def write(directory, steps, *, resumed_at=0, evaluate_every=4):
  """What a run writes: at each step "train", and "valid" where it evaluates."""
  with Records(directory, resumed_at=resumed_at) as records:
    for step in steps:
      if step > resumed_at:
        records.write(step, "train", {"loss": 1 / step, "learning_rate": 1e-4}, measured={"steps/s": 3.0})
      if step % evaluate_every == 0:
        records.write(step, "valid", {"accuracy": step / 7})


def test_a_line_each(tmp_path):
  write(tmp_path, [3, 4])
  lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
  assert [json.loads(line) for line in lines] == [
    {"step": 3, "train": {"loss": 1 / 3, "learning_rate": 1e-4}},  # no speed: that is of the machine
    {"step": 4, "train": {"loss": 0.25, "learning_rate": 1e-4}},
    {"step": 4, "valid": {"accuracy": 4 / 7}},
  ]
  assert read(tmp_path / "metrics.jsonl") == [json.loads(line) for line in lines]
  assert read(tmp_path / "missing.jsonl") == []


@pytest.mark.parametrize("resumed_at", [0, 3, 4, 8])
@pytest.mark.parametrize("cut", [0, 1, 30], ids=["whole", "no newline", "half a line"])
def test_a_resumed_run_has_the_bytes_of_one_that_was_not_stopped(tmp_path, resumed_at, cut):
  """At step 8 there is an evaluation that the checkpoint of step 8 does not know of: it is done again."""
  (tmp_path / "whole").mkdir()
  (tmp_path / "stopped").mkdir()
  write(tmp_path / "whole", range(1, 13))
  write(tmp_path / "stopped", range(1, 11))
  path = tmp_path / "stopped" / "metrics.jsonl"
  path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
  write(tmp_path / "stopped", range(max(resumed_at, 1), 13), resumed_at=resumed_at)
  assert path.read_bytes() == (tmp_path / "whole" / "metrics.jsonl").read_bytes()
  assert scalars(tmp_path / "stopped") == scalars(tmp_path / "whole")


def test_a_line_is_on_the_disk_when_it_is_written(tmp_path):
  with Records(tmp_path, resumed_at=0) as records:
    records.write(1, "train", {"loss": 0.5})
    assert read(tmp_path / "metrics.jsonl") == [{"step": 1, "train": {"loss": 0.5}}]


def test_other_processes_write_nothing(tmp_path):
  with Records(tmp_path, resumed_at=0, enabled=False) as records:
    records.write(1, "train", {"loss": 0.5})
  assert list(tmp_path.iterdir()) == []


def test_a_full_disk_stops_the_run_and_names_the_step(tmp_path):
  with pytest.raises(TrainingStopped, match=r"The metrics of step 7 could not be written to .*No space left on device"):
    with Records(tmp_path, resumed_at=0) as records:
      records.write(6, "train", {"loss": 0.5})
      records._file.close()
      records._file = open("/dev/full", "w", buffering=1)
      records.write(7, "train", {"loss": 0.5})
  assert read(tmp_path / "metrics.jsonl") == [{"step": 6, "train": {"loss": 0.5}}]


def scalars(directory):
  """What TensorBoard shows, {tag: {step: value}}: a start of a session at a step takes back what was from there on."""
  shown = {}
  for path in sorted((directory / "tensorboard").glob("*tfevents*")):
    for event in events(path.read_bytes()):
      if event.HasField("session_log") and event.session_log.status == event_pb2.SessionLog.START:
        shown = {tag: {s: x for s, x in series.items() if s < event.step} for tag, series in shown.items()}
      for value in event.summary.value:
        shown.setdefault(value.tag, {})[event.step] = value.simple_value
  return shown


def events(content):
  """The events of a file of records: length, its checksum, the event, its checksum."""
  while content:
    (length,) = struct.unpack("<Q", content[:8])
    assert len(content) >= length + 16
    assert struct.unpack("<I", content[8:12])[0] == masked_checksum(content[:8])
    assert struct.unpack("<I", content[12 + length : 16 + length])[0] == masked_checksum(content[12 : 12 + length])
    yield event_pb2.Event.FromString(content[12 : 12 + length])
    content = content[16 + length :]


def masked_checksum(content):
  """CRC-32C by its polynomial, rotated and shifted as the format has it."""
  crc = 0xFFFFFFFF
  for byte in content:
    crc ^= byte
    for _ in range(8):
      crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
  crc ^= 0xFFFFFFFF
  return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def test_tensorboard_files(tmp_path):
  write(tmp_path, range(1, 6))
  (path,) = (tmp_path / "tensorboard").iterdir()
  first, *_ = events(path.read_bytes())
  assert first.file_version == "brain.Event:2" and first.wall_time > 1.7e9
  shown = scalars(tmp_path)
  assert shown.keys() == {"train/loss", "train/learning_rate", "train/steps/s", "valid/accuracy"}
  assert shown["train/loss"] == pytest.approx({step: 1 / step for step in range(1, 6)})
  assert shown["train/steps/s"] == dict.fromkeys(range(1, 6), 3.0)
  assert shown["valid/accuracy"] == pytest.approx({4: 4 / 7})


def test_a_resume_takes_back_what_was_later(tmp_path):
  write(tmp_path, range(1, 11))
  with Records(tmp_path, resumed_at=6) as records:
    records.write(7, "train", {"loss": 77.0})
  loss = scalars(tmp_path)["train/loss"]
  assert loss == pytest.approx({**{step: 1 / step for step in range(1, 7)}, 7: 77.0})
  assert len(list((tmp_path / "tensorboard").iterdir())) == 2  # no start writes over another's file
