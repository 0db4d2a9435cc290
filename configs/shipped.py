"""The configs that come with the package, which need no clone of it: `--config=listops:smgk,heads=2`."""

import ast
from pathlib import Path

from configs.arguments import closest

HERE = Path(__file__).parent
EXAMPLES = {"lra": "listops", "lm": "wikitext103"}


def find(config: str, program: str) -> str:
  """What --config says, `FILE` or `FILE:ARGUMENTS`, with the file that it means.

  That is the file itself or, where there is no config of that name, one that comes with the package: `listops`,
  `lra/listops.py` and `configs/lra/listops.py` are the same then.

  Args:
    config: as it was given.
    program: "lra" or "lm".

  Raises:
    ValueError: there is no such file; the message lists those that come with the package.
  """
  path, colon, arguments = config.partition(":")
  file = Path(path).expanduser()
  if file.is_file() and "get_config" in file.read_text(errors="replace"):  # in a clone there is a module lra/listops.py
    return f"{file}{colon}{arguments}"
  name = path.removeprefix("configs/").removeprefix(f"{program}/").removesuffix(".py")
  known = names(program)
  if name not in known:
    expected = f"a Python file such as configs/{program}/{EXAMPLES[program]}.py"
    if file.is_file():
      expected = "a file with a function get_config"
    raise ValueError(
      f"--config: expected {expected}, got {path}{closest(name, known)}\nWith the package come {', '.join(known)}."
    )
  return f"{HERE / program / name}.py{colon}{arguments}"


def names(program: str) -> dict[str, str]:
  """The names of a program's configs, each with the first line of what it says of itself."""
  found = {}
  for path in sorted((HERE / program).rglob("*.py"), key=lambda path: (len(path.parts), path)):
    tree = ast.parse(path.read_text())
    if any(isinstance(node, ast.FunctionDef) and node.name == "get_config" for node in tree.body):
      name = path.relative_to(HERE / program).with_suffix("").as_posix()
      found[name] = (ast.get_docstring(tree) or "").partition("\n")[0]
  return found


def listing(program: str) -> str:
  """The names and what they are, and where the files lie."""
  known = names(program)
  width = max(map(len, known))
  lines = [f"  {name:{width}}  {about}" for name, about in known.items()]
  example = f"mgk-{program} train --config={EXAMPLES[program]}:smgk,heads=2 --workdir=runs/first"
  return "\n".join([f"In {HERE / program}, to be used by name or copied and changed:", *lines, f"Example: {example}"])
