"""The documentation site: `sphinx-build -W docs build/docs`, after `pip install -e '.[docs]'`."""

import os
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(Path(__file__).parent / "_ext")]
import mgk_jax  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
REPOSITORY = {name.lower(): url for name, url in PROJECT.get("urls", {}).items()}.get("repository", "")

project = "mgk_jax"
author = PROJECT["authors"][0]["name"]
copyright = author
version = release = mgk_jax.__version__

extensions = [
  "sphinx.ext.autodoc",
  "sphinx.ext.napoleon",
  "sphinx.ext.intersphinx",
  "sphinx.ext.mathjax",
  "myst_nb",
  "docstrings",
  "project_files",
]
exclude_patterns = ["_build"]
nitpicky = True

# Links to other packages need their inventories from the network; without it they are plain text.
intersphinx_mapping = {}
if os.environ.get("READTHEDOCS") or os.environ.get("DOCS_INTERSPHINX"):
  intersphinx_mapping = {
    "python": ("https://docs.python.org/3", None),
    "jax": ("https://docs.jax.dev/en/latest", None),
    "flax": ("https://flax.readthedocs.io/en/stable", None),
    "numpy": ("https://numpy.org/doc/stable", None),
  }

napoleon_use_ivar = True
napoleon_attr_annotations = False
toc_object_entries_show_parents = "hide"
autodoc_member_order = "bysource"
autodoc_typehints = "none"
maximum_signature_line_length = 88

myst_enable_extensions = ["dollarmath", "amsmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"

html_theme = "sphinx_book_theme"
html_title = "mgk_jax"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
  "show_navbar_depth": 1,
  "show_toc_level": 2,
  "navbar_persistent": [],  # the search is in the sidebar
  "use_download_button": False,
  "path_to_docs": "docs",
  **({"repository_url": REPOSITORY, "use_repository_button": True} if REPOSITORY else {}),
}
