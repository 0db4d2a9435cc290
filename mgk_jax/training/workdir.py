"""The directory of a run: whose it is, with what it was run, and what came out."""

import contextlib
import datetime
import fcntl
import importlib.metadata
import json
import os
import platform
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import jax

from mgk_jax.training import processes
from mgk_jax.training.failures import TrainingStopped

PACKAGES = ("mgk_jax", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "numpy")


class Workdir:
  """Files of a run: config.json, environment.jsonl, metrics.jsonl, checkpoints, tensorboard; last, summary.json."""

  def __init__(self, path: str | Path):
    self.path = Path(path).expanduser()
    self.checkpoints = self.path / "checkpoints"
    self._config, self._summary = self.path / "config.json", self.path / "summary.json"

  def __str__(self) -> str:
    return str(self.path)

  def run(self, config: Mapping[str, Any], work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """Takes the directory, does a run in it unless it holds a finished one, and writes what came out.

    Args:
      config: of the run.
      work: does the run and returns its summary.

    Raises:
      TrainingStopped: as `claim` does, and whatever `work` raises.
    """
    with self.claim(config):
      if (summary := self.summary()) is not None:
        print(f"{self} holds a finished run.", file=sys.stderr)
        return summary
      summary = work()
      if jax.process_index() == 0:
        self.write_summary(summary)
    return summary

  @contextlib.contextmanager
  def claim(self, config: Mapping[str, Any]) -> Iterator[None]:
    """Takes the directory for a run of this config; process 0 does it for all, and tells them if it cannot.

    Raises:
      TrainingStopped: another process runs there, another config was run there, or it cannot be written to.
    """
    with contextlib.ExitStack() as held:
      failure: TrainingStopped | None = None
      if jax.process_index() == 0:
        try:
          held.enter_context(self._claim(config))
        except TrainingStopped as error:
          failure = error
      if message := processes.from_first(str(failure or "")):
        raise failure or TrainingStopped(message)
      yield

  @contextlib.contextmanager
  def _claim(self, config: Mapping[str, Any]) -> Iterator[None]:
    with self._writes():
      self.path.mkdir(parents=True, exist_ok=True)
      lock = (self.path / ".lock").open("a")
    with lock:
      with self._writes():
        try:
          fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
          raise TrainingStopped(
            f"Another process is running in {self}; wait for it, or choose another workdir."
          ) from error
        self._check_config(config)
        self._note_environment()
      try:
        yield
      except BaseException:
        if not self.checkpoints.exists():  # it did not begin, so the directory is free for another config
          self._config.unlink(missing_ok=True)
        raise

  def config(self) -> dict[str, Any]:
    """The config of the run.

    Raises:
      TrainingStopped: there is none, or it cannot be read.
    """
    if not self._config.exists():
      raise TrainingStopped(f"{self} is no work directory of a run: expected a config.json in it")
    return _read_json(self._config)

  def summary(self) -> dict[str, Any] | None:
    """What came out, or None as long as the run is not finished.

    Raises:
      TrainingStopped: it cannot be read.
    """
    return _read_json(self._summary) if self._summary.exists() else None

  def write_summary(self, summary: Mapping[str, Any]) -> None:
    """Writes summary.json, whole or not at all.

    Raises:
      TrainingStopped: it cannot be written.
    """
    with self._writes():
      write_json(self._summary, summary)

  @contextlib.contextmanager
  def _writes(self) -> Iterator[None]:
    try:
      yield
    except OSError as error:
      raise TrainingStopped(
        f"The work directory {self} cannot be written to: {error}\n"
        "Once there is room and permission to write, start again with the same command."
      ) from error

  def _check_config(self, config: Mapping[str, Any]) -> None:
    config = json.loads(json.dumps(config))
    if not self._config.exists():
      if self.checkpoints.exists():
        raise TrainingStopped(
          f"{self} has checkpoints and no config.json: expected both or neither; choose another workdir"
        )
      write_json(self._config, config)
    elif found := differences(self.config(), config):
      lines = "\n".join(f"  {name}: {old} there, {new} now" for name, (old, new) in found.items())
      raise TrainingStopped(
        f"{self} belongs to a run with another config:\n{lines}\nTake another --workdir, or the config of that run."
      )

  def _note_environment(self) -> None:
    devices = jax.devices()
    environment = {
      "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
      "command": sys.argv,
      "python": platform.python_version(),
      "packages": {name: _version(name) for name in PACKAGES},
      "devices": {"kind": devices[0].device_kind, "platform": devices[0].platform, "number": len(devices)},
      "processes": jax.process_count(),
      "machine": {"system": platform.platform(), "processor": _processor(), "cores": os.cpu_count()},
    }
    path = self.path / "environment.jsonl"
    earlier = path.read_text().splitlines(keepends=True) if path.exists() else []
    complete = [line for line in earlier if line.endswith("\n")]  # a full disk may have cut the last one
    if complete != earlier:
      path.write_text("".join(complete))
    if complete and (was := json.loads(complete[-1]))["packages"] != environment["packages"]:
      changed = differences(was["packages"], environment["packages"])
      changes = ", ".join(f"{name} {old} → {new}" for name, (old, new) in changed.items())
      print(f"Note: other versions than before ({changes}); what follows may differ in the last bits.", file=sys.stderr)
    with path.open("a") as file:
      file.write(json.dumps(environment) + "\n")


def differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
  """What differs between two nested dictionaries, by dotted name: (old, new), "nothing" where one has no such entry."""
  flat_old, flat_new = _flat(old), _flat(new)
  return {
    name: (flat_old.get(name, "nothing"), flat_new.get(name, "nothing"))
    for name in sorted(flat_old.keys() | flat_new.keys())
    if flat_old.get(name, "nothing") != flat_new.get(name, "nothing")
  }


def _flat(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
  flat: dict[str, Any] = {}
  for name, value in tree.items():
    flat |= _flat(value, f"{prefix}{name}.") if isinstance(value, Mapping) else {f"{prefix}{name}": value}
  return flat


def _read_json(path: Path) -> dict[str, Any]:
  try:
    return json.loads(path.read_text())
  except (OSError, ValueError) as error:
    raise TrainingStopped(f"{path} cannot be read: {error}") from error


def write_json(path: Path, content: Mapping[str, Any]) -> None:
  """Writes a file of JSON, whole or not at all."""
  temporary = path.with_suffix(".tmp")
  temporary.write_text(json.dumps(content, indent=2) + "\n")
  os.replace(temporary, path)


def _version(package: str) -> str:
  try:
    return importlib.metadata.version(package)
  except importlib.metadata.PackageNotFoundError:
    return "not installed"


def _processor() -> str:
  try:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
  except (OSError, StopIteration):
    return platform.processor()
