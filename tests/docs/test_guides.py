"""What the pages show as Python is run, page by page, and prints what the comments beside it say."""

import contextlib
import io
import re
from pathlib import Path

import numpy as np
import pytest

from lra import tasks

ROOT = Path(__file__).parents[2]
PAGES = sorted(
  path
  for path in (ROOT / "docs").rglob("*.md")
  if not path.is_symlink() and not {"results", "notebooks"} & {*path.relative_to(ROOT / "docs").parts[:-1]}
)
BLOCK = re.compile(r"^```python\n(.*?)^```", re.DOTALL | re.MULTILINE)
PRINTED = re.compile(r"^print\(.*\)  # (.*)$", re.MULTILINE)


def named(path):
  return str(path.relative_to(ROOT / "docs"))


@pytest.mark.parametrize("page", [page for page in PAGES if BLOCK.search(page.read_text())], ids=named)
def test_python_runs_and_prints_what_it_says(page, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  monkeypatch.setattr(tasks, "TASKS", dict(tasks.TASKS))  # a page adds a task
  if page.name == "checkpoints.md":
    golden = np.load(ROOT / "tests/golden/model_smgk.npz")
    np.savez("weights.npz", **{name.removeprefix("param/"): golden[name] for name in golden if "param/" in name})
  scope = {"__name__": "__docs__"}
  for number, block in enumerate(BLOCK.findall(page.read_text())):
    with contextlib.redirect_stdout(io.StringIO()) as output:
      exec(compile(block, f"{named(page)}, block {number}", "exec"), scope)
    assert output.getvalue().splitlines() == PRINTED.findall(block)


def test_all_guides_are_there():
  names = "module train data clusters language_models add_task add_attention checkpoints compile_for".split()
  assert {path.stem for path in (ROOT / "docs/guides").iterdir()} == set(names)
