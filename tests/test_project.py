"""What the project's front says of it is true of its code."""

import ast
import importlib.metadata
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import mgk_jax
from mgk_jax.kernels import reference, scores

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
README = (ROOT / "README.md").read_text()
CHANGELOG = (ROOT / "CHANGELOG.md").read_text()
CITATION = (ROOT / "CITATION.cff").read_text()
UNDECLARED_BY_OTHERS = {"importlib-resources"}  # tensorflow-datasets imports it
PACKAGES = [name for name in ("mgk_jax", "lra", "lm", "configs") if any((ROOT / name).rglob("*.py"))]


def imported_modules(folder):
  """The dotted names that the files under a folder of the project import, wherever in a file they do."""
  names = set()
  for path in (ROOT / folder).rglob("*.py"):
    for node in ast.walk(ast.parse(path.read_text())):
      if isinstance(node, ast.Import):
        names |= {alias.name for alias in node.names}
      elif isinstance(node, ast.ImportFrom):
        assert node.level == 0, f"{path}: imports are absolute"
        names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
  return names


def top_level(names):
  return {name.split(".")[0] for name in names}


def test_dependencies_are_what_is_imported():
  third_party = set().union(*(top_level(imported_modules(name)) for name in PACKAGES))
  third_party -= set(sys.stdlib_module_names) | set(PACKAGES)
  distributions = importlib.metadata.packages_distributions()
  imported = {_normalised(distributions[name][0]) for name in third_party}
  declared = {_normalised(re.match(r"[\w.-]+", requirement)[0]) for requirement in PROJECT["dependencies"]}
  assert imported == declared - UNDECLARED_BY_OTHERS


def _normalised(distribution):
  return re.sub(r"[-_.]+", "-", distribution).lower()


def test_imports_go_one_way():
  assert not top_level(imported_modules("mgk_jax")) & {"lra", "lm", "configs", "benchmarks", "tests"}
  kernels = imported_modules("mgk_jax/kernels")
  assert "flax" not in top_level(kernels)
  assert {name for name in kernels if name.startswith("mgk_jax.")} == {
    name for name in kernels if name.startswith("mgk_jax.kernels")
  }


def test_importing_everything_is_silent_and_brings_no_other_framework():
  modules = [
    ".".join(path.relative_to(ROOT).with_suffix("").parts) for name in PACKAGES for path in (ROOT / name).rglob("*.py")
  ]
  program = (
    "import importlib, sys\n"
    "import tensorboardX\n"
    "theirs = {'torch'} & sys.modules.keys()\n"  # tensorboardX imports PyTorch where somebody has installed it
    f"for name in {[name.removesuffix('.__init__') for name in modules]}: importlib.import_module(name)\n"
    "print(sorted({'tensorflow', 'torch', 'tf_keras', 'pytest'} & (sys.modules.keys() - theirs)))"
  )
  done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
  assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "[]", "")


def test_continuous_integration_runs_the_readme_command():
  *_, command = (ROOT / ".ci" / "run").read_text().strip().splitlines()
  assert command in README.splitlines()
  for step in ("ruff check .", "ruff format --check .", "mypy", "pytest"):
    assert f".venv/bin/{step}" in command


@pytest.mark.parametrize("block", re.findall(r"```python\n(.*?)```", README, re.DOTALL))
def test_readme_examples_run(block):
  exec(compile(block, "README.md", "exec"), {})


def test_the_example_of_a_new_attention_is_right():
  """The code of CONTRIBUTING.md: the bilinear form gives the scores of the definition."""
  definition, form = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
  definition_scope, form_scope = dict(vars(reference)), dict(vars(scores))
  exec(textwrap.dedent(definition), definition_scope)
  exec(textwrap.dedent(form), form_scope)
  query, key = (jax.random.normal(jax.random.key(i), (2, 5, 3, 4)) for i in range(2))
  got = form_scope["cosine"](query, key, 0.5)
  expected = definition_scope["cosine_scores"](query, key, 0.5)
  np.testing.assert_allclose(jnp.einsum("bnth,bnksh->bntsk", got.query, got.key), expected, atol=1e-6)


def test_readme_names_exist():
  names = set(re.findall(r"`mgk_jax\.(\w+)", README))
  assert len(names) > 10
  assert [name for name in sorted(names) if not hasattr(mgk_jax, name)] == []


def test_one_version():
  version = mgk_jax.__version__
  assert importlib.metadata.version("mgk_jax") == version
  (released,) = re.findall(rf"^version: {re.escape(version)}\ndate-released: (\S+)$", CITATION, re.MULTILINE)
  assert re.search(r"^## \[(.*)\] - (.*)$", CHANGELOG, re.MULTILINE).groups() == (version, released)
