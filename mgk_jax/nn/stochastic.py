"""Training or evaluation, and the randomness of dropout: how a call finds out, as in the layers of Flax."""

from typing import Any

from flax import nnx


def is_training(argument: bool | None, attribute: bool | None) -> bool:
  """Whether `deterministic`, by argument or else by attribute, is False; ValueError when neither is set."""
  deterministic = attribute if argument is None else argument
  if deterministic is None:
    raise ValueError(
      "deterministic: expected True or False with dropout or an EM prior, got None; pass it to the call or to the "
      "constructor, or call train() or eval()"
    )
  return not deterministic


def dropout_arguments(
  rate: float, broadcast: bool, own: nnx.RngStream | None, given: nnx.Rngs | nnx.RngStream | None
) -> dict[str, Any]:
  """The kernels' dropout arguments, with a new key from the call's stream or else the module's; none at rate 0."""
  if rate == 0.0:
    return {}
  stream = own if given is None else given.dropout if isinstance(given, nnx.Rngs) else given
  if stream is None:
    raise ValueError("rngs: expected nnx.Rngs in the call of a module with dropout and keep_rngs=False, got None")
  return {"dropout_rate": rate, "dropout_rng": stream(), "broadcast_dropout": broadcast}
