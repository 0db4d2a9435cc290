"""The attention of one `MixtureAttention` call: from projected queries, keys and values to the kernels."""

import dataclasses
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec

from mgk_jax import kernels
from mgk_jax.kernels import em, linear, scores
from mgk_jax.kernels.attention import Implementation
from mgk_jax.nn.choices import EStep, Kernel, Keys


@dataclasses.dataclass(frozen=True)
class Mixing:
  """The choices that decide which kernel runs; all static."""

  kernel: Kernel
  keys: Keys
  num_components: int
  estep: EStep
  feature_map: str | Callable[[jax.Array], jax.Array]
  implementation: Implementation | None

  @property
  def component_axis(self) -> tuple[int, ...]:
    """The axis that the key projection has for the components: (M,) or none."""
    return (self.num_components,) if self.keys == "projected" and self.num_components > 1 else ()

  def key_sharding(self, sharding: Any, ndim: int) -> Any:
    """A sharding of [batch..., length, heads, head_dim], which has `ndim` axes, for what the key projection gives."""
    if isinstance(sharding, NamedSharding):
      return NamedSharding(sharding.mesh, self.key_sharding(sharding.spec, ndim))
    if sharding is None or not self.component_axis or len(sharding) < ndim:
      return sharding
    return PartitionSpec(*sharding[:-1], None, sharding[-1])


class Components(NamedTuple):
  """What distinguishes the M components besides their keys."""

  shift: jax.Array | None  # [N, M, H], of shifted keys
  log_prior: jax.Array | None  # [N, M] or [S, N, M]
  variance: Any  # a number, an array of shape [] or [M], or None for √H


class Masks(NamedTuple):
  """What restricts attention, by the kernels' names."""

  mask: jax.Array | None
  is_causal: bool
  query_seq_lengths: jax.Array | None
  key_value_seq_lengths: jax.Array | None
  segment_ids: tuple[jax.Array, jax.Array] | None


NO_MASKS = Masks(None, False, None, None, None)


def attend(
  mixing: Mixing,
  query_BTNH: jax.Array,
  key: jax.Array,
  value_BSNH: jax.Array,
  components: Components,
  masks: Masks,
  dropout: dict[str, Any],
) -> jax.Array:
  """[B, T, N, H]; `key` as it was projected, [B, S, N, H], or [B, S, N, M, H] for projected keys with M > 1."""
  shared = {**masks._asdict(), "implementation": mixing.implementation}
  if mixing.kernel == "softmax":
    return kernels.softmax_attention(query_BTNH, key, value_BSNH, **shared, **dropout)
  if mixing.kernel == "linear":
    return linear.mixture_linear_attention(
      query_BTNH,
      component_keys(mixing, key, components.shift),
      value_BSNH,
      log_prior=components.log_prior,
      feature_map=mixing.feature_map,
      **shared,
    )
  shared |= {"log_prior": components.log_prior, "variance": components.variance, "estep": mixing.estep}
  if mixing.keys == "shifted":
    assert components.shift is not None
    return kernels.shifted_mixture_attention(query_BTNH, key, value_BSNH, components.shift, **shared, **dropout)
  return kernels.mixture_attention(query_BTNH, component_keys(mixing, key, None), value_BSNH, **shared, **dropout)


def component_keys(mixing: Mixing, key: jax.Array, shift: jax.Array | None) -> jax.Array:
  """The keys of all components, [B, S, N, M, H], in the dtype of the projection."""
  if shift is not None:
    return scores.shift_keys(key, shift).astype(key.dtype)
  return key if mixing.num_components > 1 else key[:, :, :, None]


def m_step(mixing: Mixing, query_BTNH: jax.Array, key: jax.Array, components: Components, masks: Masks) -> jax.Array:
  """The prior [S, N, M] that EM estimates from this batch, averaged over valid queries and the batch."""
  shifted = mixing.keys == "shifted"
  return em.em_prior(
    query_BTNH,
    key if shifted else component_keys(mixing, key, None),
    shift=components.shift,
    log_prior=components.log_prior,
    variance=components.variance,
    estep=mixing.estep,
    implementation=mixing.implementation,
    **masks._asdict(),
  )


def weights(mixing: Mixing, query_BTNH: jax.Array, key: jax.Array, components: Components, masks: Masks) -> jax.Array:
  """The attention weights themselves, [B, N, T, S], before dropout: what comes of values that are the unit vectors."""
  B, S, N = key.shape[:3]
  unit_BSNS = jnp.broadcast_to(jnp.eye(S, dtype=key.dtype)[:, None], (B, S, N, S))
  return jnp.einsum("btns->bnts", attend(mixing, query_BTNH, key, unit_BSNS, components, masks, {}))
