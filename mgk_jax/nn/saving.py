"""Models as safetensors files: arrays by dotted names, beside the settings that they belong to."""

import dataclasses
import difflib
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import safetensors
import safetensors.numpy
from flax import nnx

from mgk_jax.nn import classifier, config as configs, encoder, language_model, vit
from mgk_jax.version import __version__

MODELS = {
  "Encoder": (encoder.Encoder, configs.EncoderConfig),
  "Classifier": (classifier.Classifier, configs.ClassifierConfig),
  "DualEncoder": (classifier.DualEncoder, configs.DualEncoderConfig),
  "LanguageModel": (language_model.LanguageModel, configs.LanguageModelConfig),
  "ViT": (vit.ViT, configs.ViTConfig),
}
# What is not part of a model: its random streams, and what calls leave behind.
LEFT_OUT = (nnx.RngState, nnx.Cache, nnx.Intermediate)
# Settings that may differ between a file and a model: they change no equation, or the shapes tell.
FREE = frozenset(
  ("dtype", "param_dtype", "dropout_rate", "attention_dropout_rate", "implementation", "remat", "shift_init", "max_len")
)
SETTINGS_OF_DTYPES = ("dtype", "param_dtype")
DTYPES = {"BOOL": "bool", "BF16": "bfloat16", "C64": "complex64"} | {
  f"{letter}{bits}": f"{name}{bits}"
  for letter, name, widths in (
    ("F", "float", (16, 32, 64)),
    ("I", "int", (8, 16, 32, 64)),
    ("U", "uint", (8, 16, 32, 64)),
  )
  for bits in widths
}  # by the names that safetensors have for them
MOST_LINES = 12


def save_safetensors(
  model: nnx.Module, path: str | Path, *, metadata: Mapping[str, str] | None = None, overwrite: bool = False
) -> None:
  """Writes the arrays of a model, whole or not at all: parameters, priors and random projections, in their own dtypes.

  Names are paths, such as "encoder.blocks.0.attention.query.kernel". Random streams and caches are left out. The
  file's metadata has "format", "mgk_jax" (the version), "module" (the class) and, of a model that has one, "config".

  Args:
    model: any NNX module. Of a run of several processes, one with all arrays; to be called in one process.
    path: of the file; directories are made.
    metadata: texts to be stored besides.
    overwrite: whether a file may be replaced.

  Raises:
    FileExistsError: there is such a file, and overwrite is False.
    TypeError, ValueError: metadata that are no texts or have a name of ours, or a variable that cannot be stored.
    OSError: it cannot be written.

  Example:
    >>> import tempfile
    >>> config = mgk_jax.EncoderConfig(vocab_size=257, max_len=128)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...   mgk_jax.save_safetensors(mgk_jax.Encoder(config, rngs=nnx.Rngs(0)), f"{folder}/model.safetensors")
    ...   other = mgk_jax.Encoder(config, rngs=nnx.Rngs(1))
    ...   metadata = mgk_jax.load_safetensors(other, f"{folder}/model.safetensors")
    ...   rebuilt = mgk_jax.from_safetensors(f"{folder}/model.safetensors")
    >>> metadata["module"], bool(jnp.all(other.position_embedding == rebuilt.position_embedding))
    ('Encoder', True)
  """
  path = Path(path).expanduser()
  if path.exists() and not overwrite:
    raise FileExistsError(f"{path}: expected a new file, got one that exists; overwrite=True replaces it")
  about = _about(model, metadata or {})
  arrays = {name: _host(name, variable) for name, variable in _variables(model).items()}
  path.parent.mkdir(parents=True, exist_ok=True)
  temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
  try:
    safetensors.numpy.save_file(arrays, temporary, metadata=about)
    os.replace(temporary, path)
  finally:
    temporary.unlink(missing_ok=True)


def load_safetensors(model: nnx.Module, path: str | Path, *, cast: bool = False) -> dict[str, str]:
  """Puts the arrays of a file in the place of a model's, where those are (sharded or not); all of them or none.

  Args:
    model: has the same names, shapes and dtypes, and the settings of the file as far as they matter to the equations.
    path: of the file.
    cast: convert dtypes instead of refusing those that differ.

  Returns:
    The metadata of the file.

  Raises:
    FileNotFoundError: there is no such file.
    ValueError: it is no whole safetensors file, or does not fit the model; the message says what was expected.
  """
  path = Path(path).expanduser()
  variables = _variables(model)
  with _open(path) as file:
    metadata = file.metadata() or {}
    faults = [*_misfits(file, variables, cast), *_other_settings(model, metadata)]
    if faults:
      more = [f"and {len(faults) - MOST_LINES} more"] if len(faults) > MOST_LINES else []
      raise ValueError("\n  ".join([f"{path} does not fit the model:", *faults[:MOST_LINES], *more]))
    loaded = {name: _placed(file.get_tensor(name), variable) for name, variable in variables.items()}
  paths = {_dotted(path): path for path, _ in _flat(model)}
  nnx.update(model, nnx.from_flat_state([(paths[name], variable) for name, variable in loaded.items()]))
  return metadata


