"""Which implementation runs: the one that the caller names, or the best one for the platform and the arguments."""

import contextlib
import contextvars
import functools
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeVar

import jax

from mgk_jax.kernels import checks

Result = TypeVar("Result")

# In the order in which they are tried. What is not listed for a platform runs there only when it is named.
PREFERENCES: Mapping[str, tuple[str, ...]] = {
  "cpu": ("xla", "reference"),
  "tpu": ("pallas", "xla", "reference"),
  "gpu": ("pallas", "cudnn", "xla", "reference"),
}


class Attempt(NamedTuple):
  """An implementation that was considered, and why it was passed over; None for the one that was chosen."""

  implementation: str
  refusal: str | None


_target: contextvars.ContextVar[str | None] = contextvars.ContextVar("target", default=None)
_attempts: contextvars.ContextVar[list[Attempt] | None] = contextvars.ContextVar("attempts", default=None)


def platform() -> str:
  """The platform for which implementations are chosen: "cpu", "tpu" or "gpu"."""
  name = _target.get() or jax.default_backend()
  return "gpu" if name in ("cuda", "rocm") else name


@contextlib.contextmanager
def compiling_for(target: str) -> Iterator[None]:
  """Within it, implementations are chosen for "cpu", "tpu" or "gpu", whatever this machine has.

  Example:
    >>> query = jax.ShapeDtypeStruct((8, 4096, 4, 32), jnp.float32)
    >>> with mgk_jax.compiling_for("tpu"):
    ...   print(mgk_jax.explain_implementation(mgk_jax.softmax_attention, query, query, query))
    pallas: runs
  """
  checks.one_of("target", target, PREFERENCES)
  token = _target.set(target)
  try:
    yield
  finally:
    _target.reset(token)


def run(implementation: str | None, candidates: Mapping[str, Callable[[], Result]]) -> Result:
  """Runs the named candidate; for None the first that does not raise NotImplementedError.

  There is a warning if that is not the one that the platform prefers.
  """
  checks.one_of("implementation", implementation, (*candidates, None))
  if implementation is not None:
    result = candidates[implementation]()
    _note(implementation, None)
    return result
  *others, last = [name for name in PREFERENCES.get(platform(), PREFERENCES["cpu"]) if name in candidates]
  refusals: list[str] = []
  for name in others:
    try:
      result = candidates[name]()
      break
    except NotImplementedError as error:
      _note(name, str(error))
      refusals.append(f'"{name}" cannot: {error}')
  else:
    name, result = last, candidates[last]()
  if refusals:
    _warn_once(f'attention runs with implementation="{name}", as {"; ".join(refusals)}')
  _note(name, None)
  return result


def explain_implementation(function: Callable[..., Any], *args: Any, platform: str | None = None, **kwargs: Any) -> str:
  """Which implementation `function(*args, **kwargs)` runs, and why not those before it. Nothing is computed.

  Args:
    function: an attention of this package, or anything that calls one, such as a module.
    args, kwargs: its arguments; arrays may be jax.ShapeDtypeStruct.
    platform: "cpu", "tpu" or "gpu"; None for that of this process.

  Example:
    >>> query = jax.ShapeDtypeStruct((8, 4096, 4, 32), jnp.float32)
    >>> dropout = dict(dropout_rate=0.1, dropout_rng=jax.random.key(0))
    >>> explain = mgk_jax.explain_implementation
    >>> print(explain(mgk_jax.softmax_attention, query, query, query, platform="tpu", **dropout))
    pallas: cannot, dropout of attention weights
    xla: runs
  """
  attempts: list[Attempt] = []
  token = _attempts.set(attempts)
  try:
    with compiling_for(platform) if platform else contextlib.nullcontext(), warnings.catch_warnings(action="ignore"):
      # Arrays are traced and all else, such as is_causal, is static.
      leaves, treedef = jax.tree.flatten((args, kwargs))
      arrays = {i: x for i, x in enumerate(leaves) if hasattr(x, "shape") and hasattr(x, "dtype")}

      def call(arrays: Mapping[int, Any]) -> Any:
        traced_args, traced_kwargs = jax.tree.unflatten(treedef, [arrays.get(i, x) for i, x in enumerate(leaves)])
        return function(*traced_args, **traced_kwargs)

      jax.eval_shape(call, arrays)
  finally:
    _attempts.reset(token)
  lines = [f"{a.implementation}: {'runs' if a.refusal is None else f'cannot, {a.refusal}'}" for a in attempts]
  return "\n".join(lines) or "no attention of this package was called"


def _note(implementation: str, refusal: str | None) -> None:
  attempts = _attempts.get()
  if attempts is not None:
    attempts.append(Attempt(implementation, refusal))


@functools.cache
def _warn_once(message: str) -> None:
  warnings.warn(message, stacklevel=2)
