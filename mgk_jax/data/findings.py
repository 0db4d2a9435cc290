"""What a check of raw data finds wrong, gathered so that a user learns of all of it at once."""

from mgk_jax.data.errors import DataError

_SHOWN = 12  # a directory in which everything is wrong needs no list of everything


class Findings:
  """The faults of raw data: wrong counts, which `partial` forgives, and others, which nothing does.

  Args:
    name: of the data.
    advice: where to get them.
    partial: whether other counts are accepted.
  """

  def __init__(self, name: str, advice: str, *, partial: bool):
    self.name, self.advice, self.partial = name, advice, partial
    self._counts: list[str] = []
    self._faults: list[str] = []

  def count(self, what: str, *, expected: int, found: int, unit: str) -> None:
    """Notes it if another number of something was found than expected; none at all is always a fault."""
    if found != expected:
      faults = self._counts if found else self._faults
      faults.append(f"{what}: expected {expected:,} {unit}, found {found:,}" if found else f"{what}: found no {unit}")

  def fault(self, message: str) -> None:
    """Notes something wrong."""
    self._faults.append(message)

  def conclude(self) -> str:
    """What the raw data lack: "" if they are complete.

    Raises:
      DataError: they cannot be used; the message has all that is wrong and says where to get the data.
    """
    faults = self._faults + ([] if self.partial else self._counts)
    if faults:
      more = [f"… and {len(faults) - _SHOWN:,} more"] if len(faults) > _SHOWN else []
      lines = "\n  ".join([f"{self.name}: the raw data cannot be used as they are:", *faults[:_SHOWN], *more])
      raise DataError(f"{lines}\n{self.advice}")
    return "; ".join(self._counts)
