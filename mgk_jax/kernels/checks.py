"""Validation at the border of the kernels: every message states what was expected and what came."""

import contextlib
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

ESTEPS = ("soft", "hard")


class Dims(NamedTuple):
  """The sizes of one attention problem, named by the project's shape letters."""

  B: int  # batch
  T: int  # query length
  S: int  # key length
  N: int  # heads
  M: int  # components
  H: int  # head dimension of queries and keys
  V: int  # head dimension of values


def one_of(name: str, value: Any, allowed: Iterable[Any]) -> None:
  """Raises ValueError unless `value` is one of `allowed`."""
  allowed = tuple(allowed)
  if value not in allowed:
    raise ValueError(f"{name}: expected one of {allowed}, got {value!r}")


def float_array(name: str, x: Any) -> jax.Array:
  """`x` as a JAX array of a floating dtype; TypeError otherwise."""
  if not isinstance(x, jax.Array | np.ndarray):
    raise TypeError(f"{name}: expected an array, got {type(x).__name__}")
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise TypeError(f"{name}: expected a floating-point dtype (float32, bfloat16, …), got {x.dtype}")
  return jnp.asarray(x)


def rank(name: str, x: jax.Array, letters: str) -> None:
  """Raises ValueError unless `x` has one axis per shape letter."""
  if x.ndim != len(letters.split()):
    raise ValueError(f"{name}: expected shape [{', '.join(letters.split())}], got {list(x.shape)}")


def shape(name: str, x: jax.Array, letters: str, dims: Dims, *, because: str = "query") -> None:
  """Raises ValueError unless `x.shape` is what `letters` says under `dims`."""
  expected = [getattr(dims, letter) for letter in letters.split()]
  if list(x.shape) != expected:
    raise ValueError(
      f"{name}: expected shape [{', '.join(letters.split())}] = {expected} to match {because}, got {list(x.shape)}"
    )


def same_dtype(**arrays: jax.Array) -> None:
  """Raises TypeError unless all arrays have one dtype."""
  if len({x.dtype for x in arrays.values()}) > 1:
    got = ", ".join(f"{name} {x.dtype}" for name, x in arrays.items())
    raise TypeError(f"expected {', '.join(arrays)} of one dtype, got {got}")


def query_key_value(
  query: Any, key: Any, value: Any, *, key_letters: str
) -> tuple[jax.Array, jax.Array, jax.Array, Dims]:
  """Checks query [B, T, N, H], key (`key_letters`) and value [B, S, N, V] (None: there is none) against each other."""
  query, key = float_array("query", query), float_array("key", key)
  rank("query", query, "B T N H")
  rank("key", key, key_letters)
  B, T, N, H = query.shape
  S, M = key.shape[1], key.shape[3] if key_letters == "B S N M H" else 1
  if value is None:
    same_dtype(query=query, key=key)
    V = H
  else:
    value = float_array("value", value)
    rank("value", value, "B S N V")
    same_dtype(query=query, key=key, value=value)
    V = value.shape[-1]
  dims = Dims(B, T, S, N, M, H, V)
  for name, size in dims._asdict().items():
    if size < 1 and name != "B":
      raise ValueError(f"expected every axis but the batch to have at least one element, got {name} = {size}")
  shape("key", key, key_letters, dims)
  if value is not None:
    shape("value", value, "B S N V", dims, because="query and key")
  return query, key, value, dims


def log_prior(x: Any, dims: Dims) -> jax.Array | None:
  """The log prior as an array [N, M] or [S, N, M]; None means equal weights."""
  if x is None:
    return None
  x = float_array("log_prior", x)
  allowed = [[dims.N, dims.M], [dims.S, dims.N, dims.M]]
  if list(x.shape) not in allowed:
    raise ValueError(
      f"log_prior: expected shape [N, M] = {allowed[0]} or [S, N, M] = {allowed[1]}, got {list(x.shape)}"
    )
  return x


def variance(x: Any, dims: Dims) -> jax.Array:
  """The variance σ² as an array of shape [] or [M]; None means √H, the paper's constant."""
  if x is None:
    return jnp.asarray(math.sqrt(dims.H))
  if not isinstance(x, jax.Array):
    x = _number_or_array("variance", x)
    if not (np.all(x > 0) and np.all(np.isfinite(x))):
      raise ValueError(f"variance: expected positive finite values, got {x}")
    x = jnp.asarray(x, float)
  if not jnp.issubdtype(x.dtype, jnp.floating):
    raise TypeError(f"variance: expected a floating-point dtype, got {x.dtype}")
  if x.shape not in ((), (dims.M,)):
    raise ValueError(f"variance: expected a scalar or shape [M] = [{dims.M}], got {list(x.shape)}")
  return x


def dropout(rate: float, rng: Any) -> None:
  """Raises unless the rate lies in [0, 1) and comes with a key when it is positive."""
  if not isinstance(rate, int | float):
    raise TypeError(f"dropout_rate: expected a Python number (it is static), got {type(rate).__name__}")
  if not 0.0 <= rate < 1.0:
    raise ValueError(f"dropout_rate: expected 0 <= rate < 1, got {rate}")
  if rate > 0.0 and rng is None:
    raise ValueError(f"dropout_rate={rate} needs dropout_rng: expected a jax.random key, got None")
  if rng is None:
    return
  if not isinstance(rng, jax.Array | np.ndarray):
    raise TypeError(f"dropout_rng: expected a jax.random key, got {type(rng).__name__}")
  if jnp.issubdtype(rng.dtype, jax.dtypes.prng_key):
    if rng.shape:
      raise ValueError(f"dropout_rng: expected one key, got an array of keys of shape {list(rng.shape)}")
  elif rng.dtype != jnp.uint32 or rng.ndim != 1:
    raise TypeError(f"dropout_rng: expected a jax.random key, got {rng.dtype} of shape {list(rng.shape)}")


def _number_or_array(name: str, x: Any) -> np.ndarray:
  """`x`, a number or a sequence or array of numbers, as a NumPy array."""
  array = None
  if not isinstance(x, str | bytes | bool):
    with contextlib.suppress(TypeError, ValueError):
      array = np.asarray(x)
  if array is None or not np.issubdtype(array.dtype, np.number):
    raise TypeError(f"{name}: expected a number or an array, got {type(x).__name__}")
  return array
