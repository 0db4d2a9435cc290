"""The feature map of a linear `MixtureAttention`: what is static of it, and the random projection that is not."""

from typing import Any

from flax import nnx

from mgk_jax.kernels import feature_maps


class RandomProjection(nnx.Variable):
  """ω of FAVOR+ features, [F, head_dim]: drawn once, not trained, saved with the model. Assign to it to redraw it."""


def static(feature_map: Any, head_dim: int) -> Any:
  """What a module keeps of a feature map besides variables: "favor" for any projection, else the map itself.

  Raises:
    ValueError, TypeError: an unknown name, something that is no feature map, or one that cannot be hashed.
  """
  feature_maps.resolve(feature_map, head_dim)
  if isinstance(feature_map, feature_maps.Favor):
    return "favor"
  check_static(feature_map)
  return feature_map


def draw(feature_map: Any, head_dim: int, rngs: nnx.Rngs) -> RandomProjection:
  """The projection of FAVOR+ features: that of the map, or one drawn from `rngs` for the name "favor"."""
  if isinstance(feature_map, str):
    feature_map = feature_maps.favor(rngs.params(), head_dim)
  return RandomProjection(feature_map.projection)


def current(feature_map: Any, projection: RandomProjection | None) -> Any:
  """The feature map for the kernels, of its static part and its projection."""
  return feature_map if projection is None else feature_maps.Favor(projection[...])


def check_static(feature_map: Any) -> None:
  """Raises TypeError unless the map can be hashed, as all must that is static in a module."""
  try:
    hash(feature_map)
  except TypeError as error:
    raise TypeError(f"feature_map: expected a name or a hashable callable, got {feature_map!r}") from error
