"""What an installed package must be able to do, run by the tests of packaging where there is no clone."""

import importlib
import importlib.resources
import runpy

import jax.numpy as jnp
from flax import nnx

import mgk_jax
from configs import shipped

attention = mgk_jax.MixtureAttention(num_heads=2, in_features=8, keys="shifted", rngs=nnx.Rngs(0))
assert attention(jnp.ones((2, 5, 8))).shape == (2, 5, 8)
mgk_jax.save_safetensors(attention, "attention.safetensors")
mgk_jax.load_safetensors(attention, "attention.safetensors")

print(mgk_jax.__version__)
for name in ("mgk_jax", "lra", "lm", "configs"):
  package = importlib.import_module(name)
  assert importlib.resources.files(name).joinpath("py.typed").is_file(), name
  print(package.__file__)
path, _, arguments = shipped.find("base/text:mgk,heads=2", "lra").partition(":")
config = runpy.run_path(path)["get_config"](arguments)
assert (config.task, config.model.num_heads) == ("text", 2)
