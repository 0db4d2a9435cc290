"""The console commands `mgk-lra` and `mgk-lm`: each of their commands is a module, run as `python -m` runs it."""

import argparse
import importlib.metadata
import runpy
import sys
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from configs import shipped


class Program(NamedTuple):
  """A program.

  Attributes:
    package: with a module for each command.
    about: what it does.
    commands: their names and what they do.
    examples: a line each.
  """

  package: str
  about: str
  commands: Mapping[str, str]
  examples: Sequence[str]

  def run(self, argv: Sequence[str] | None = None) -> None:
    """Runs a command with the arguments behind its name. Imports nothing before it knows which."""
    argv = sys.argv[1:] if argv is None else argv
    command = self._parser().parse_args(argv[:1] or ["--help"]).command
    if command == "configs":
      argparse.ArgumentParser(prog=f"mgk-{self.package} configs", description=CONFIGS).parse_args(argv[1:])
      print(shipped.listing(self.package))
      return
    sys.argv = [f"mgk-{self.package} {command}", *argv[1:]]
    runpy.run_module(f"{self.package}.{command}", run_name="__main__")

  def _parser(self) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
      prog=f"mgk-{self.package}",
      description=self.about,
      epilog="\n".join(["examples:", *(f"  {line}" for line in self.examples)]),
      formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("mgk_jax")
    parser.add_argument("--version", action="version", version=f"mgk_jax {version}")
    commands = parser.add_subparsers(
      dest="command", metavar="COMMAND", title="commands, each with a --help of its own", required=True
    )
    for name, about in {**self.commands, "configs": CONFIGS}.items():
      commands.add_parser(name, help=about, add_help=False)
    return parser


CONFIGS = "lists the configs that come with the package, and where they are"
