"""What stands behind a config's colon is read as meant, or refused with a message that says what is allowed."""

import pytest

from configs import arguments
from configs.arguments import Argument, flag, number, one_of, positive, whole

WORDS = ("softmax", "mgk", "smgk")
TABLE = {
  "heads": Argument("model.num_heads", whole()),
  "seed": Argument("seed", whole(0)),
  "lr": Argument("optimizer.learning_rate", positive()),
  "dropout": Argument("model.dropout_rate", number(below=1)),
  "decay": Argument("optimizer.decay", number()),
  "estep": Argument("model.estep", one_of("soft", "hard")),
  "protocol": Argument("data.protocol", one_of("lra")),
  "remat": Argument("model.remat", flag()),
}


@pytest.mark.parametrize(
  ("text", "word", "texts"),
  [
    ("", "smgk", {}),
    ("  ", "smgk", {}),
    ("mgk", "mgk", {}),
    ("heads=2", "smgk", {"heads": "2"}),
    ("softmax,heads=2,seed=3", "softmax", {"heads": "2", "seed": "3"}),
    (" softmax , heads = 2 ", "softmax", {"heads": "2"}),
    ("mgk,path=a=b", "mgk", {"path": "a=b"}),
  ],
)
def test_split(text, word, texts):
  assert arguments.split(text, words=WORDS, default="smgk") == (word, texts)


@pytest.mark.parametrize(
  ("text", "message"),
  [
    ("smkg", "expected one of softmax, mgk, smgk as the first word, got 'smkg'; did you mean 'smgk'?"),
    ("convolution", "expected one of softmax, mgk, smgk as the first word, got 'convolution'"),
    ("SMGK", "expected one of softmax, mgk, smgk as the first word, got 'SMGK'"),
    ("smgk,mgk", "expected one of softmax, mgk, smgk and then name=value,name=value,…, got 'mgk' in 'smgk,mgk'"),
    ("heads=2,smgk", "got 'smgk' in 'heads=2,smgk'"),
    ("smgk,,heads=2", "got '' in 'smgk,,heads=2'"),
    ("smgk,", "got '' in 'smgk,'"),
    (",smgk", "got '' in ',smgk'"),
    ("smgk,heads=", "got 'heads=' in 'smgk,heads='"),
    ("smgk,=2", "got '=2' in 'smgk,=2'"),
    ("smgk,heads=2,heads=2", "heads: expected once, got heads=2 and heads=2"),
    ("smgk,heads=2,seed=1,heads=4", "heads: expected once, got heads=2 and heads=4"),
  ],
)
def test_split_refuses(text, message):
  with pytest.raises(ValueError) as error:
    arguments.split(text, words=WORDS, default="smgk")
  assert message in str(error.value)


@pytest.mark.parametrize(
  ("name", "text", "value"),
  [
    ("heads", "12", 12),
    ("heads", "1_000", 1000),
    ("seed", "0", 0),
    ("lr", "1e-4", 1e-4),
    ("lr", "1", 1.0),
    ("dropout", "0", 0.0),
    ("decay", "1.5", 1.5),
    ("estep", "hard", "hard"),
    ("remat", "true", True),
    ("remat", "false", False),
  ],
)
def test_values_have_types(name, text, value):
  got = arguments.read({name: text}, TABLE, of="listops")
  assert got == {name: value} and type(got[name]) is type(value)


@pytest.mark.parametrize(
  ("name", "text", "expected"),
  [
    ("heads", "0", "a whole number >= 1"),
    ("heads", "2.0", "a whole number >= 1"),
    ("heads", "two", "a whole number >= 1"),
    ("seed", "-1", "a whole number >= 0"),
    ("lr", "0", "a number > 0"),
    ("lr", "inf", "a number > 0"),
    ("lr", "nan", "a number > 0"),
    ("lr", "fast", "a number > 0"),
    ("dropout", "1", "a number >= 0 and < 1"),
    ("dropout", "-0.1", "a number >= 0 and < 1"),
    ("decay", "inf", "a number >= 0"),
    ("decay", "nan", "a number >= 0"),
    ("estep", "Hard", "soft or hard"),
    ("protocol", "holdout", "lra"),
    ("remat", "True", "true or false"),
    ("remat", "1", "true or false"),
  ],
)
def test_values_are_refused(name, text, expected):
  with pytest.raises(ValueError) as error:
    arguments.read({name: text}, TABLE, of="listops")
  assert str(error.value) == f"{name}: expected {expected}, got {text!r}"


@pytest.mark.parametrize(
  ("name", "hint"),
  [
    ("hedas", "; did you mean 'heads'?"),
    ("num_heads", "; did you mean 'heads'?"),
    ("learning_rate", "; did you mean 'lr'?"),
    ("dropout_rate", "; did you mean 'dropout'?"),
    ("xyz", ""),
  ],
)
def test_unknown_names(name, hint):
  with pytest.raises(ValueError) as error:
    arguments.read({"heads": "2", name: "1"}, TABLE, of="listops")
  allowed = "decay, dropout, estep, heads, lr, protocol, remat, seed"
  assert str(error.value) == f"listops: expected arguments among {allowed}, got {name!r}{hint}"
