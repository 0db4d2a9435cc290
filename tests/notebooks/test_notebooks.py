"""The notebooks run from top to bottom, and what is stored of them is what a reader should see."""

import ast
import itertools
import json
import re
import subprocess
import sys
import time

import nbformat
import pytest

from configs.lra import listops
from tests.notebooks import execution

COLAB = "https://colab.research.google.com"
TINY = {
  "mgk_in_five_minutes": {"STEPS": 2},
  "lra_listops": {"STEPS": 10, "LAYERS": 1, "NUM_TRAIN": 128, "NUM_TEST": 20},
  "language_model": {"STEPS": 10, "LAYERS": 1, "NUM_LINES": 60, "NUM_TOKENS": 4},
  "kernels": {"LENGTH": 64, "REPEATS": 1, "LENGTHS": (64, 128)},
}
PATHS = re.compile(r"(/(?:root|home|tmp|work|opt|usr|var|content|private|Users|mnt)/[\w./-]+|[A-Z]:\\)")
every_notebook = pytest.mark.parametrize("name", execution.NAMES)


def code_cells(notebook):
  return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(notebook):
  return [output for cell in code_cells(notebook) for output in cell.outputs]


def shown(notebook):
  """All text that cells show."""
  texts = [output.get("text", "") for output in outputs(notebook)]
  data = [output.get("data", {}) for output in outputs(notebook)]
  return "\n".join([*texts, *(content.get(kind, "") for content in data for kind in ("text/plain", "text/markdown"))])


def pictures(notebook):
  return [output for output in outputs(notebook) if "image/png" in output.get("data", {})]


def complaints(notebook):
  """Errors, and what was written to the standard error, where warnings go as well."""
  wrong = (output for output in outputs(notebook) if output.output_type == "error" or output.get("name") == "stderr")
  return [str(output) for output in wrong]


def test_all_notebooks_are_known():
  assert {path.stem for path in execution.FOLDER.glob("*.ipynb")} == set(execution.NAMES) == set(TINY)


@pytest.mark.parametrize(
  "name",
  [
    "mgk_in_five_minutes",
    *(pytest.param(x, marks=pytest.mark.slow) for x in ("lra_listops", "language_model", "kernels")),
  ],
)
def test_runs_at_a_tiny_size(name):
  notebook = execution.read(name)
  settings = notebook.cells[execution.tagged(notebook, "parameters")].source
  assigned = {name.id for name in ast.walk(ast.parse(settings)) if isinstance(name, ast.Name)}
  assert TINY[name].keys() <= assigned, "what the test makes small is set elsewhere"
  parameters = "\n".join(f"{variable} = {value!r}" for variable, value in TINY[name].items())
  stored = len(pictures(notebook))
  execution.execute(notebook, parameters=parameters)
  assert complaints(notebook) == []
  assert len(pictures(notebook)) == stored


@every_notebook
@pytest.mark.slow
def test_runs_at_its_own_size_in_five_minutes(name):
  notebook = execution.read(name)
  started = time.monotonic()
  execution.execute(notebook)
  assert time.monotonic() - started < 300
  assert complaints(notebook) == []


def test_the_picture_has_sliders_where_there_are_widgets():
  notebook = execution.read("mgk_in_five_minutes")
  last = next(i for i, cell in enumerate(notebook.cells) if "interact(" in cell.source)
  notebook.cells = notebook.cells[: last + 1]
  execution.execute(notebook, before="import ipywidgets", seconds=120)
  assert complaints(notebook) == []
  (output,) = notebook.cells[last].outputs
  assert "application/vnd.jupyter.widget-view+json" in output.data
  widgets = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"].state.values()
  assert sum(widget.model_name == "FloatSliderModel" for widget in widgets) == 4
  assert "image/png" in json.dumps([widget.state for widget in widgets if widget.model_name == "OutputModel"])


@pytest.mark.parametrize("model", ["smgk,heads=1", "softmax,heads=2"])
def test_one_switch_gives_the_paper_its_config(model, tmp_path):
  cells = code_cells(execution.read("lra_listops"))
  end = next(i for i, cell in enumerate(cells) if "\nconfigs =" in cell.source)
  scope = {}
  for cell in cells[: end + 1]:
    exec(cell.source, scope)
    if "parameters" in cell.metadata.get("tags", ()):
      scope |= {"FULL": True, "WORKDIR": str(tmp_path)}
  found = [config.to_dict() for config in scope["configs"].values()]
  assert listops.get_config(model).to_dict() in found


@every_notebook
def test_badge_opens_this_notebook_of_the_repository(name):
  notebook = execution.read(name)
  (repository,) = re.findall(r'REPOSITORY = "https://github\.com/([\w.-]+/[\w.-]+)"  #', execution.install(notebook))
  badges = re.findall(r"\[!\[Open in Colab\]\((.*?)\)\]\((.*?)\)", notebook.cells[0].source)
  place = f"{COLAB}/github/{repository}/blob/main/notebooks/{name}.ipynb"
  assert badges == [(f"{COLAB}/assets/colab-badge.svg", place)]


def test_all_notebooks_install_alike():
  assert len({execution.install(execution.read(name)) for name in execution.NAMES}) == 1


@every_notebook
def test_headings(name):
  """One title, and no level left out: what a site makes its table of contents of."""
  text = "\n".join(cell.source for cell in execution.read(name).cells if cell.cell_type == "markdown")
  text = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
  levels = [len(signs) for signs in re.findall(r"^(#+) ", text, re.MULTILINE)]
  assert text.startswith("# ") and levels.count(1) == 1
  assert all(after <= before + 1 for before, after in itertools.pairwise(levels))
  assert len(levels) > 3


@every_notebook
def test_stored_outputs(name):
  notebook = execution.read(name)
  nbformat.validate(notebook)
  assert notebook == execution.clean(execution.read(name)), "store it by python -m tests.notebooks.execution"
  assert complaints(notebook) == []
  assert "Warning" not in shown(notebook)
  assert PATHS.findall(shown(notebook)) == []
  assert pictures(notebook), "nothing was stored"
  sizes = [len(json.dumps(output)) for output in outputs(notebook)]
  assert max(sizes) < 150_000 and sum(sizes) < 250_000, sizes


def test_lint_and_format_know_the_notebooks():
  for command in (["check"], ["format", "--check"]):
    arguments = [sys.executable, "-m", "ruff", *command, "notebooks"]
    done = subprocess.run(arguments, cwd=execution.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
  assert f"{len(execution.NAMES)} files already formatted" in done.stdout
