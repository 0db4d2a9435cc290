"""The command that trains by a config: its flags, its messages, and what both programs do with them."""

import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import jax
import ml_collections
from absl import app, flags, logging
from ml_collections import config_flags

from mgk_jax import console
from mgk_jax.training import processes
from mgk_jax.training.failures import reported
from mgk_jax.training.targets import EXAMPLES

METAVARS = {
  "config": "FILE[:ARGUMENTS]",
  "workdir": "DIR",
  "data_dir": "DIR_OR_ARCHIVE",
  "prepared_dir": "DIR",
  "compile_for": "MACHINE",
  "compare": "VARIANT,…",
  "heads": "N,…",
  "coordinator": "HOST:PORT",
  "num_processes": "N",
  "process_id": "I",
}


def run(
  name: str,
  doc: str | None,
  *,
  example: str,
  find: Callable[[str], str],
  arguments: Iterable[str],
  settle: Callable[[ml_collections.ConfigDict, Mapping[str, str]], None],
  train: Callable[..., dict[str, Any]],
  describe: Callable[[Mapping[str, Any]], str],
  compile_for: Callable[..., str],
  several: str,
  expected: Sequence[type[Exception]] = (),
  afterwards: str = "",
) -> None:
  """Runs the command. Its flags are defined here, so that who imports a program gets none.

  Args:
    name: of the program's module, such as "lra.train".
    doc: what it does, with examples.
    example: a config file with arguments.
    find: from what --config says to the file that it means; ValueError if there is none.
    arguments: the names that a config takes.
    settle: takes out of a config what has no effect; what the user chose is given as it was written.
    train: from config, work directory, data_dir and prepared_dir to a summary.
    describe: a summary in a few lines.
    compile_for: from config, the name of a machine, variants and heads to a report.
    several: what trains several models, for a message.
    expected: further errors that are messages and no tracebacks.
    afterwards: what to say in the end; {workdir} is put in.
  """
  package = name.partition(".")[0]
  config = config_flags.DEFINE_config_file(
    "config", None, f"A file, or a name that mgk-{package} configs lists, with arguments, e.g. {example}."
  )
  workdir = flags.DEFINE_string("workdir", None, "Where the run is written, and gone on with.")
  data_dir = flags.DEFINE_string("data_dir", None, "Raw data, if they are not prepared yet.")
  prepared_dir = flags.DEFINE_string(
    "prepared_dir", None, f"Where prepared data are; see python -m {package}.prepare --help."
  )
  machine = flags.DEFINE_string(
    "compile_for",
    None,
    f"Train nothing, but compile the training step for a machine that need not be there: {EXAMPLES}.",
  )
  compare = flags.DEFINE_list("compare", [], "With --compile_for: variants to compare, e.g. softmax,mgk,smgk.")
  heads = flags.DEFINE_list("heads", [], "With --compile_for: numbers of heads to compare, e.g. 8,4.")
  flags.register_validator(
    heads, lambda texts: all(text.isdecimal() and int(text) for text in texts), "expected whole numbers such as 8,4"
  )
  about = {name: f"{text[0].upper()}{text[1:]}." for name, text in processes.FLAGS.items()}
  distributed = flags.DEFINE_bool("distributed", False, about["distributed"])
  coordinator = flags.DEFINE_string("coordinator", None, about["coordinator"])
  num_processes = flags.DEFINE_integer("num_processes", None, about["num_processes"])
  process_id = flags.DEFINE_integer("process_id", None, about["process_id"])
  flags.mark_flag_as_required(config)

  def main(argv: list[str]) -> None:
    if len(argv) > 1:
      raise app.UsageError(f"expected --name=value only, got {argv[1:]}")
    if not flags.FLAGS["verbosity"].present:
      logging.set_verbosity(logging.WARNING)  # Orbax has much to say
    with reported(*expected, ValueError, TypeError):
      overrides = config_flags.get_override_values(flags.FLAGS["config"])
      settle(config.value, {path: f"--config.{path}={value}" for path, value in overrides.items()})
      if machine.value:
        print(compile_for(config.value, machine.value, variants=compare.value, heads=[int(x) for x in heads.value]))
        return
      if compare.value or heads.value:
        raise ValueError(f"--compare and --heads go with --compile_for; {several} trains several models")
      if not workdir.value:
        raise ValueError(f"--workdir: expected a directory, got {workdir.value!r}")
      processes.join(processes.Place(distributed.value, coordinator.value, num_processes.value, process_id.value))
      summary = train(config.value, workdir.value, data_dir=data_dir.value, prepared_dir=prepared_dir.value)
      if jax.process_index() == 0:
        print(describe(summary))
        if afterwards:
          print(console.as_called(afterwards.format(workdir=workdir.value)))

  own = [config, workdir, data_dir, prepared_dir, machine, compare, heads]
  own += [distributed, coordinator, num_processes, process_id]

  def parse(argv: list[str]) -> list[str]:
    if {"-h", "-help", "--help", "--helpshort"}.intersection(argv[1:]):
      print(_help(name, doc, own, arguments), end="")
      sys.exit()  # absl's own would end with an error
    return _parse(argv, name, example, find)

  app.run(main, flags_parser=parse)


