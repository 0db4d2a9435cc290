"""The first cell of the notebooks: what it installs, and where it leaves alone."""

import importlib.util
import re
import shutil
import subprocess
import sys

import pytest

from tests.notebooks import execution

CELL = execution.install(execution.read("kernels"))  # the same in all notebooks
REPOSITORY = "git+" + re.search(r'^REPOSITORY = "(.*)"', CELL, re.MULTILINE)[1]


@pytest.fixture
def run(monkeypatch, tmp_path):
  """Runs the cell in a folder, on a machine with `programs` and `modules`; returns what each pip install was given."""

  def run(folder, *, installed=False, programs=(), modules=(), failure=""):
    calls = []

    def pip(command, **_):
      calls.append(command)
      return subprocess.CompletedProcess(command, bool(failure), "", failure)

    folder.mkdir(parents=True, exist_ok=True)
    monkeypatch.chdir(folder)
    monkeypatch.setattr(subprocess, "run", pip)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: name if name in modules else None)
    monkeypatch.setattr(sys, "path", list(sys.path))
    if not installed:
      monkeypatch.setitem(sys.modules, "mgk_jax", None)  # to import it is then an ImportError
    exec(CELL, {})
    assert all(call[:4] == [sys.executable, "-m", "pip", "install"] for call in calls)
    return [call[4:] for call in calls]

  return run


@pytest.fixture
def clone(tmp_path):
  (tmp_path / "clone/mgk_jax").mkdir(parents=True)
  (tmp_path / "clone/mgk_jax/__init__.py").touch()
  return tmp_path / "clone"


def test_nothing_where_it_is_installed(run, clone):
  assert run(clone / "notebooks", installed=True) == []


def test_from_the_clone_that_the_notebook_lies_in(run, clone):
  assert run(clone / "notebooks") == [["-q", "-e", str(clone)]]
  assert sys.path[0] == str(clone), "this process would not find it"


def test_from_the_repository_elsewhere(run, tmp_path):
  before = list(sys.path)
  assert run(tmp_path / "content") == [["-q", REPOSITORY]]
  assert sys.path == before


def test_with_jax_for_the_accelerator(run, tmp_path, clone):
  assert run(tmp_path / "gpu", programs=["nvidia-smi"]) == [["-q", f"mgk_jax[cuda12] @ {REPOSITORY}"]]
  assert run(tmp_path / "tpu", modules=["libtpu"]) == [["-q", f"mgk_jax[tpu] @ {REPOSITORY}"]]
  assert run(clone, programs=["nvidia-smi"]) == [["-q", "-e", f"{clone}[cuda12]"]]


def test_says_why_it_could_not(run, tmp_path):
  with pytest.raises(RuntimeError, match="no network"):
    run(tmp_path / "content", failure="no network")
