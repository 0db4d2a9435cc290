"""What a `MixtureAttention` can be: the allowed values of its own arguments, and which of them go together."""

from collections.abc import Sequence
from typing import Any, Literal, get_args

import numpy as np

from mgk_jax.kernels import checks
from mgk_jax.kernels.attention import EStep as EStep, Implementation

Keys = Literal["projected", "shifted"]
Kernel = Literal["gaussian", "linear", "softmax"]
Prior = Literal["sgd", "em", "fixed"]
PriorScope = Literal["head", "shared", "position"]

IMPLEMENTATIONS = (*get_args(Implementation), None)
DEFAULT_FEATURE_MAP = "elu"
CHECKED = (
  "kernel", "keys", "num_components", "estep", "prior", "prior_scope", "max_len", "variance", "learn_variance",
  "feature_map", "implementation", "dropout_rate",
)  # fmt: skip


def num_components(value: int | None, kernel: str) -> int:
  """M: what the caller said, or 2 for the mixtures and 1 for softmax attention."""
  if value is None:
    return 1 if kernel == "softmax" else 2
  return positive_int("num_components", value)


def positive_int(name: str, value: Any, default: int | None = None) -> int:
  """`value` (None: `default`) as a Python int of at least 1; TypeError or ValueError otherwise."""
  value = default if value is None else value
  if isinstance(value, bool) or not isinstance(value, int | np.integer):
    raise TypeError(f"{name}: expected an int, got {type(value).__name__}")
  if value < 1:
    raise ValueError(f"{name}: expected at least 1, got {value}")
  return int(value)


def pair(name: str, value: Any) -> tuple[int, int]:
  """`value` as two Python ints of at least 1, from one for both or from two; TypeError or ValueError otherwise."""
  if not isinstance(value, Sequence):
    return (positive_int(name, value),) * 2
  if len(value) != 2:
    raise ValueError(f"{name}: expected an int or two, got {value!r}")
  first, second = (positive_int(name, part) for part in value)
  return first, second


def rate(name: str, value: Any) -> float:
  """`value` as a probability in [0, 1); TypeError or ValueError otherwise."""
  if isinstance(value, bool) or not isinstance(value, int | float):
    raise TypeError(f"{name}: expected a number, got {type(value).__name__}")
  if not 0.0 <= value < 1.0:
    raise ValueError(f"{name}: expected 0 <= rate < 1, got {value}")
  return float(value)


def variance(value: float | Sequence[float] | None, components: int) -> float | tuple[float, ...] | None:
  """σ² as a static number or a tuple of M numbers; None stays None (√H)."""
  if value is None:
    return None
  array = np.asarray(value, dtype=float)
  if array.shape not in ((), (components,)):
    raise ValueError(f"variance: expected a scalar or one value for each of {components} components, got {value!r}")
  if not (np.all(array > 0) and np.all(np.isfinite(array))):
    raise ValueError(f"variance: expected positive values, got {value!r}")
  return float(array) if array.ndim == 0 else tuple(float(x) for x in array)


def check(
  *,
  kernel: str,
  keys: str,
  num_components: int,
  estep: str,
  prior: str,
  prior_scope: str,
  max_len: int | None,
  variance: Any,
  learn_variance: bool,
  feature_map: Any,
  implementation: Any,
  dropout_rate: float,
) -> None:
  """Raises ValueError for a value that is not allowed and for a combination that has no meaning."""
  checks.one_of("kernel", kernel, get_args(Kernel))
  checks.one_of("keys", keys, get_args(Keys))
  checks.one_of("estep", estep, checks.ESTEPS)
  checks.one_of("prior", prior, get_args(Prior))
  checks.one_of("prior_scope", prior_scope, get_args(PriorScope))
  checks.one_of("implementation", implementation, IMPLEMENTATIONS)
  if max_len is not None:
    positive_int("max_len", max_len)
  rate("dropout_rate", dropout_rate)

  if kernel == "softmax":
    _require(num_components == 1, "num_components=1 (or None)", f"num_components={num_components}", kernel)
    _require(keys == "projected", "keys='projected'", f"keys={keys!r}", kernel)
    _require(prior_scope == "head", "no prior_scope (softmax has no prior)", f"prior_scope={prior_scope!r}", kernel)
  if kernel != "gaussian":
    _require(estep == "soft", "estep='soft' (the hard E step belongs to Gaussian keys)", f"estep={estep!r}", kernel)
    _require(prior != "em", "prior='sgd' or 'fixed' (EM belongs to Gaussian keys)", "prior='em'", kernel)
    _require(variance is None, "variance=None (only Gaussian keys have one)", f"variance={variance!r}", kernel)
    _require(not learn_variance, "learn_variance=False (only Gaussian keys have one)", "learn_variance=True", kernel)
  if kernel == "linear":
    _require(
      dropout_rate == 0.0, "dropout_rate=0 (no attention weights exist to drop)", f"dropout_rate={dropout_rate}", kernel
    )
  elif feature_map != DEFAULT_FEATURE_MAP:
    _require(False, "no feature_map (only kernel='linear' has one)", f"feature_map={feature_map!r}", kernel)
  if (prior == "em" or prior_scope == "position") and max_len is None:
    which = "prior='em'" if prior == "em" else "prior_scope='position'"
    raise ValueError(f"{which} keeps a prior for every key position: expected max_len=<longest key length>, got None")


def _require(condition: bool, expected: str, got: str, kernel: str) -> None:
  if not condition:
    raise ValueError(f"kernel={kernel!r}: expected {expected}, got {got}")


def head_dim(value: int | None, qkv_features: int | None, in_features: int, num_heads: int) -> int:
  """The width of one head: given, or qkv_features // num_heads."""
  if value is not None:
    value = positive_int("head_dim", value)
    if qkv_features not in (None, num_heads * value):
      raise ValueError(f"qkv_features: expected num_heads * head_dim = {num_heads * value} or None, got {qkv_features}")
    return value
  qkv_features = positive_int("qkv_features", qkv_features, default=in_features)
  if qkv_features % num_heads:
    raise ValueError(f"qkv_features: expected a multiple of num_heads={num_heads} (or head_dim), got {qkv_features}")
  return qkv_features // num_heads


def num_kv_heads(value: int | None, num_heads: int) -> int:
  """The number of key and value heads: given, or num_heads."""
  value = positive_int("num_kv_heads", value, default=num_heads)
  if num_heads % value:
    raise ValueError(f"num_kv_heads: expected a divisor of num_heads={num_heads}, got {value}")
  return value


def reject(**arguments: Any) -> None:
  """Raises ValueError for arguments of nnx.MultiHeadAttention that have no meaning here; says what to do instead."""
  for name, value in arguments.items():
    if value is not None:
      raise ValueError(f"{name}: expected None, got {value!r}; {_INSTEAD[name]}")


_OWN_LAYERS = "deprecated in Flax; assign LinearGeneral layers of your own to the attributes query, key, value and out"
_INSTEAD = {
  "attention_fn": "MixtureAttention computes its own attention: choose it by kernel, keys and estep",
  "qkv_dot_general": _OWN_LAYERS,
  "out_dot_general": _OWN_LAYERS,
  "qkv_dot_general_cls": _OWN_LAYERS,
  "out_dot_general_cls": _OWN_LAYERS,
  "input_positions": "rotary positions are no part of MixtureAttention: add positions to the inputs",
}
