"""The commands that the pages show are accepted by the programs: every flag, config and argument of a config exists."""

import argparse
import importlib
import re
import shlex
import sys
import tomllib

import pytest
from absl import app, flags

import lm.train
import lra.train
from mgk_jax.data import command as preparing
from mgk_jax.training import processes, targets
from tests.docs.test_guides import PAGES, ROOT, named

pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")  # ml_collections calls it

BLOCK = re.compile(r"^```sh\n(.*?)^```", re.DOTALL | re.MULTILINE)
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
MACHINES = re.compile(rf"({'|'.join(targets.TPU_MEMORY)}):[\dx]+|({'|'.join(targets.GPUS)})x\d+")
LOOKING_FURTHER = ("lra.prepare", "lm.prepare", "lra.sweep")  # at what they have parsed


class Accepted(Exception):
  """A command has understood what it is to do."""


def accept(*_, **__):
  raise Accepted


def commands(text):
  """The commands of a shell script, as lists of words."""
  for line in text.splitlines():
    words = shlex.split(line, comments=True)
    while words:
      end = words.index("&&") if "&&" in words else len(words)
      yield words[:end]
      words = words[end + 1 :]


def of_pages():
  for page in PAGES:
    for block in BLOCK.findall(page.read_text()):
      for words in commands(block):
        yield pytest.param(words, id=f"{named(page)}: {shlex.join(words)[:70]}")


@pytest.fixture(autouse=True)
def stops(monkeypatch):
  """Programs go no further than to what they would do."""
  parse_args = argparse.ArgumentParser.parse_args

  def parse(parser, argv=None, namespace=None):
    parsed = parse_args(parser, argv, namespace)
    return parsed if parser.prog.endswith(LOOKING_FURTHER) else accept()

  def compile_for(config, machine, **_):
    assert MACHINES.fullmatch(machine), machine
    accept()

  monkeypatch.setattr(argparse.ArgumentParser, "parse_args", parse)
  monkeypatch.setattr(preparing, "exit_code", accept)
  monkeypatch.setattr(app, "run", lambda main, flags_parser: main(flags_parser(sys.argv)))
  monkeypatch.setattr(processes, "join", lambda place: None)
  for program in (lra.train, lm.train):
    monkeypatch.setattr(program, "train", accept)
    monkeypatch.setattr(program.ahead, "report", compile_for)
  monkeypatch.chdir(ROOT)
  before = set(flags.FLAGS)
  yield
  for name in set(flags.FLAGS) - before:
    delattr(flags.FLAGS, name)
  flags.FLAGS.unparse_flags()


def check(words, monkeypatch):
  """Raises or ends the test unless the command is one of the project's and accepted, or a known one of others."""
  while re.fullmatch(r"\w+=.*", words[0]):  # NAME=value before a command
    words = words[1:]
  program, *arguments = words
  name = program.removeprefix(".venv/bin/").removeprefix(".venv-tpu/bin/").removeprefix(".venv-cuda/bin/")
  if name == "python" and arguments[0] == "-m":
    run(arguments[1], arguments[2:], monkeypatch)
  elif name == "python" and arguments[0] == "-c":
    compile(arguments[1], "-c", "exec")
  elif name in ("mgk-lra", "mgk-lm"):
    run(f"{name.removeprefix('mgk-')}.{arguments[0]}", arguments[1:], monkeypatch)
  elif name == "srun":
    check(arguments, monkeypatch)
  elif name == "gcloud":
    (script,) = (text.removeprefix("--command=") for text in arguments if text.startswith("--command="))
    for command in commands(script):
      check(command, monkeypatch)
  elif name == "pip":
    extras = re.findall(r"\.\[(.*)\]", arguments[-1])
    assert not {extra for names in extras for extra in names.split(",")} - EXTRAS.keys(), arguments
  else:
    assert name in ("cd", "pytest", "python3", "sphinx-build"), words


def run(module, arguments, monkeypatch):
  monkeypatch.setattr(sys, "argv", [module, *arguments])
  found = importlib.import_module(module)
  try:
    found.command() if hasattr(found, "command") and module.endswith(".train") else found.main(arguments)
  except Accepted:
    return
  except SystemExit as ended:
    pytest.fail(f"{module} {arguments}: {ended}")
  pytest.fail(f"{module} {arguments}: it went further than it should")


@pytest.mark.parametrize("words", list(of_pages()))
def test_command_is_accepted(words, monkeypatch):
  check(words, monkeypatch)


@pytest.mark.parametrize(
  "line",
  [
    "python -m lra.train --config=configs/lra/text.py:smgk,head=2 --workdir=runs/x",
    "python -m lra.train --config=configs/lra/text.py:softmax,estep=hard --workdir=runs/x",
    "python -m lra.train --config=configs/lra/text.py:smgk --work_dir=runs/x",
    "python -m lm.train --config=configs/lm/wikitext1.py --workdir=runs/x",
    "python -m lra.prepare text --seed=3",
    "python -m lra.sweep --config=configs/lra/listops.py --variants=mgq",
    "python -m lm.generate --workdir=runs/x --promt=A",
  ],
)
def test_wrong_command_is_refused(line, monkeypatch, capsys):
  (words,) = commands(line)
  with pytest.raises(pytest.fail.Exception):
    check(words, monkeypatch)
