"""One tile of the attention matrix: from scores to weights, and back to the gradients of the scores.

Tiles are transposed, [keys, queries]: then every product, forward and backward, is a row-major matrix product without
a transposed copy, and what belongs to a query (maximum, normaliser) lies along the fast axis. Components are a Python
sequence of tiles, which keeps all that happens between two products elementwise, in one fused loop; or, where one
product made them all and one is to take them all, an array [components, keys, queries].
"""

import functools
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp

Tile = jax.Array  # [keys, queries]
Row = jax.Array  # [queries] or [1, queries]
Column = jax.Array  # [keys] or [keys, 1]
Tiles = Sequence[Tile] | jax.Array  # a tile for each component
Exponential = Callable[[jax.Array], jax.Array]


class Factors(NamedTuple):
  """exp(u_ir − û_i) and exp(w_jr − ŵ_j) of each component in the factored form (see `scores`)."""

  row: Sequence[Row]
  column: Sequence[Column]

  def product(self) -> Tile:
    """E_ij = Σ_r row_ir column_jr, multiplied out so that it fuses with what it is used in."""
    return _sum([_as_column(column) * row for row, column in zip(self.row, self.column, strict=True)])


class Maxima(NamedTuple):
  """u_ir − û_i and w_jr − ŵ_j of each component in a hard E step: only max_r of their sum counts."""

  row: Sequence[Row]
  column: Sequence[Column]

  def sums(self) -> list[Tile]:
    """(u_ir − û_i) + (w_jr − ŵ_j) for each component r."""
    return [_as_column(column) + row for row, column in zip(self.row, self.column, strict=True)]

  def top(self) -> Tile:
    """max_r of the sums."""
    return _max(self.sums())


Mixing = Factors | Maxima


class Gradient(NamedTuple):
  """What a tile passes back: its weights, and the derivatives of the loss by its scores."""

  weights: Tile
  scores: Tiles  # one per component; one for all if there is a `Mixing`
  inner: Tile  # their sum; in the factored form the derivative by the score without the factor E


def scores(
  products: Tiles,
  row: Sequence[Row] | None,
  column: Sequence[Column] | None,
  allowed: Tile | None,
) -> Tiles:
  """s_r = κ_r·q + w_r + u_r for each component r, −inf where not allowed; `products` are κ_r·q."""
  if isinstance(products, jax.Array):
    tile = products if column is None else products + jnp.stack(column)[:, :, None]
    tile = tile if row is None else tile + jnp.stack(row)[:, None]
    return tile if allowed is None else jnp.where(allowed, tile, -jnp.inf)
  count = max(len(x) for x in (products, row, column) if x is not None)
  tiles = []
  for r in range(count):
    tile = products[r] if len(products) > 1 else products[0]
    tile = tile if column is None else tile + _as_column(column[r if len(column) > 1 else 0])
    tile = tile if row is None else tile + row[r]
    tiles.append(tile if allowed is None else jnp.where(allowed, tile, -jnp.inf))
  return tiles


def peak(scores: Tiles, *, keepdims: bool = False) -> Row:
  """The largest score of each query, [queries], or [1, queries] with `keepdims`."""
  if isinstance(scores, jax.Array):
    return jnp.max(scores, axis=(0, 1))
  return functools.reduce(jnp.maximum, [jnp.max(score, axis=0, keepdims=keepdims) for score in scores])


def weights(scores: Tiles, offset: jax.Array, estep: str, mixing: Mixing | None, exp: Exponential = jnp.exp) -> Tile:
  """Unnormalised attention weights exp(−offset) Σ_r exp(s_r) or their hard form."""
  if isinstance(mixing, Factors):
    return exp(scores[0] - offset) * mixing.product()
  if isinstance(mixing, Maxima):
    return exp(scores[0] - offset + mixing.top())
  if estep == "hard":
    return exp(_max(scores) - offset)
  return _sum([exp(score - offset) for score in scores])


def responsibilities(scores: Tiles, estep: str, mixing: Mixing | None, exp: Exponential = jnp.exp) -> Tiles:
  """γ_r, how much of each pair component r accounts for, from scores that are finite."""
  if isinstance(mixing, Maxima):
    return _to_winners(jnp.ones((), mixing.row[0].dtype), mixing.sums())
  if isinstance(mixing, Factors):
    shares = zip(mixing.row, mixing.column, strict=True)
    return [_as_column(column) * row / mixing.product() for row, column in shares]
  if estep == "hard":
    return _to_winners(jnp.ones((), scores[0].dtype), scores)
  # Beyond 127 the share is nothing, be it of a power of e or of 2. A component's own part of the sum is one.
  differences = [[scores[r] - score for r in range(len(scores)) if r != own] for own, score in enumerate(scores)]
  ratios = [[exp(jnp.where(x > 127, 127, x)) for x in row] for row in differences]
  return [1 / _sum([jnp.ones_like(score), *row]) for score, row in zip(scores, ratios, strict=True)]


