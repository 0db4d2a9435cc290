"""ListOps: expressions over the digits, such as `[MAX 2 9 [MIN 4 7 ] 0 ]`, whose value (here 9) is to be predicted.

`generate` samples from the distribution of the Long Range Arena: a node is an operator with probability 1/4 and else a
digit, an operator is one of MIN, MAX, MED (the median, truncated) and SM (the sum modulo 10) and has 2 to 10
arguments, no operator lies at depth 10 or deeper, and only expressions with 500 < tokens < 2000 are kept, none twice.
"""

import hashlib
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np
from jaxtyping import Int, UInt8, UInt64

PAD = 0
VOCABULARY = ("<pad>", *"0123456789", "[MIN", "[MAX", "[MED", "[SM", "]")  # a token's number is its place here
_FIRST_DIGIT, _FIRST_OPERATOR, _CLOSE = (VOCABULARY.index(token) for token in ("0", "[MIN", "]"))

# FIRST and LAST occur in the original ListOps files and not in the Long Range Arena: evaluated, but not encoded.
_OPERATIONS: dict[str, Callable[[list[int]], int]] = {
  "MIN": min,
  "MAX": max,
  "MED": lambda args: (sorted(args)[(len(args) - 1) // 2] + sorted(args)[len(args) // 2]) // 2,
  "SM": lambda args: sum(args) % 10,
  "FIRST": lambda args: args[0],
  "LAST": lambda args: args[-1],
}

_TREES_AT_ONCE = 1024  # part of the definition of the data: the trees of a batch share one stream of random words
_BARREN_BATCHES = 200  # so many batches in a row with nothing new mean that the limits leave nothing more to find


class Example(NamedTuple):
  """One expression, as numbers of tokens, and its value."""

  tokens: UInt8[np.ndarray, "S"]
  label: int


def evaluate(text: str) -> int:
  """The value of an expression, 0 to 9.

  Reads `[MAX 2 9 ]` with or without the parentheses of the original files, `( ( ( [MAX 2 ) 9 ) ] )`, and also
  `MAX 2 9 X`, the form into which the Long Range Arena's input pipeline turns it.

  Raises:
    ValueError: `text` is not an expression; the message names the token at fault.
  """
  done: list[int] = []  # values outside any operator: exactly one at the end
  open_operators: list[tuple[str, list[int]]] = []
  for token in _tokenize(text):
    if token in _OPERATIONS:
      open_operators.append((token, []))
      continue
    if token == "]":
      if not open_operators:
        raise ValueError(f"expected an operator before each ']', got one too many in {text!r}")
      operator, args = open_operators.pop()
      if not args:
        raise ValueError(f"[{operator}: expected at least one argument, got none in {text!r}")
      value = _OPERATIONS[operator](args)
    elif len(token) == 1 and token in "0123456789":
      value = int(token)
    else:
      raise ValueError(f"expected a digit, ']' or one of {tuple(_OPERATIONS)}, got {token!r} in {text!r}")
    (open_operators[-1][1] if open_operators else done).append(value)
  if open_operators or len(done) != 1:
    got = f"{len(open_operators)} without ']'" if open_operators else f"{len(done)} expressions"
    raise ValueError(f"expected one complete expression, got {got} in {text!r}")
  return done[0]


def encode(text: str) -> UInt8[np.ndarray, "S"]:
  """The numbers of the tokens of an expression in `VOCABULARY`; parentheses are left out.

  Raises:
    ValueError: a token is not in the vocabulary. The expression is not checked otherwise.
  """
  numbers = []
  for token in _tokenize(text):
    token = "[" + token if token in _OPERATIONS else token
    if token not in VOCABULARY[1:]:
      raise ValueError(f"expected tokens among {VOCABULARY[1:]}, got {token!r} in {text!r}")
    numbers.append(VOCABULARY.index(token))
  return np.array(numbers, np.uint8)


def decode(tokens: Int[np.ndarray, "S"] | UInt8[np.ndarray, "S"]) -> str:
  """The text of token numbers, without padding: the inverse of `encode` for text without parentheses."""
  return " ".join(VOCABULARY[token] for token in tokens if token != PAD)


def _tokenize(text: str) -> list[str]:
  """Operators by their bare names, digits and ']'."""
  for bracket, replacement in (("(", " "), (")", " "), ("[", " "), ("]", " ] ")):
    text = text.replace(bracket, replacement)
  return ["]" if token == "X" else token for token in text.split()]


def generate(
  seed: int, *, min_length: int = 500, max_length: int = 2000, max_depth: int = 10, max_args: int = 10
) -> Iterator[Example]:
  """An endless stream of expressions, none of which comes twice. The defaults are those of the Long Range Arena.

  The stream is a function of the arguments alone: it uses only the raw 64-bit words of NumPy's PCG64, which NumPy
  keeps the same in all versions, and integer arithmetic. An expression always starts with an operator (a bare digit
  is shorter than any useful `min_length`).

  Args:
    seed: of the stream.
    min_length: expressions have more tokens than this; an operator and its ']' are one token each.
    max_length: expressions have fewer tokens than this.
    max_depth: operators lie at depths 1 to max_depth − 1, and digits down to max_depth.
    max_args: operators have 2 to max_args arguments.

  Raises:
    ValueError: limits that no expression meets; while iterating, if no further expression is to be found.
  """
  if max_depth < 2 or max_args < 2:
    raise ValueError(f"expected max_depth >= 2 and max_args >= 2, got max_depth={max_depth}, max_args={max_args}")
  longest = 2 * sum(max_args**depth for depth in range(max_depth - 1)) + max_args ** (max_depth - 1)
  if max(min_length + 1, 4) > min(max_length - 1, longest):
    raise ValueError(
      f"expected limits that leave lengths between 4 and {longest}, "
      f"got min_length={min_length}, max_length={max_length} (both exclusive)"
    )
  return _unique(seed, min_length, max_length, max_depth, max_args)


def _unique(seed: int, min_length: int, max_length: int, max_depth: int, max_args: int) -> Iterator[Example]:
  bits = np.random.PCG64(seed)
  seen: set[bytes] = set()
  barren = 0
  while barren < _BARREN_BATCHES:
    before = len(seen)
    for example in _assemble(_sample_trees(bits, min_length, max_length, max_depth, max_args)):
      digest = hashlib.blake2b(example.tokens.tobytes(), digest_size=16).digest()
      if digest not in seen:
        seen.add(digest)
        yield example
    barren = barren + 1 if len(seen) == before else 0
  raise ValueError(
    f"expected limits that leave more expressions, found {len(seen)} different ones with "
    f"min_length={min_length}, max_length={max_length}, max_depth={max_depth}, max_args={max_args}"
  )


class _Level(NamedTuple):
  """The nodes at one depth of many trees, from left to right; the children of a node are neighbours one level down."""

  word: UInt64[np.ndarray, "n"]  # the random word that decides what the node is
  num_args: Int[np.ndarray, "n"]  # 0 for a digit


def _sample_trees(
  bits: np.random.PCG64, min_length: int, max_length: int, max_depth: int, max_args: int
) -> list[_Level]:
  """Grows `_TREES_AT_ONCE` trees level by level and keeps those within the limits of length.

  Of the word of a node, the two highest bits decide between operator (0) and digit, the next thirty the number of
  arguments, and the lowest 32 which operator or digit it is.
  """
  levels: list[_Level] = []
  trees: list[np.ndarray] = []  # the tree to which each node belongs, by level
  tree = np.arange(_TREES_AT_ONCE)
  length = np.zeros(_TREES_AT_ONCE, np.int64)
  for depth in range(1, max_depth + 1):
    word = bits.random_raw(len(tree))
    is_operator = (word >> 62 == 0) | (depth == 1)
    # A tree that is already too long, with every node of this level counted as a digit, needs to grow no further.
    is_operator &= (depth < max_depth) & ((length + np.bincount(tree, minlength=_TREES_AT_ONCE))[tree] < max_length)
    num_args = np.where(is_operator, 2 + _scale(word >> 32 & 0x3FFFFFFF, 30, max_args - 1), 0)
    length += np.bincount(tree, weights=1 + is_operator, minlength=_TREES_AT_ONCE).astype(np.int64)
    levels.append(_Level(word, num_args))
    trees.append(tree)
    tree = np.repeat(tree, num_args)
    if not len(tree):
      break
  kept = (length > min_length) & (length < max_length)
  levels = [_Level(*(x[kept[tree]] for x in level)) for level, tree in zip(levels, trees, strict=True)]
  return [level for level in levels if len(level.word)]


def _scale(words: np.ndarray, num_bits: int, bound: int) -> np.ndarray:
  """Words of `num_bits` <= 32 random bits as integers 0 <= x < bound, uniform to within bound / 2^num_bits."""
  return (words * bound >> num_bits).astype(np.int64)


def _assemble(levels: list[_Level]) -> Iterator[Example]:
  """The expressions of whole levels of trees: sizes and values from the leaves up, then places from the roots down."""
  if not levels:
    return
  sizes: list[np.ndarray] = []
  size = value = np.zeros(0, np.int64)
  for level in reversed(levels):
    is_operator = level.num_args > 0
    size_below, size = size, np.ones_like(level.num_args)
    value_below, value = value, _choice(level, 10)
    if is_operator.any():
      num_args = level.num_args[is_operator]
      size[is_operator] = 2 + np.add.reduceat(size_below, _starts(num_args))
      value[is_operator] = _apply(_choice(level, 4)[is_operator], value_below, num_args)
    sizes.insert(0, size)

  starts = _starts(size)  # where each tree begins in the tokens of all
  tokens = np.empty(size.sum(), np.uint8)
  place = starts
  for depth, level in enumerate(levels):
    is_operator = level.num_args > 0
    tokens[place] = np.where(is_operator, _FIRST_OPERATOR + _choice(level, 4), _FIRST_DIGIT + _choice(level, 10))
    tokens[(place + sizes[depth] - 1)[is_operator]] = _CLOSE
    if is_operator.any():
      num_args = level.num_args[is_operator]
      before = _starts(sizes[depth + 1])
      place = before + np.repeat(place[is_operator] + 1 - before[_starts(num_args)], num_args)
  for start, end, label in zip(starts, starts + size, value, strict=True):
    yield Example(tokens[start:end].copy(), int(label))


def _choice(level: _Level, bound: int) -> np.ndarray:
  """Which operator (of 4) or digit (of 10) each node is."""
  return _scale(level.word & 0xFFFFFFFF, 32, bound)


def _starts(counts: np.ndarray) -> np.ndarray:
  """Where each of several neighbouring segments of the given lengths begins."""
  return np.cumsum(counts) - counts


def _apply(operators: np.ndarray, args: np.ndarray, num_args: np.ndarray) -> np.ndarray:
  """The value of each operator; `args` holds the arguments of all, one operator after the other."""
  starts = _starts(num_args)
  in_order = args[np.lexsort((args, np.repeat(np.arange(len(num_args)), num_args)))]
  low, high = in_order[starts + (num_args - 1) // 2], in_order[starts + num_args // 2]
  smallest, largest, total = in_order[starts], in_order[starts + num_args - 1], np.add.reduceat(args, starts)
  results = np.stack([smallest, largest, (low + high) // 2, total % 10])  # MIN, MAX, MED, SM as in VOCABULARY
  return results[operators, np.arange(len(operators))]
