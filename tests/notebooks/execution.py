"""Runs the notebooks, for the tests and to store them with what they show.

    python -m tests.notebooks.execution                      # all of them
    python -m tests.notebooks.execution kernels              # one

What a machine left behind besides outputs, such as the times of cells, is not stored. Sliders cannot be: notebooks are
stored as they are on a machine without ipywidgets.
"""

import os
import sys
import tempfile
import time
from pathlib import Path

import nbclient
import nbformat
from traitlets.config import Config

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "notebooks"
NAMES = ("mgk_in_five_minutes", "lra_listops", "language_model", "kernels")
WITHOUT_WIDGETS = "import sys\n\nsys.modules['ipywidgets'] = None"
METADATA = {
  "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
  "language_info": {"name": "python"},
}


def read(name):
  return nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)


def install(notebook):
  """The first cell of code, which installs the package."""
  return next(cell.source for cell in notebook.cells if cell.cell_type == "code")


def tagged(notebook, tag):
  """The place of the only cell with a tag."""
  (place,) = [i for i, cell in enumerate(notebook.cells) if tag in cell.metadata.get("tags", ())]
  return place


def execute(notebook, *, parameters="", before=WITHOUT_WIDGETS, seconds=600):
  """Runs all cells as Jupyter does, in the folder of the notebooks, and keeps their outputs.

  Args:
    notebook: is changed.
    parameters: code that runs after the cell tagged "parameters".
    before: code that runs before all cells.
    seconds: that a cell may take.
  """
  cells = list(notebook.cells)
  if parameters:
    notebook.cells.insert(tagged(notebook, "parameters") + 1, nbformat.v4.new_code_cell(parameters))
  notebook.cells.insert(0, nbformat.v4.new_code_cell(before))
  place = {"metadata": {"path": str(FOLDER)}}
  with tempfile.TemporaryDirectory() as folder:  # for what notebooks write, and sockets: others might take a free port
    config = Config(KernelManager={"transport": "ipc", "ip": f"{folder}/kernel"})
    client = nbclient.NotebookClient(notebook, config=config, resources=place, timeout=seconds, coalesce_streams=True)
    client.execute(env=os.environ | {"TMPDIR": folder})
  notebook.cells = cells
  return notebook


def clean(notebook):
  """Leaves of a notebook what its author wrote and what its cells show, with outputs numbered from 1."""
  number = 0
  for cell in notebook.cells:
    cell.metadata = {"tags": cell.metadata["tags"]} if "tags" in cell.metadata else {}
    if cell.cell_type == "code":
      number += 1
      cell.execution_count = number
      for output in cell.outputs:
        if output.output_type == "execute_result":
          output.execution_count = number
  notebook.metadata = nbformat.from_dict(METADATA)
  return notebook


def store(name):
  """Runs a notebook at its default size and writes it back."""
  notebook = clean(execute(read(name)))
  nbformat.validate(notebook)
  nbformat.write(notebook, FOLDER / f"{name}.ipynb")


def main(names):
  for name in names or NAMES:
    started = time.monotonic()
    store(name)
    print(f"{name}: {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
  main(sys.argv[1:])
