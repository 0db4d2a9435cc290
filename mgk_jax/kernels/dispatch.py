"""Choosing an implementation by name, or the first that can do the job."""

from collections.abc import Callable, Mapping
from typing import TypeVar

from mgk_jax.kernels import checks

Result = TypeVar("Result")


def run(implementation: str | None, candidates: Mapping[str, Callable[[], Result]]) -> Result:
  """Runs the named candidate; for None the first, in order, that does not raise NotImplementedError."""
  checks.one_of("implementation", implementation, (*candidates, None))
  if implementation is not None:
    return candidates[implementation]()
  *others, last = candidates.values()
  for candidate in others:
    try:
      return candidate()
    except NotImplementedError:
      continue
  return last()
