"""Pages that lie elsewhere in the project, notebooks and results, are read from there: their links are led right."""

import os
import re
from pathlib import Path
from typing import Any

DOCS = Path(__file__).resolve().parents[1]
ROOT = DOCS.parent
FOLDERS = ("notebooks", "results")  # links in docs/ to the folders beside it
LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s:#]+)(#[^)\s]*)?\)")


def setup(app: Any) -> dict[str, bool]:
  """Reads what Sphinx has read before it is parsed."""
  app.connect("source-read", rewrite)
  return {"parallel_read_safe": True, "parallel_write_safe": True}


def rewrite(app: Any, docname: str, source: list[str]) -> None:
  """Changes the text of a page in place."""
  if docname.startswith(FOLDERS):
    source[0] = relink(source[0], Path(docname).parent, app.config.html_theme_options.get("repository_url", ""))


def relink(text: str, folder: Path, repository: str) -> str:
  """The text of a page in `folder` of the project, with links that hold on the site.

  What is no page of the site is linked in the repository, or is plain text where no repository is known.
  """

  def replace(link: re.Match[str]) -> str:
    words, target, anchor = link[1], link[2], link[3] or ""
    path = (ROOT / folder / target).resolve()
    if not path.exists() or not path.is_relative_to(ROOT):
      return link[0]  # Sphinx says that it leads nowhere
    if path.is_relative_to(DOCS):
      return f"[{words}]({os.path.relpath(path, DOCS / folder)}{anchor})"
    place = path.relative_to(ROOT)
    if place.parts[0] in FOLDERS and path.suffix in (".md", ".ipynb"):
      return link[0]
    return f"[{words}]({repository}/blob/main/{place}{anchor})" if repository else words

  return LINK.sub(replace, text)
