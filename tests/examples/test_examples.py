"""Each of the examples does what it says, at a small size."""

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest

from tests.lra import raw_data

FOLDER = Path(__file__).parents[2] / "examples"
EXAMPLES = sorted(path.stem for path in FOLDER.glob("*.py"))


def main(name):
  return runpy.run_path(FOLDER / f"{name}.py")["main"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_help(name, capsys):
  with pytest.raises(SystemExit) as ended:
    main(name)(["--help"])
  assert ended.value.code == 0
  assert f"python examples/{name}.py" in capsys.readouterr().out


def test_nnx_transformer():
  accuracies = main("nnx_transformer")(["--steps=70", "--layers=1", "--length=3"])
  assert accuracies.keys() == {"softmax", "mixture"}
  assert min(accuracies.values()) > 0.8, accuracies  # guessing gives 0.5


def test_linen_transformer():
  result = main("linen_transformer")(["--steps=70", "--layers=1", "--length=3", "--prior=em"])
  assert result["accuracy"] > 0.8
  (prior,) = jax.tree.leaves(result["variables"]["EMPrior"])
  assert prior.shape == (3, 2, 2)
  np.testing.assert_allclose(prior.sum(-1), 1.0, atol=1e-5)
  assert np.abs(prior - 0.5).max() > 0.01


def test_encoder_decoder(capsys):
  result = main("encoder_decoder")(["--steps=60", "--length=2"])
  assert result["right"] > 0.8  # guessing gives 1/10 at most
  assert result["difference"] < 1e-4
  *texts, _ = capsys.readouterr().out.splitlines()
  reversed_texts = [text for text in texts if text.split(" → ")[0] == text.split(" → ")[1][::-1]]
  assert len(texts) == 3
  assert len(reversed_texts) >= 2


@pytest.mark.slow
def test_vit(tmp_path):
  drawn = main("vit")(["--steps=120", "--layers=1", "--heads=1", "--batch=32", "--attention=mgk"])
  assert drawn > 0.6  # guessing gives 0.25
  raw_data.write("image", tmp_path)
  small = ["--steps=2", "--layers=1", "--width=16", "--patch=16", "--heads=1", "--batch=8", "--attention=softmax"]
  assert 0 <= main("vit")([*small, f"--data_dir={tmp_path}"]) <= 1


def test_saving(tmp_path):
  assert main("saving")([f"--folder={tmp_path}"]) == {"safetensors": True, "orbax": True}
  assert sorted(path.name for path in tmp_path.iterdir()) == ["model.safetensors", "orbax"]
