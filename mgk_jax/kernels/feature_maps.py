"""Feature maps φ of linear attention, which replaces exp(q·k/√H) by φ(q)·φ(k).

A feature map is one of the names in `NAMES` ("favor": `favor(jax.random.key(0), H)`, "dpfp": `Dpfp(nu=1)`), any
function φ: [..., H] → [..., F], or an object with two methods, for maps that treat queries and keys differently:

    query(x) → features       φ(x) up to a positive factor of each row, which cancels in the normalised attention
    key(x) → features, scale  φ(x) = exp(scale) · features, with scale [...] or None for zeros

Both exist for the sake of range: an exponential map can keep its features near 1, and the kernels bring the scales
together without overflow. Each row must depend on that row alone, or causality and decoding break.
"""

import dataclasses
import functools
import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float

from mgk_jax.kernels import checks

NAMES = ("elu", "relu", "favor", "dpfp")


@runtime_checkable
class FeatureMap(Protocol):
  """φ with forms of its own for queries and for keys."""

  def query(self, x: Float[Array, "... H"], /) -> Float[Array, "... F"]:
    """φ(x) up to a positive factor of each row."""

  def key(self, x: Float[Array, "... H"], /) -> tuple[Float[Array, "... F"], Float[Array, "..."] | None]:
    """Features and a log scale (None: zeros) with φ(x) = exp(scale) · features."""


FeatureMapLike = str | FeatureMap | Callable[[Array], Array]


def resolve(feature_map: Any, head_dim: int) -> FeatureMap:
  """The map that a name or a function stands for; raises ValueError or TypeError with what is allowed."""
  if isinstance(feature_map, str):
    checks.one_of("feature_map", feature_map, NAMES)
    return _NAMED[feature_map](head_dim)
  if isinstance(feature_map, type) or not (isinstance(feature_map, FeatureMap) or callable(feature_map)):
    raise TypeError(
      f"feature_map: expected one of {NAMES}, a function [..., H] -> [..., F] or an object with methods query and key, "
      f"got {feature_map!r}"
    )
  if isinstance(feature_map, Favor) and feature_map.projection.shape[-1] != head_dim:
    got = list(feature_map.projection.shape)
    raise ValueError(f"feature_map: expected a projection of shape [F, H] with H = {head_dim}, got {got}")
  return feature_map if isinstance(feature_map, FeatureMap) else Pointwise(feature_map)


def num_features(feature_map: FeatureMapLike, head_dim: int) -> int:
  """F, the number of features that the map has for heads of dimension `head_dim`."""
  x = jax.ShapeDtypeStruct((1, head_dim), jnp.float32)
  return jax.eval_shape(resolve(feature_map, head_dim).query, x).shape[-1]


@dataclasses.dataclass(frozen=True)
class Pointwise:
  """One function for queries and keys alike."""

  function: Callable[[Array], Array]

  def query(self, x: Float[Array, "... H"]) -> Float[Array, "... F"]:
    """φ(x)."""
    return self.function(x)

  def key(self, x: Float[Array, "... H"]) -> tuple[Float[Array, "... F"], None]:
    """φ(x) and no scale."""
    return self.function(x), None


@dataclasses.dataclass(frozen=True)
class Elu:
  """φ(x) = elu(x) + 1: x + 1 for positive x and exp(x) for the others; F = H.

  The exponential itself, not expm1(x) + 1, which rounds every feature below 6e-8 to zero.
  """

  def __call__(self, x: Float[Array, "... H"]) -> Float[Array, "... H"]:
    """φ(x)."""
    # In a form that LLVM for CPUs vectorises, as it does neither a choice between the two nor min(x, 0).
    return jnp.maximum(x, 0) + jnp.exp(-jnp.maximum(-x, 0))

  def query(self, x: Float[Array, "... H"]) -> Float[Array, "... H"]:
    """φ(x) / max_h exp(x_h) for rows without a positive entry, so that no query loses all its features."""
    top = jax.lax.stop_gradient(jnp.max(x, axis=-1, keepdims=True))
    return self(x - jnp.minimum(top, 0))

  def key(self, x: Float[Array, "... H"]) -> tuple[Float[Array, "... H"], None]:
    """φ(x) and no scale."""
    return self(x), None


