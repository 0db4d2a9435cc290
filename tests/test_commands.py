"""Every command has a --help that names its arguments and has examples; configs are found by name."""

import ast
import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from configs import shipped
from lra import sweep

ROOT = Path(__file__).parents[1]
COMMANDS = sorted(
  f"{path.parent.name}.{path.stem}"
  for package in ("lra", "lm", "benchmarks")
  for path in (ROOT / package).glob("*.py")
  if path.stem != "__main__" and '__name__ == "__main__"' in path.read_text()
)
BY_CONFIG = ("lra.train", "lm.train")  # whose flags are absl's, of which a process has one set


def flags(module):
  """The names of a command's arguments, as its file and those that it takes arguments from define them."""
  shared = {"prepare": ["mgk_jax/data/command.py"], "report": ["mgk_jax/analysis/report.py"]}
  shared |= {"evaluate": ["mgk_jax/training/processes.py"], "train": ["mgk_jax/training/command.py"]}
  files = [f"{module.replace('.', '/')}.py", *shared.get(module.partition(".")[2], [])]
  found = set()
  for call in (node for file in files for node in ast.walk(ast.parse((ROOT / file).read_text()))):
    if isinstance(call, ast.Call) and call.args and isinstance(call.args[0], ast.Constant):
      name = str(call.args[0].value)
      kind = getattr(call.func, "attr", "")
      found |= {name} if kind == "add_argument" and name.startswith("--") else set()
      found |= {f"--{name}"} if kind.startswith("DEFINE_") else set()
  return found


def check(module, text, *, prog):
  assert text.startswith(f"usage: {prog} [-h]"), module
  assert {name for name in flags(module) if not re.search(rf"^  {name}\b", text, re.MULTILINE)} == set(), module
  described, _, examples = text.partition("\nexamples:\n")
  lines = examples.rstrip("\n").splitlines()
  assert lines, module
  assert all(line.startswith("  ") for line in lines), module
  assert any(line.startswith(f"  {prog}") for line in lines), module
  assert len(described.splitlines()) > 5, module


def run(*words, cwd=ROOT, **environment):
  return subprocess.run(
    [sys.executable, *words], cwd=cwd, env={**os.environ, **environment}, capture_output=True, text=True, check=False
  )


def test_there_are_commands():
  assert {"lra.quickstart", "lm.generate", "benchmarks.attention", *BY_CONFIG} <= set(COMMANDS)


@pytest.mark.parametrize("module", [module for module in COMMANDS if module not in BY_CONFIG])
def test_help(module, capsys, monkeypatch):
  monkeypatch.setenv("COLUMNS", "100")
  with pytest.raises(SystemExit) as ended:
    importlib.import_module(module).main(["--help"])
  assert not ended.value.code
  check(module, capsys.readouterr().out, prog=f"python -m {module}")


@pytest.mark.parametrize("module", BY_CONFIG)
def test_help_of_training(module):
  program, _, command = module.partition(".")
  done = run("-m", program, command, "--help")
  assert (done.returncode, done.stderr) == (0, "")
  check(module, done.stdout, prog=f"mgk-{program} {command}")
  assert "attention_dropout" in done.stdout
  assert f"mgk-{program} train --config=configs/{program}/" in done.stdout
  assert "python -m" not in done.stdout


@pytest.mark.parametrize("program", ["lra", "lm"])
def test_the_program_itself_imports_nothing_heavy(program):
  code = (
    f"import sys\nfrom {program} import __main__ as program\n"
    "try:\n  program.main(['--help'])\nfinally:\n  print(sorted({'jax', 'numpy', 'mgk_jax'} & sys.modules.keys()))\n"
  )
  done = run("-c", code)
  assert (done.returncode, done.stderr) == (0, "")
  *text, heavy = done.stdout.splitlines()
  assert heavy == "[]"
  commands = importlib.import_module(f"{program}.__main__").PROGRAM.commands
  assert {f"{program}.{name}" for name in commands} == {name for name in COMMANDS if name.startswith(f"{program}.")}
  for name, about in commands.items():
    assert re.search(rf"^    {name}\s+{re.escape(about[:20])}", "\n".join(text), re.MULTILINE)


@pytest.mark.parametrize("program", ["lra", "lm"])
def test_the_program_lists_its_configs(program, capsys):
  main = importlib.import_module(f"{program}.__main__").main
  main(["configs"])
  listed = capsys.readouterr().out
  files = [path for path in (ROOT / "configs" / program).rglob("*.py") if "def get_config" in path.read_text()]
  assert len(files) >= 4
  for path in files:
    name = path.relative_to(ROOT / "configs" / program).with_suffix("").as_posix()
    assert f"  {name} " in listed
  with pytest.raises(SystemExit) as ended:
    main(["trian"])
  assert ended.value.code == 2
  assert "invalid choice: 'trian'" in capsys.readouterr().err


@pytest.mark.parametrize(
  "name", ["listops", "lra/listops.py", "configs/lra/listops.py", "lra/listops", str(ROOT / "configs/lra/listops.py")]
)
@pytest.mark.parametrize("arguments", ["", ":smgk,heads=2"])
def test_configs_by_name(name, arguments, tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  path, colon, rest = shipped.find(name + arguments, "lra").partition(":")
  assert Path(path) == ROOT / "configs/lra/listops.py"
  assert colon + rest == arguments


def test_a_file_goes_before_a_name(tmp_path, monkeypatch):
  monkeypatch.chdir(tmp_path)
  Path("configs/lra").mkdir(parents=True)
  Path("configs/lra/listops.py").write_text("from configs.lra.listops import get_config as get_config\n")
  assert shipped.find("configs/lra/listops.py:mgk", "lra") == "configs/lra/listops.py:mgk"
  monkeypatch.chdir(ROOT)  # where lra/listops.py is a module, and no config
  assert shipped.find("lra/listops.py", "lra") == str(ROOT / "configs/lra/listops.py")
  ((_, config),) = sweep.grid("base/listops:steps=7", ["mgk"], [2], [0])
  assert (config.task, config.num_steps, config.model.emb_dim) == ("listops", 7, 512)


def test_no_such_config():
  with pytest.raises(ValueError, match=r"got listop; did you mean 'listops'\?\nWith the package come image, listops,"):
    shipped.find("listop:smgk", "lra")
  with pytest.raises(ValueError, match=r"expected a Python file such as configs/lm/wikitext103.py, got listops"):
    shipped.find("listops", "lm")


def test_training_by_name(tmp_path):
  """Far from any clone, what is wrong behind a config's name is a message about it, and so is a wrong name."""
  place = {"cwd": tmp_path, "PYTHONPATH": str(ROOT)}
  done = run("-m", "lra", "train", "--config=listops:smgk,steps=x", **place)
  assert done.returncode == 1
  assert done.stderr == "--config: steps: expected a whole number >= 1, got 'x'\nSee mgk-lra train --help\n"
  done = run("-m", "lm", "train", "--config", "wikitext", **place)
  assert done.returncode == 1
  assert done.stderr.startswith("--config: expected a Python file such as configs/lm/wikitext103.py, got wikitext;")
