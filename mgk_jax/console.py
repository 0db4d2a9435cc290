"""What the commands have in common: how they are called, and a --help with their examples at its end."""

import argparse
import re
import sys
from typing import Any

EXAMPLE = re.compile(r"\s*(python -m .*)")


def parser(module: str, text: str | None, **arguments: Any) -> argparse.ArgumentParser:
  """A parser of a command's arguments. Names of arguments have to be written out.

  Args:
    module: that is run, such as "lra.evaluate".
    text: what the command does; its lines with commands of their own become the examples.
    **arguments: others of `argparse.ArgumentParser`.
  """
  lines = (text or "").strip().splitlines()
  examples = [f"  {found[1]}" for line in lines if (found := EXAMPLE.fullmatch(line))]
  description = "\n".join(line for line in lines if not EXAMPLE.fullmatch(line))
  return argparse.ArgumentParser(
    prog=as_called(f"python -m {module}"),
    description=as_called(re.sub(r"\n{3,}", "\n\n", description)),
    epilog=as_called("\n".join(["examples:", *examples])),
    formatter_class=argparse.RawDescriptionHelpFormatter,
    allow_abbrev=False,
    **arguments,
  )


def as_called(text: str) -> str:
  """A text that names modules; for who has called `mgk-lra evaluate`, with `mgk-lra evaluate` for lra.evaluate."""
  if not sys.argv[0].startswith("mgk-"):
    return text
  return re.sub(r"python -m (lra|lm)\.(\w+)", r"mgk-\1 \2", text)