def from_safetensors(path: str | Path, *, rngs: nnx.Rngs | None = None, **settings: Any) -> nnx.Module:
  """The model of a file that `save_safetensors` wrote: made from the settings in it, with its arrays.

  Args:
    path: of the file.
    rngs: for dropout; None: seed 0.
    **settings: those to be other than in the file, e.g. dropout_rate=0 or implementation="reference".

  Raises:
    FileNotFoundError: there is no such file.
    ValueError, TypeError: a file without settings, or settings that do not fit it.
  """
  path = Path(path).expanduser()
  with _open(path) as file:
    metadata = file.metadata() or {}
  name = metadata.get("module", "")
  if name not in MODELS or "config" not in metadata:
    raise ValueError(
      f"{path}: expected the settings of one of {', '.join(MODELS)}, got a file of {name or 'an unknown module'}; "
      "make the module yourself and use load_safetensors"
    )
  make, make_config = MODELS[name]
  stored = json.loads(metadata["config"])
  stored |= {dtype: getattr(jnp, stored[dtype]) for dtype in SETTINGS_OF_DTYPES if stored[dtype] is not None}
  model = make(make_config(**{**stored, **settings}), rngs=rngs or nnx.Rngs(0))
  load_safetensors(model, path)
  return model


@contextmanager
def _open(path: Path) -> Iterator[Any]:
  if not path.is_file():
    raise FileNotFoundError(f"{path}: expected a safetensors file, found none")
  try:
    with safetensors.safe_open(path, framework="np") as file:
      yield file
  except safetensors.SafetensorError as error:
    raise ValueError(f"{path} is no whole safetensors file: {error}") from error


def _flat(model: nnx.Module) -> list[tuple[tuple[Any, ...], Any]]:
  return list(nnx.to_flat_state(nnx.state(model, nnx.Not(LEFT_OUT))))


def _variables(model: nnx.Module) -> dict[str, Any]:
  return {_dotted(path): variable for path, variable in _flat(model)}


def _dotted(path: tuple[Any, ...]) -> str:
  return ".".join(map(str, path))


def _value(variable: Any) -> Any:
  return variable.get_value() if isinstance(variable, nnx.Variable) else variable


def _host(name: str, variable: Any) -> np.ndarray:
  value = _value(variable)
  kind = value.dtype.name if isinstance(value, jax.Array | np.ndarray) else type(value).__name__
  if kind not in DTYPES.values():
    raise TypeError(f"{name}: expected an array of {', '.join(DTYPES.values())}, got {kind}")
  if isinstance(value, jax.Array) and not (value.is_fully_addressable or value.is_fully_replicated):
    raise ValueError(f"{name}: expected an array that this process has, got parts of one; gather it, or use Orbax")
  return np.asarray(value, order="C")


def _placed(array: np.ndarray, variable: Any) -> Any:
  value = _value(variable)
  placed = jax.device_put(array.astype(value.dtype), getattr(value, "sharding", None))
  return variable.replace(placed) if isinstance(variable, nnx.Variable) else placed


def _misfits(file: Any, variables: Mapping[str, Any], cast: bool) -> Iterator[str]:
  """What of the arrays in a file is not as in a model, a line each."""
  there = set(file.keys())
  for name, variable in variables.items():
    if name not in there:
      yield f"{name}: expected, but not in the file"
      continue
    value, stored = _value(variable), file.get_slice(name)
    shape, dtype = tuple(stored.get_shape()), DTYPES.get(stored.get_dtype(), stored.get_dtype())
    if shape != value.shape:
      yield f"{name}: expected shape {list(value.shape)}, got {list(shape)}"
    elif not cast and dtype != value.dtype.name:
      yield f"{name}: expected dtype {value.dtype.name}, got {dtype}; cast=True converts it"
  for name in sorted(there - variables.keys()):
    close = difflib.get_close_matches(name, variables, n=1)
    yield f"{name}: in the file, but not expected" + (f"; did you mean {close[0]}?" if close else "")


def _about(model: nnx.Module, metadata: Mapping[str, str]) -> dict[str, str]:
  ours = {"format": "flax", "mgk_jax": __version__, "module": type(model).__name__}
  settings = _settings(model)
  if settings is not None:
    ours["config"] = json.dumps(settings)
  for name, text in metadata.items():
    if name in (*ours, "config"):
      raise ValueError(f"metadata: expected other names than {', '.join(ours)}, got {name!r}")
    if not isinstance(text, str):
      raise TypeError(f"metadata: expected texts, got {type(text).__name__} for {name!r}")
  return {**ours, **metadata}


def _settings(model: nnx.Module) -> dict[str, Any] | None:
  """The settings of a model as JSON has them, or None if it is none of ours."""
  settings = getattr(model, "config", None)
  if not isinstance(settings, configs.TransformerConfig):
    return None
  values = {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings) if field.init}
  values |= {name: None if values[name] is None else jnp.dtype(values[name]).name for name in SETTINGS_OF_DTYPES}
  if callable(values["feature_map"]):
    of = values["feature_map"]
    values["feature_map"] = getattr(of, "__qualname__", type(of).__qualname__)
  return json.loads(json.dumps(values))


def _other_settings(model: nnx.Module, metadata: Mapping[str, str]) -> Iterator[str]:
  """Settings with which a model would compute something else from the same arrays, a line each."""
  ours = _settings(model)
  if ours is None or "config" not in metadata:
    return
  for name, value in json.loads(metadata["config"]).items():
    if name not in FREE and name in ours and ours[name] != value:
      yield f"setting {name}: expected {ours[name]!r} as the model has it, got {value!r}"