@dataclasses.dataclass(frozen=True)
class Dpfp:
  """Deterministic parameter-free projection: with r = relu([x, −x]), all products r_i · r_{i−s}, s = 1..nu.

  Indices are cyclic and F = 2·H·nu. With nu = 1 features are zero unless two neighbours in r are positive, so that
  different keys tend to have different non-zero features.
  """

  nu: int = 1

  def __post_init__(self) -> None:
    """Checks nu."""
    if not isinstance(self.nu, int) or self.nu < 1:
      raise ValueError(f"nu: expected a positive int, got {self.nu!r}")

  def __call__(self, x: Float[Array, "... H"]) -> Float[Array, "... F"]:
    """φ(x)."""
    both = jax.nn.relu(jnp.concatenate([x, -x], axis=-1))
    return jnp.concatenate([both * jnp.roll(both, shift, axis=-1) for shift in range(1, self.nu + 1)], axis=-1)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Favor:
  """FAVOR+: positive random features, φ(x)·φ(y) ≈ exp(x·y/√H) without bias over draws of the projection ω, [F, H].

      φ_f(x) = exp(ω_f·x̂ − ‖x̂‖²/2) / √F,   x̂ = x / H^¼

  A pytree: pass it to jitted functions, and draw another one by another key whenever you like (`favor`).
  """

  projection: Float[Array, "F H"]

  def __call__(self, x: Float[Array, "... H"]) -> Float[Array, "... F"]:
    """φ(x), without protection against underflow or overflow."""
    return jnp.exp(self._exponents(x) - self._half_norm(x)) / math.sqrt(self.projection.shape[0])

  def query(self, x: Float[Array, "... H"]) -> Float[Array, "... F"]:
    """φ(x) divided by its largest feature."""
    exponents = self._exponents(x)
    return jnp.exp(exponents - _row_max(exponents))

  def key(self, x: Float[Array, "... H"]) -> tuple[Float[Array, "... F"], Float[Array, "..."]]:
    """φ(x) divided by its largest feature, and the logarithm of that divisor (up to log √F)."""
    exponents = self._exponents(x) - self._half_norm(x)
    top = _row_max(exponents)
    return jnp.exp(exponents - top), top[..., 0]

  def _exponents(self, x: jax.Array) -> jax.Array:
    projection = jnp.asarray(self.projection, x.dtype)
    return jnp.einsum("...h,fh->...f", x, projection * x.shape[-1] ** -0.25)

  def _half_norm(self, x: jax.Array) -> jax.Array:
    return jnp.sum(x * x, axis=-1, keepdims=True) / (2 * math.sqrt(x.shape[-1]))


def favor(rng: Array, head_dim: int, num_features: int | None = None) -> Favor:
  """Draws the projection of `Favor`: orthogonal rows within each block of `head_dim`, of independent Gaussians' norms.

  Each row is standard normal, which makes the estimate unbiased; rows that are orthogonal and not merely independent
  lower its variance.

  Args:
    rng: a jax.random key.
    head_dim: H.
    num_features: F. None: 4·H.
  """
  num_features = 4 * head_dim if num_features is None else num_features
  for name, number in (("head_dim", head_dim), ("num_features", num_features)):
    if not isinstance(number, int | np.integer) or number < 1:
      raise ValueError(f"{name}: expected a positive int, got {number!r}")
  return Favor(_orthogonal_projection(rng, head_dim, num_features))


@functools.partial(jax.jit, static_argnums=(1, 2))
def _orthogonal_projection(rng: jax.Array, head_dim: int, num_features: int) -> jax.Array:
  blocks = -(-num_features // head_dim)
  directions, others = jax.random.normal(rng, (2, blocks, head_dim, head_dim), jnp.float32)
  orthogonal, triangular = jnp.linalg.qr(directions)
  # QR fixes the signs of the columns; those of R's diagonal make the rotation uniformly distributed.
  orthogonal = orthogonal * jnp.sign(jnp.diagonal(triangular, axis1=-2, axis2=-1))[:, None, :]
  projection = orthogonal * jnp.linalg.norm(others, axis=-1, keepdims=True)
  return projection.reshape(-1, head_dim)[:num_features]


@functools.lru_cache
def _default_projection(head_dim: int) -> np.ndarray:
  """The projection of `favor(jax.random.key(0), head_dim)`, drawn once, and outside of whatever is being traced."""
  with jax.ensure_compile_time_eval():
    return np.asarray(favor(jax.random.key(0), head_dim).projection)


def _row_max(exponents: jax.Array) -> jax.Array:
  return jax.lax.stop_gradient(jnp.max(exponents, axis=-1, keepdims=True))


_NAMED: dict[str, Callable[[int], FeatureMap]] = {
  "elu": lambda head_dim: Elu(),
  "relu": lambda head_dim: Pointwise(jax.nn.relu),
  "favor": lambda head_dim: Favor(jnp.asarray(_default_projection(head_dim))),
  "dpfp": lambda head_dim: Pointwise(Dpfp()),
}