def backward(
  scores: Tiles,
  log_normaliser: jax.Array,
  by_weight: Tile,
  estep: str,
  mixing: Mixing | None,
  exp: Exponential = jnp.exp,
) -> Gradient:
  """The chain rule through the posterior: dL/ds_ijr = γ_ijr A_ij · by_weight_ij.

  Args:
    scores: the scores of the components.
    log_normaliser: [queries], log Σ exp(s) over all keys and components, +inf for a query that attends to nothing.
    by_weight: dL/dA_ij − Σ_j' A_ij' dL/dA_ij'.
    estep: "soft" or "hard".
    mixing: how components that share the product are mixed, or None.
    exp: the exponential.
  """
  if isinstance(mixing, Factors):
    posterior, product = exp(scores[0] - log_normaliser), mixing.product()
    weights = posterior * product
    return Gradient(weights, [weights * by_weight], posterior * by_weight)
  if isinstance(mixing, Maxima):
    posterior = exp(scores[0] - log_normaliser + mixing.top())
    inner = posterior * by_weight
    return Gradient(posterior, [inner], inner)
  if estep == "hard" and len(scores) > 1:
    posterior = exp(_max(scores) - log_normaliser)
    inner = posterior * by_weight
    return Gradient(posterior, _to_winners(inner, scores), inner)
  if isinstance(scores, jax.Array):
    total = _sum(exp(scores - log_normaliser))
    # Of the shape that the product for the scores has, so that XLA:CPU writes the derivatives in their place.
    flat = scores.reshape(-1, scores.shape[-1])
    by_weights = jnp.broadcast_to(by_weight, scores.shape).reshape(flat.shape)
    by_score = (exp(flat - log_normaliser) * by_weights).reshape(scores.shape)
    return Gradient(total, by_score, total * by_weight)
  posteriors = [exp(score - log_normaliser) for score in scores]
  total = _sum(posteriors)
  return Gradient(total, [posterior * by_weight for posterior in posteriors], total * by_weight)


def by_product(tile: Gradient, products: int) -> Tile:
  """The derivatives by all products, [products · keys, queries]; where components share one, the sum of theirs."""
  if isinstance(tile.scores, jax.Array):
    return tile.scores.reshape(-1, tile.scores.shape[-1])
  return tile.scores[0] if len(tile.scores) == products else tile.inner


def by_component(tile: Gradient, mixing: Mixing | None) -> Tiles:
  """The derivative by u_ir + w_jr of each component."""
  if isinstance(mixing, Factors):
    return [tile.scores[0] * share for share in responsibilities(tile.scores, "soft", mixing)]
  return tile.scores if mixing is None else _to_winners(tile.inner, mixing.sums())


def _as_column(x: Column) -> jax.Array:
  return x[:, None] if x.ndim == 1 else x


def _to_winners(x: jax.Array, scores: Tiles) -> Tiles:
  """`x`, one tile or one for each component, for those with the largest score, divided by their number."""
  if len(scores) == 2:  # comparisons that fuse with what they are used in, where a count would need tiles of its own
    if isinstance(scores, jax.Array):
      return jnp.where(scores > scores[::-1], x, jnp.where(scores == scores[::-1], x / 2, 0))
    lead = scores[0] - scores[1]
    halves = jnp.where(lead == 0, x / 2, 0)
    return [jnp.where(lead > 0, x, halves), jnp.where(lead < 0, x, halves)]
  if isinstance(scores, jax.Array):
    wins = scores == _max(scores)
    return jnp.where(wins, x / jnp.sum(wins, axis=0), 0)
  winners = [(score == _max(scores)).astype(x.dtype) for score in scores]
  return [x / _sum(winners) * winner for winner in winners]


def _sum(tiles: Tiles) -> Tile:
  return functools.reduce(jnp.add, tiles)


def _max(tiles: Tiles) -> Tile:
  # `jnp.maximum` takes longer, as it looks for NaN; here `peak` has already found them.
  return functools.reduce(lambda x, y: jnp.where(x > y, x, y), tiles)
