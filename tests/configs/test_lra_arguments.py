"""Arguments of the shipped configs: each sets its setting, and whatever would be in vain is refused."""

import re

import pytest
from absl import flags

from configs.lra import effects, schema
from tests.configs.shipped import CONFIGS, VARIANTS, flat, from_command_line, get_config

# How ml_collections imports a config file.
pytestmark = pytest.mark.filterwarnings("ignore:the load_module:DeprecationWarning")


@pytest.mark.parametrize(
  ("arg", "idle"),
  [
    ("smgk,estep=hard", {"prior", "prior_scope"}),
    ("smgk,estep=hard,prior=em", {"prior_scope"}),
    ("mgk,prior=em", {"prior_scope"}),
    ("mgk,prior=fixed", {"prior_scope"}),
    ("mlk,prior=fixed", {"prior_scope"}),
    ("mgk,components=1", {"prior_scope", "prior", "estep"}),
    ("smlk,components=1", {"prior_scope", "prior"}),
  ],
)
def test_settings_that_others_make_idle(arg, idle):
  config = get_config("listops", arg)
  assert set(config.model) == set(get_config("listops", arg.partition(",")[0]).model) - idle
  assert not effects.idle(config).keys() & flat(config).keys()


def test_other_parts_lose_settings_too():
  assert flat(get_config("listops", "source=files")["data"]) == {
    "length": 2000, "pad_to": 0, "protocol": "lra", "source": "files"
  }  # fmt: skip
  for schedule in ("rsqrt", "cosine", "constant"):
    optimizer = get_config("text", f"schedule={schedule}").optimizer
    assert set(optimizer) == {name for name in get_config("text").optimizer if name != "b1_peak"}


def test_the_arguments_of_the_readme_kind():
  config = get_config("listops", "smgk,heads=2,estep=hard,prior=em,seed=3")
  changed = {"model.estep": "hard", "model.prior": "em", "seed": 3}
  expected = flat(get_config("listops")) | changed
  del expected["model.prior_scope"]
  assert flat(config) == expected


VALUES = {
  "seed": 7, "steps": 9_000, "batch": 8, "accumulation": 4, "eval_every": 3, "checkpoint_every": 0, "log_every": 2,
  "length": 99, "pad_to": 32, "protocol": "lra", "source": "generated", "data_seed": 5, "num_train": 11,
  "num_valid": 12, "num_test": 13, "min_length": 14, "max_length": 15, "max_depth": 16, "max_args": 17, "layers": 3,
  "emb_dim": 18, "mlp_dim": 19, "heads": 5, "head_dim": 20, "components": 3, "estep": "soft", "prior": "sgd",
  "prior_scope": "position", "variance": 2.5, "learn_variance": True, "feature_map": "relu", "shift_init": "code",
  "pooling": "cls", "classifier_dim": 21, "dropout": 0.25, "attention_dropout": 0.5, "dtype": "bfloat16",
  "implementation": "xla", "remat": True, "schedule": "one_cycle", "lr": 0.125, "warmup": 22, "b1": 0.75,
  "b1_peak": 0.5, "b2": 0.875, "eps": 0.0625, "weight_decay": 1.5, "clip_norm": 2.0, "mesh_data": 2, "mesh_model": -1,
}  # fmt: skip


def test_every_argument_sets_its_setting():
  assert VALUES.keys() == schema.ARGUMENTS.keys()
  for name, value in VALUES.items():
    arg = f"{'mlk' if name == 'feature_map' else 'smgk'},{name}={str(value).lower()}"
    path = schema.ARGUMENTS[name].path
    config = get_config("listops", arg)
    got = flat(config)[path]
    assert got == value and type(got) is type(value), arg
    others = {other: flat(get_config("listops", config.model.attention))[other] for other in flat(config)} | {
      path: value
    }
    assert flat(config) == others, arg


def test_every_setting_but_the_task_has_an_argument():
  paths = {path for name in CONFIGS for variant in VARIANTS for path in flat(get_config(name, variant))}
  assert paths - {argument.path for argument in schema.ARGUMENTS.values()} == {"task", "model.attention"}


