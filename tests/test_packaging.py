"""`python -m build` gives a wheel and an sdist with what belongs in them, and both work where there is no clone."""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import mgk_jax

ROOT = Path(__file__).parents[1]
PACKAGES = ("configs", "lm", "lra", "mgk_jax")
NOT_BUILT = (".*", "__pycache__", "*.egg-info", "build", "dist", "runs", "_build")
SMOKE = Path(__file__).with_name("smoke.py").read_text()


def run(*command, cwd):
  clean = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
  done = subprocess.run(
    [str(word) for word in command], cwd=cwd, env=clean, capture_output=True, text=True, check=False
  )
  assert done.returncode == 0, f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}"
  return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
  """Wheel and sdist, from a copy of the clone."""
  folder = tmp_path_factory.mktemp("built")
  copy = folder / "clone"
  copy.mkdir()
  for path in ROOT.iterdir():  # hidden folders, such as environments, are large; .ci is part of the sdist
    if path.name == ".ci" or not any(path.match(pattern) for pattern in NOT_BUILT):
      if path.is_dir():
        shutil.copytree(path, copy / path.name, ignore=shutil.ignore_patterns(*NOT_BUILT))
      else:
        shutil.copy(path, copy)
  run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "dist", cwd=copy)
  (wheel,) = (folder / "dist").glob("*.whl")
  (sdist,) = (folder / "dist").glob("*.tar.gz")
  return wheel, sdist


def sources(*folders, suffix="*.py"):
  return {path.relative_to(ROOT).as_posix() for folder in folders for path in (ROOT / folder).rglob(suffix)}


def test_the_wheel_has_the_packages_and_nothing_else(built):
  wheel, _ = built
  assert wheel.name == f"mgk_jax-{mgk_jax.__version__}-py3-none-any.whl"
  with zipfile.ZipFile(wheel) as file:
    names = {name for name in file.namelist() if ".dist-info/" not in name}
    (metadata,) = (name for name in file.namelist() if name.endswith("METADATA"))
    requirements = [line for line in file.read(metadata).decode().splitlines() if line.startswith("Requires-Dist")]
  assert names == sources(*PACKAGES) | {f"{package}/py.typed" for package in PACKAGES}
  assert any("safetensors" in line and "extra" not in line for line in requirements)


def test_the_sdist_has_all_to_test_it(built):
  _, sdist = built
  with tarfile.open(sdist) as file:
    names = {name.partition("/")[2] for name in file.getnames()}
  assert sources(*PACKAGES, "tests", "examples", "benchmarks") <= names
  assert sources("tests/golden", suffix="*.npz") | sources("notebooks", suffix="*.ipynb") <= names
  assert {
    "README.md",
    "LICENSE",
    "CHANGELOG.md",
    "CITATION.cff",
    "CONTRIBUTING.md",
    "pyproject.toml",
    ".ci/run",
  } <= names
  assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]


def environment(folder, *, see_ours):
  """A fresh virtual environment; with `see_ours`, its packages are those of this one."""
  venv.create(folder, with_pip=False)
  python = folder / "bin" / "python"
  if see_ours:
    (place,) = folder.glob("lib/python*/site-packages")
    ours = {sysconfig.get_path(name) for name in ("purelib", "platlib")}
    (place / "ours.pth").write_text("\n".join(sorted(ours)) + "\n")
  return python


def test_the_wheel_works_where_there_is_no_clone(built, tmp_path):
  python = environment(tmp_path / "venv", see_ours=True)
  options = ("--no-deps", "--no-index", "--quiet", "--ignore-installed", "--disable-pip-version-check")
  run(sys.executable, "-m", "pip", "--python", python, "install", *options, built[0], cwd=tmp_path)
  _smoke(python, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [0, 1], ids=["wheel", "sdist"])
def test_a_clean_environment(built, kind, tmp_path):
  """With all dependencies, as an index has them."""
  python = environment(tmp_path / "venv", see_ours=False)
  run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", built[kind], cwd=tmp_path)
  run(sys.executable, "-m", "pip", "--python", python, "check", cwd=tmp_path)
  _smoke(python, tmp_path)
  small = "--config=quickstart:smgk,steps=2,warmup=1,eval_every=2,batch=8,num_train=16,num_valid=8,num_test=8"
  said = run(
    python.with_name("mgk-lra"), "train", small, "--workdir=run", "--prepared_dir=data", cwd=tmp_path / "empty"
  )
  assert "best step 2 of 2" in said


def _smoke(python, folder):
  empty = folder / "empty"
  empty.mkdir()
  said = run(python, "-c", SMOKE, cwd=empty)
  version, *files = said.splitlines()
  assert version == mgk_jax.__version__
  assert len(files) == len(PACKAGES)
  assert all(Path(file).is_relative_to(folder / "venv") for file in files), files
  for program in ("mgk-lra", "mgk-lm"):
    assert run(python.with_name(program), "--version", cwd=empty) == f"mgk_jax {mgk_jax.__version__}\n"
  where = run(python.with_name("mgk-lra"), "configs", cwd=empty)
  assert f"In {folder / 'venv'}" in where
