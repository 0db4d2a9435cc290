import hashlib
import itertools
import random

import numpy as np
import pytest

from lra import listops

# Worked out by hand.
EXPRESSIONS = {
  "7": 7,
  "[MAX 2 9 [MIN 4 7 ] 0 ]": 9,
  "[MIN 3 [MAX 1 2 ] 8 ]": 2,
  "[SM 9 8 7 ]": 4,
  "[SM 5 5 ]": 0,
  "[MED 1 9 4 ]": 4,
  "[MED 4 1 ]": 2,  # 2.5, truncated
  "[MED 9 0 3 6 ]": 4,  # 4.5
  "[SM [MED 2 5 ] [MAX [MIN 8 6 ] 1 ] [SM 9 9 ] ]": 7,  # 3 + 6 + 8
  "[FIRST 4 [LAST 1 2 ] 9 ]": 4,
  "[LAST 4 9 [MED 7 7 1 ] ]": 7,
}


@pytest.mark.parametrize(("text", "value"), EXPRESSIONS.items())
def test_value_of_an_expression(text, value):
  assert listops.evaluate(text) == value


@pytest.mark.parametrize(
  "text",
  [
    "[MAX 2 9 [MIN 4 7 ] 0 ]",
    "( ( ( ( ( [MAX 2 ) 9 ) ( ( ( [MIN 4 ) 7 ) ] ) ) 0 ) ] )",
    "((((([MAX 2) 9) ((([MIN 4) 7) ])) 0) ])",
    "MAX 2 9 MIN 4 7 X 0 X",
    "  [MAX 2 9\t[MIN 4 7] 0]\n",
  ],
)
def test_all_spellings_are_one_expression(text):
  assert listops.evaluate(text) == 9
  assert listops.decode(listops.encode(text)) == "[MAX 2 9 [MIN 4 7 ] 0 ]"


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("", "got 0 expressions"),
    ("1 2", "got 2 expressions"),
    ("[MAX 1 2", "got 1 without ']'"),
    ("[MAX 1 2 ] ]", "one too many"),
    ("[MAX ]", "expected at least one argument, got none"),
    ("[AVG 1 2 ]", "got 'AVG'"),
    ("[MAX 1 12 ]", "got '12'"),
    ("[MAX 1 ² ]", "got '²'"),
  ],
)
def test_what_is_no_expression_is_refused(text, message):
  with pytest.raises(ValueError, match=message.replace("]", "\\]")):
    listops.evaluate(text)


def test_vocabulary():
  assert listops.VOCABULARY[0] == "<pad>"
  assert len(listops.VOCABULARY) == len(set(listops.VOCABULARY)) == 16
  np.testing.assert_array_equal(listops.encode("[MAX 0 [SM 9 1 ] ]"), [12, 1, 14, 10, 2, 15, 15])
  with pytest.raises(ValueError, match="got '\\[FIRST'"):
    listops.encode("[FIRST 1 2 ]")
  with pytest.raises(ValueError, match="got '<pad>'"):
    listops.encode("<pad>")
  assert listops.decode([14, 2, 3, 15, 0, 0]) == "[SM 1 2 ]"


@pytest.mark.parametrize(
  "limits",
  [
    {},
    {"min_length": 3, "max_length": 24, "max_depth": 3, "max_args": 4},
    {"min_length": 100, "max_length": 110, "max_args": 3},  # so rare that many batches of trees hold none
  ],
  ids=["lra", "short", "rare"],
)
def test_generated_expressions_have_the_stated_form(limits):
  low, high = limits.get("min_length", 500), limits.get("max_length", 2000)
  texts = []
  for example in itertools.islice(listops.generate(3, **limits), 300):
    text = listops.decode(example.tokens)
    texts.append(text)
    assert example.tokens.dtype == np.uint8
    assert low < len(example.tokens) < high
    assert listops.evaluate(text) == example.label
    depth, num_args = _measure(text.split())
    assert depth < limits.get("max_depth", 10)
    assert 2 <= min(num_args) and max(num_args) <= limits.get("max_args", 10)
  assert len(set(texts)) == len(texts)