@pytest.mark.parametrize(
  ("name", "arg", "message"),
  [
    ("listops", "sgmk", "expected one of softmax, linear, mgk, smgk, mlk, smlk as the first word, got 'sgmk'; did you"),
    ("listops", "smgk,hedas=2", "listops: expected arguments among accumulation, .* warmup, weight_decay, got 'hedas'"),
    ("text", "source=files", "text: expected arguments among .*, got 'source'"),
    ("image", "smgk,num_train=5", "image: expected arguments among .*, got 'num_train'"),
    ("listops", "smgk,heads=1.5", "heads: expected a whole number >= 1, got '1.5'"),
    ("listops", "smgk,estep=medium", "estep: expected soft or hard, got 'medium'"),
    ("listops", "smgk,prior=bayes", "prior: expected sgd, em or fixed, got 'bayes'"),
    ("listops", "mlk,feature_map=tanh", "feature_map: expected elu, relu, favor or dpfp, got 'tanh'"),
    ("listops", "schedule=step", "schedule: expected one_cycle, rsqrt, cosine or constant, got 'step'"),
    ("listops", "mesh_data=0", "mesh_data: expected -1 or a whole number >= 1, got '0'"),
    ("image", "protocol=holdout", "protocol: expected lra, got 'holdout'"),
    ("text", "protocol=none", "protocol: expected lra or holdout, got 'none'"),
    ("listops", "softmax,estep=hard", "estep=hard has no effect: softmax attention .* with softmax takes .*heads"),
    ("listops", "linear,components=3", "components=3 has no effect: linear attention has one key per position"),
    ("listops", "linear,attention_dropout=0.5", "attention_dropout=0.5 has no effect: linear attention has no"),
    ("listops", "mgk,shift_init=code", "shift_init=code has no effect: only smgk and smlk have shifts"),
    ("listops", "mlk,variance=2", "variance=2 has no effect: only mgk and smgk"),
    ("listops", "smgk,feature_map=elu", "feature_map=elu has no effect: only linear, mlk and smlk"),
    ("listops", "smgk,estep=hard,prior=sgd", "prior=sgd has no effect: the hard E step has no prior"),
    ("listops", "smgk,prior=em,prior_scope=head", "prior_scope=head has no effect: an EM prior is always per head"),
    ("listops", "mgk,components=1,estep=hard", "estep=hard has no effect: there is no choice among one component"),
    ("listops", "source=files,num_train=5", "num_train=5 has no effect: source=files generates nothing"),
    ("text", "schedule=cosine,b1_peak=0.5", "b1_peak=0.5 has no effect: schedule=cosine keeps b1 constant"),
    ("base/text", "b1_peak=0.5", "b1_peak=0.5 has no effect: schedule=rsqrt keeps b1 constant"),
    ("listops", "mlk,prior=em", "expected prior='sgd' or 'fixed' .EM belongs to Gaussian keys., got prior='em'"),
    ("listops", "steps=500", "warmup: expected at least 1 and less than steps=500 with one_cycle, got 1000"),
    ("listops", "warmup=0", "warmup: expected at least 1 and less than steps=5000 with one_cycle, got 0"),
    ("listops", "length=100,pad_to=101", "pad_to: expected at most length=100, got 101"),
    ("listops", "batch=32,accumulation=3", "accumulation: expected a divisor of batch=32, got 3"),
  ],
)  # fmt: skip
def test_refused(name, arg, message):
  with pytest.raises(ValueError, match=message):
    get_config(name, arg)


def test_command_line():
  path = CONFIGS["listops"]
  assert flat(from_command_line(f"--config={path}")) == flat(get_config("listops"))
  config = from_command_line(
    f"--config={path}:mgk,heads=2", "--config.model.num_heads=4", "--config.model.variance=2.5",
    "--config.model.implementation=reference", "--config.optimizer.clip_norm=1", "--config.data.generator.seed=2",
  )  # fmt: skip
  changed = {
    "model.attention": "mgk", "model.num_heads": 4, "model.variance": 2.5, "model.implementation": "reference",
    "optimizer.clip_norm": 1.0, "data.generator.seed": 2,
  }  # fmt: skip
  expected = flat(get_config("listops")) | changed
  del expected["model.shift_init"]
  assert flat(config) == expected


@pytest.mark.parametrize(
  ("arguments", "error", "message"),
  [
    ([":smgk", "--config.model.num_head=4"], AttributeError, "Did you mean.*num_heads"),
    ([":softmax", "--config.model.estep=hard"], AttributeError, "estep"),
    ([":smgk", "--config.model.num_heads=two"], flags.IllegalFlagValueError, "two"),
    ([":smgk,hedas=4"], flags.IllegalFlagValueError, "did you mean 'heads'"),
  ],
)
def test_command_line_refuses(arguments, error, message):
  first, *rest = arguments
  with pytest.raises(error, match=re.compile(message, re.DOTALL)):
    from_command_line(f"--config={CONFIGS['listops']}{first}", *rest)


def test_changes_by_the_settings_own_names_are_settled():
  """What a later change makes idle goes; what was chosen in vain is an error."""
  path = CONFIGS["listops"]
  config = from_command_line(f"--config={path}:smgk", "--config.model.estep=hard")
  schema.settle(config, {"model.estep": "--config.model.estep=hard"})
  assert flat(config) == flat(get_config("listops", "smgk,estep=hard"))
  assert config.is_locked
  config = from_command_line(f"--config={path}:smgk", "--config.model.attention=softmax")
  schema.settle(config, {})
  assert flat(config) == flat(get_config("listops", "softmax"))
  config = from_command_line(f"--config={path}:smgk", "--config.model.attention=softmax", "--config.model.prior=em")
  with pytest.raises(ValueError, match=r"--config\.model\.prior=em has no effect: softmax attention"):
    schema.settle(config, {"model.prior": "--config.model.prior=em"})
