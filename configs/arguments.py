"""What may stand behind the colon of `--config=FILE.py:smgk,heads=2,seed=3`: a first word, then names with values.

A program has a table of the names that it knows, each with the setting it stands for and the values that it takes.
Everything else is an error that says what is allowed.
"""

import dataclasses
import difflib
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any


@dataclasses.dataclass(frozen=True)
class Kind:
  """What values are allowed.

  Attributes:
    expected: in words, for messages.
    read: the value that a text stands for; raises ValueError for a text that stands for none.
  """

  expected: str
  read: Callable[[str], Any]


@dataclasses.dataclass(frozen=True)
class Argument:
  """A short name's meaning: the setting, as a path such as "model.num_heads", and the values that it takes."""

  path: str
  kind: Kind


def whole(minimum: int = 1) -> Kind:
  """Whole numbers from `minimum` on."""
  return Kind(f"a whole number >= {minimum}", lambda text: _checked(int(text), lambda value: value >= minimum))


def number(minimum: float = 0.0, *, below: float = math.inf) -> Kind:
  """Numbers from `minimum` on, up to but not including `below`."""
  limit = "" if below == math.inf else f" and < {below:g}"
  return Kind(f"a number >= {minimum:g}{limit}", lambda text: _checked(float(text), lambda x: minimum <= x < below))


def positive() -> Kind:
  """Numbers above 0."""
  return Kind("a number > 0", lambda text: _checked(float(text), lambda value: 0 < value < math.inf))


def flag() -> Kind:
  """true or false."""
  return one_of("true", "false", values=(True, False))


def one_of(*texts: str, values: Iterable[Any] | None = None) -> Kind:
  """One of several words; `values` are what they stand for, by default themselves."""
  meaning = dict(zip(texts, texts if values is None else values, strict=True))

  def read(text: str) -> Any:
    if text not in meaning:
      raise ValueError(text)
    return meaning[text]

  return Kind(" or ".join((", ".join(texts[:-1]), texts[-1])) if texts[1:] else texts[0], read)


def _checked(value: Any, allowed: Callable[[Any], bool]) -> Any:
  if not allowed(value):
    raise ValueError(value)
  return value


def split(text: str, *, words: Iterable[str], default: str) -> tuple[str, dict[str, str]]:
  """The first word, one of `words` (`default` if there is none), and the values' texts by their names.

  Raises:
    ValueError: another first word, something that is no name=value, or a name that comes twice.
  """
  words = tuple(words)
  items = [item.strip() for item in text.split(",")] if text.strip() else []
  word = default
  if items and items[0] and "=" not in items[0]:
    word = items.pop(0)
    if word not in words:
      raise ValueError(f"expected one of {', '.join(words)} as the first word, got {word!r}{closest(word, words)}")
  texts: dict[str, str] = {}
  for item in items:
    name, equals, value = (part.strip() for part in item.partition("="))
    if not (name and equals and value):
      raise ValueError(f"expected one of {', '.join(words)} and then name=value,name=value,…, got {item!r} in {text!r}")
    if name in texts:
      raise ValueError(f"{name}: expected once, got {name}={texts[name]} and {name}={value}")
    texts[name] = value
  return word, texts


def read(texts: Mapping[str, str], table: Mapping[str, Argument], *, of: str) -> dict[str, Any]:
  """The values by their names; `of` says in messages whose arguments they are.

  Raises:
    ValueError: a name that is not in the table, or a value that its kind does not allow.
  """
  values = {}
  for name, text in texts.items():
    if name not in table:
      # Whoever knows a setting by its own name finds its short one.
      also = {argument.path.rpartition(".")[2]: short for short, argument in table.items()}
      hint = f"; did you mean {also[name]!r}?" if name in also else closest(name, table)
      raise ValueError(f"{of}: expected arguments among {', '.join(sorted(table))}, got {name!r}{hint}")
    kind = table[name].kind
    try:
      values[name] = kind.read(text)
    except ValueError:
      raise ValueError(f"{name}: expected {kind.expected}, got {text!r}") from None
  return values


def closest(name: str, allowed: Iterable[str]) -> str:
  """The end of a message, with the allowed name that is most like `name`; empty if none is like it."""
  matches = difflib.get_close_matches(name, list(allowed), n=1)
  return f"; did you mean {matches[0]!r}?" if matches else ""
