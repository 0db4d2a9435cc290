"""The site is built without a warning and without the network, and has a place for every public name."""

import html
import importlib
import inspect
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest
from sphinx.util.inventory import InventoryFile

import mgk_jax
import mgk_jax.analysis
import mgk_jax.training

ROOT = Path(__file__).parents[2]
NO_NETWORK = dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "http://localhost:9")


@pytest.fixture(scope="module")
def site(tmp_path_factory):
  """The built site; references that lead nowhere are warnings, and warnings are errors."""
  built = tmp_path_factory.mktemp("docs") / "html"
  command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "-E", "docs", str(built)]
  environment = {name: value for name, value in os.environ.items() if name not in ("READTHEDOCS", "DOCS_INTERSPHINX")}
  done = subprocess.run(command, cwd=ROOT, env=environment | NO_NETWORK, capture_output=True, text=True, check=False)
  assert (done.returncode, done.stdout + done.stderr) == (0, "")
  return built


def test_every_public_name_is_in_the_reference(site):
  inventory = InventoryFile.loads((site / "objects.inv").read_bytes(), uri="")
  found = {name for kind, names in inventory.data.items() if kind.startswith("py:") for name in names}
  public = {
    f"{package.__name__}.{name}"
    for package in (mgk_jax, mgk_jax.training)
    for name, value in vars(package).items()
    if not name.startswith("_") and not inspect.ismodule(value)
  }
  modules = {f"mgk_jax.analysis.{module.name}" for module in pkgutil.iter_modules(mgk_jax.analysis.__path__)}
  assert len(public) > 40 and "mgk_jax.mixture_attention" in public
  assert public | modules | {"lra.train.train", "lm.train.train"} <= found, (public | modules) - found


def test_notebooks_and_results_are_pages(site):
  notebooks = {path.stem for path in (ROOT / "notebooks").glob("*.ipynb")}
  assert notebooks and notebooks == {path.stem for path in (site / "notebooks").glob("*.html")}
  results = {path.parent.name for path in (ROOT / "results").glob("*/README.md")}
  assert results and results == {path.parent.name for path in (site / "results").glob("*/README.html")}


def test_links_between_pages_and_in_them_lead_somewhere(site):
  pages = {path: path.read_text() for path in site.rglob("*.html") if "_static" not in path.parts}
  assert len(pages) > 25
  broken = []
  for page, text in pages.items():
    for target in re.findall(r'href="([^"#:?]*)(?:#[^"]*)?"', text):
      if target and not (page.parent / target).exists():
        broken.append((page.relative_to(site), target))
  assert not broken


def test_names_in_docstrings_are_links_and_formulas_keep_their_lines(site):
  text = (site / "api" / "attention.html").read_text()
  assert 'href="#mgk_jax.responsibilities"' in text  # of `responsibilities` in the docstring of em_prior
  assert "\nA_ij  = Σ_r exp(s_ijr) / Σ_j' Σ_r' exp(s_ij'r')" in shown(text)
  modules = shown((site / "api" / "modules.html").read_text())
  assert re.search(r"class mgk_jax\.MixtureAttention\(\s*num_heads,\s*in_features,", modules)


def shown(page):
  return html.unescape(re.sub(r"<[^>]*>", "", page))


@pytest.mark.parametrize(
  ("link", "expected"),
  [
    ("[kernels](../../docs/kernels.md#gradients)", "[kernels](../../kernels.md#gradients)"),
    ("[first](../../notebooks/kernels.ipynb)", "[first](../../notebooks/kernels.ipynb)"),
    ("[readme](../../README.md)", "[readme](https://example.org/mgk/blob/main/README.md)"),
    ("[paper](https://arxiv.org/abs/2110.08678)", "[paper](https://arxiv.org/abs/2110.08678)"),
    ("[gone](nowhere.md)", "[gone](nowhere.md)"),
    ("![curves](curves.png)", "![curves](curves.png)"),
  ],
)
def test_links_of_pages_that_lie_elsewhere(link, expected, monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
  project_files = importlib.import_module("project_files")
  assert project_files.relink(link, Path("results/listops"), "https://example.org/mgk") == expected


def test_links_into_an_unknown_repository_are_plain(monkeypatch):
  monkeypatch.syspath_prepend(ROOT / "docs" / "_ext")
  project_files = importlib.import_module("project_files")
  assert project_files.relink("see [it](../../README.md)", Path("results/listops"), "") == "see it"