def _help(name: str, doc: str | None, own: Iterable[flags.FlagHolder], arguments: Iterable[str]) -> str:
  """The help as the other commands have it."""
  parser = console.parser(name, doc)
  for holder in own:
    flag = flags.FLAGS[holder.name]
    kind: dict[str, Any] = {"action": "store_true"} if flag.boolean else {"metavar": METAVARS[flag.name]}
    parser.add_argument(f"--{flag.name}", help=console.as_called(flag.help), **kind)
  names = textwrap.wrap(", ".join(sorted(arguments)), 78, initial_indent="  ", subsequent_indent="  ")
  parser.epilog = "\n".join(
    [
      "behind the colon of --config: softmax, linear, mgk, smgk, mlk or smlk, and then as NAME=VALUE any of",
      *names,
      "",
      "every setting also by its own name, e.g. --config.model.num_heads=4",
      "",
      str(parser.epilog),
    ]
  )
  return parser.format_help()


def _parse(argv: list[str], name: str, example: str, find: Callable[[str], str]) -> list[str]:
  """What absl's parser does; errors in a config, for which ml_collections has tracebacks, are messages here as well."""
  try:
    left = flags.FLAGS(_with_file(argv, find))
    _ = flags.FLAGS.config.model  # a file that could not be read is an error only now
    return left
  except ValueError as error:
    message = str(error)
  except OSError as error:
    *_, reason = str(error).splitlines()
    message = f"--config: expected a Python file such as {example.partition(':')[0]}: {reason.strip()}"
  except (AttributeError, KeyError) as error:
    keys = [link.args[0] for link in _chain(error) if isinstance(link, KeyError)]
    message = "--config: no setting " + str(keys[0]).replace("\n", ". ") if keys else f"--config: {error}"
  except flags.Error as error:
    message = f"--config: {_chain(error)[-1]}" if "Traceback" in str(error) else str(error)
  sys.exit(f"{message}\nSee {console.as_called(f'python -m {name}')} --help")


def _with_file(argv: list[str], find: Callable[[str], str]) -> list[str]:
  """The arguments, with the config's file in full."""
  found = list(argv)
  for number, text in enumerate(argv):
    flag, equals, value = text.partition("=")
    if flag in ("--config", "-config"):
      if equals:
        found[number] = f"{flag}={find(value)}"
      elif number + 1 < len(argv):
        found[number + 1] = find(argv[number + 1])
  return found


def _chain(error: BaseException) -> list[BaseException]:
  """An error, the one during which it came up, and so on, as far as a traceback would show them."""
  shown = error.__context__ is not None and not (error.__suppress_context__ and error.__cause__ is None)
  return [error, *(_chain(error.__context__) if error.__context__ and shown else ())]
