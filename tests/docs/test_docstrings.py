"""The examples in docstrings are run, and the main names have one."""

import doctest
import importlib
import inspect
import pkgutil

import jax
import jax.numpy as jnp
from flax import nnx

import lm
import lra
import mgk_jax

NAMES = {"jax": jax, "jnp": jnp, "nnx": nnx, "mgk_jax": mgk_jax}
FLAGS = doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS
OPTIONAL = {  # types of variables, initialisers, and what needs files or several devices
  *("EMPrior", "FixedPrior", "RandomProjection", "LinearState", "code_shift", "paper_shift"),
  *("load_reference_lra", "sharded_heads"),
}


def modules():
  for package in (mgk_jax, lra, lm):
    yield package
    for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
      yield importlib.import_module(found.name)


def examples():
  finder = doctest.DocTestFinder(exclude_empty=True)
  for module in modules():
    for found in finder.find(module, module.__name__, module, extraglobs=NAMES):
      if found.examples:
        yield found


EXAMPLES = list(examples())


def test_examples_give_what_they_say(subtests):
  """All in one test, and so in one process: they have the same shapes, which are compiled once."""
  for example in EXAMPLES:
    with subtests.test(example.name):
      report = []
      failed = doctest.DocTestRunner(optionflags=FLAGS).run(example, out=report.append).failed
      assert not failed, "".join(report)


def test_main_names_have_an_example():
  public = {name for name, value in vars(mgk_jax).items() if not name.startswith("_") and not inspect.ismodule(value)}
  shown = {name for name in public if any(f"mgk_jax.{name}(" in example.docstring for example in EXAMPLES)}
  assert "mixture_attention" in shown
  assert public - OPTIONAL - shown == set()
  assert public >= OPTIONAL
