"""Docstrings of this project as reStructuredText: set-off lines keep their shape, `names` become links or code."""

import inspect
import re
from collections.abc import Iterator
from typing import Any

from flax import nnx
from sphinx.util.inspect import stringify_signature

import mgk_jax
import mgk_jax.training

SECTION = re.compile(r"(Args|Attributes|Example|Examples|Raises|Returns|Yields):$")
CODE = re.compile(r"(``.*?``|`[^`]+`)")


def setup(app: Any) -> dict[str, bool]:
  """Runs before napoleon, which reads the sections."""
  app.connect("autodoc-process-docstring", rewrite, priority=100)
  app.connect("autodoc-process-signature", sign)
  return {"parallel_read_safe": True, "parallel_write_safe": True}


def rewrite(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
  """Changes the lines of a docstring in place."""
  lines[:] = _returned(list(_shaped(lines)))
  if what in ("attribute", "data", "property") and lines:
    lines[0] = lines[0].replace(": ", " – ")  # napoleon takes what stands before a colon for a type


def sign(app: Any, what: str, name: str, obj: Any, options: Any, signature: str | None, returns: Any) -> Any:
  """The constructor's signature, which Flax hides, and no representations of objects as defaults."""
  if what == "class" and issubclass(obj, nnx.Module):
    signature = stringify_signature(inspect.signature(obj.__init__), show_annotation=False).replace("(self, ", "(", 1)
  return signature and re.sub(r"=<.*?>(?=[,)])|=mappingproxy\(.*?\)", "=…", signature), returns


def _shaped(lines: list[str]) -> Iterator[str]:
  """Equations, tables and commands stand indented between empty lines: they become literal blocks."""
  in_section = in_example = literal = after_empty = False
  for line in lines:
    indented = line.startswith(" ")
    if line.strip() and not indented:
      in_section, in_example = bool(SECTION.match(line)), line.startswith("Example")
      literal = False
    if not in_section and not literal and indented and after_empty:
      yield from (".. code-block:: text", "")
      literal = True
    after_empty = not line.strip()
    yield line if literal or in_example else _inline(line)


def _returned(lines: list[str]) -> list[str]:
  """The section "Returns:" as a field; napoleon would look for a type before its first colon."""
  if "Returns:" not in lines:
    return lines
  start = lines.index("Returns:")
  end = next((i for i in range(start + 1, len(lines)) if not lines[i].startswith(" ")), len(lines))
  first, *rest = (line.strip() for line in lines[start + 1 : end])
  return [*lines[:start], f":returns: {first}", *(f"  {line}" for line in rest), *lines[end:]]


def _inline(line: str) -> str:
  """Markdown's `code` as a link or as code, and no meaning for the bars and low lines of formulas."""
  parts = CODE.split(line)
  return "".join(_code(part.strip("`")) if i % 2 else _plain(part) for i, part in enumerate(parts))


def _plain(text: str) -> str:
  text = re.sub(r"(?<!\w)\|", r"\\|", text)
  text = re.sub(r"(^\s*|: )([A-Za-z])\.(?=\s|$)", r"\1\2\\.", text)  # "M. None: 2" is no item of a list
  return re.sub(r"(\w)_(?!\w)", r"\1\\_", text)


def _code(text: str) -> str:
  for package in (mgk_jax, mgk_jax.training):
    short = text.removeprefix(f"{package.__name__}.")
    if not inspect.ismodule(vars(package).get(short, mgk_jax)):
      return f":py:obj:`~{package.__name__}.{short}`"
  return f"``{text}``"
