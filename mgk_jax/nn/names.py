"""The paper's attentions by the names that its tables and this project's configs use."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from flax import nnx

from mgk_jax.kernels import checks
from mgk_jax.nn.attention import MixtureAttention

VARIANTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
  {
    "softmax": {"kernel": "softmax", "keys": "projected", "num_components": 1},
    "linear": {"kernel": "linear", "keys": "projected", "num_components": 1},
    "mgk": {"kernel": "gaussian", "keys": "projected"},
    "smgk": {"kernel": "gaussian", "keys": "shifted"},
    "mlk": {"kernel": "linear", "keys": "projected"},
    "smlk": {"kernel": "linear", "keys": "shifted"},
  }
)


def from_name(name: str, num_heads: int, in_features: int, *, rngs: nnx.Rngs, **arguments: Any) -> MixtureAttention:
  """A `MixtureAttention` by its name in the paper.

      softmax       softmax attention                      linear        linear attention, one component
      mgk, smgk     Gaussian keys, projected and shifted   mlk, smlk     the same with a linear kernel (Eqn 14)

  Args:
    name: one of the above.
    num_heads, in_features, rngs: as in `MixtureAttention`.
    **arguments: any others of `MixtureAttention` (estep, prior, num_components, …) but those that the name decides.

  Raises:
    ValueError: an unknown name, or an argument that the name has already decided otherwise.

  Example:
    >>> attention = mgk_jax.from_name("mgk", num_heads=2, in_features=64, estep="hard", rngs=nnx.Rngs(0))
    >>> attention.key.kernel.shape  # [in_features, heads, components, head_dim]
    (64, 2, 2, 32)
  """
  checks.one_of("name", name, VARIANTS)
  decided = VARIANTS[name]
  for argument, value in decided.items():
    if arguments.get(argument, value) != value:
      raise ValueError(f"{name!r} means {argument}={value!r}: expected that or nothing, got {arguments[argument]!r}")
  return MixtureAttention(num_heads, in_features, **{**arguments, **decided}, rngs=rngs)