def test_the_data_is_a_function_of_the_arguments():
  def digest(seed, count):
    hashed = hashlib.sha256()
    for example in itertools.islice(listops.generate(seed), count):
      hashed.update(f"{listops.decode(example.tokens)}\t{example.label}\n".encode())
    return hashed.hexdigest()[:16]

  # Whoever changes these numbers changes the data set that trained models were made with.
  assert [digest(0, 500), digest(1, 500)] == ["a296923d14b3fe7f", "075bbecc5cca9461"]
  long = [example.label for example in itertools.islice(listops.generate(0), 600)]
  assert long[:50] == [example.label for example in itertools.islice(listops.generate(0), 50)]


def test_distribution_is_that_of_the_recursive_definition():
  limits = {"min_length": 20, "max_length": 120, "max_depth": 5, "max_args": 6}
  count = 2000
  generated = [
    listops.decode(example.tokens).split() for example in itertools.islice(listops.generate(0, **limits), count)
  ]
  rng = random.Random(0)
  defined: list[list[str]] = []
  while len(defined) < count:
    tokens = _sample(rng, 1, limits["max_depth"], limits["max_args"])
    if limits["min_length"] < len(tokens) < limits["max_length"]:
      defined.append(tokens)

  for statistic in (
    lambda tokens: len(tokens),
    lambda tokens: _measure(tokens)[0],
    lambda tokens: np.mean(_measure(tokens)[1]),
    lambda tokens: listops.evaluate(" ".join(tokens)),
    *(
      lambda tokens, t=token: tokens.count(t) / len(tokens) for token in ("[MIN", "[MAX", "[MED", "[SM", "0", "5", "9")
    ),
  ):
    a, b = (np.array([statistic(tokens) for tokens in sample], float) for sample in (generated, defined))
    standard_error = np.sqrt((a.var() + b.var()) / count)
    assert abs(a.mean() - b.mean()) < 4 * standard_error, (a.mean(), b.mean(), standard_error)


@pytest.mark.parametrize(
  ("limits", "message"),
  [
    ({"max_depth": 1}, "got max_depth=1"),
    ({"max_args": 1}, "max_args=1"),
    ({"min_length": 500, "max_length": 501}, "min_length=500, max_length=501"),
    ({"min_length": 0, "max_length": 4}, "lengths between 4 and"),
    ({"max_depth": 2, "max_args": 10, "min_length": 12, "max_length": 100}, "between 4 and 12"),
  ],
)
def test_impossible_limits_are_refused(limits, message):
  with pytest.raises(ValueError, match=message):
    listops.generate(0, **limits)


def test_the_stream_ends_with_an_error_when_all_expressions_were_given():
  stream = listops.generate(0, min_length=3, max_length=5, max_depth=2, max_args=2)
  found = {listops.decode(example.tokens) for example in itertools.islice(stream, 400)}
  assert len(found) == 4 * 10 * 10
  with pytest.raises(ValueError, match="found 400 different ones"):
    next(stream)


def _measure(tokens):
  """The deepest operator and the numbers of arguments, by a walk over the text."""
  deepest, open_counts, num_args = 0, [], []
  for token in tokens:
    if token == "]":
      num_args.append(open_counts.pop())
      continue
    if open_counts:
      open_counts[-1] += 1
    if token.startswith("["):
      open_counts.append(0)
      deepest = max(deepest, len(open_counts))
  return deepest, num_args


def _sample(rng, depth, max_depth, max_args):
  """The Long Range Arena's distribution by plain recursion, without limits of length."""
  if depth == max_depth or rng.random() > 0.25:
    return [str(rng.randrange(10))]
  args = [_sample(rng, depth + 1, max_depth, max_args) for _ in range(rng.randint(2, max_args))]
  return [rng.choice(["[MIN", "[MAX", "[MED", "[SM"]), *itertools.chain(*args), "]"]
