"""The configs that are shipped, for tests of all of them."""

import importlib
from pathlib import Path

from absl import flags
from ml_collections import config_flags

ROOT = Path(__file__).parents[2]
FILES = sorted(path for path in (ROOT / "configs/lra").rglob("*.py") if "def get_config" in path.read_text())
CONFIGS = {str(path.relative_to(ROOT / "configs/lra").with_suffix("")): path for path in FILES}
VARIANTS = ("softmax", "linear", "mgk", "smgk", "mlk", "smlk")


def get_config(name, arg=None):
  module = importlib.import_module("configs.lra." + name.replace("/", "."))
  return module.get_config() if arg is None else module.get_config(arg)


def flat(tree, prefix=""):
  leaves = {}
  for name, value in tree.items():
    leaves |= flat(value, f"{prefix}{name}.") if hasattr(value, "items") else {prefix + name: value}
  return leaves


def from_command_line(*arguments):
  """The config that a program sees, locked."""
  values, argv = flags.FlagValues(), ["train", *arguments]
  config_flags.DEFINE_config_file("config", flag_values=values, sys_argv=argv)
  values(argv)
  return values["config"].value
