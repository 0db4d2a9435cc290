"""Weights of the authors' PyTorch models for the Long Range Arena, carried over by name."""

from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import nnx

from mgk_jax.nn.block import Block
from mgk_jax.nn.classifier import Classifier, DualEncoder
from mgk_jax.nn.config import ClassifierConfig, DualEncoderConfig

WORDS = "model.embeddings.word_embeddings.weight"
POSITIONS = "model.embeddings.position_embeddings.weight"
HEAD = "seq_classifer.mlpblock"  # their spelling
SHIFTS = "attn.multi_gauss_kernel.mu"
PRIORS = ("attn.pi", "attn.multi_gauss_kernel.pi")
INFERRED = (
  "vocab_size", "num_layers", "emb_dim", "mlp_dim", "num_heads", "attention", "num_components", "estep", "prior",
  "prior_scope", "num_classes", "classifier_dim", "pooling",
)  # fmt: skip

Weights = dict[str, np.ndarray]


def load_reference_lra(
  state_dict: Mapping[str, Any],
  *,
  max_len: int | None = None,
  head_dim: int = 32,
  rngs: nnx.Rngs | None = None,
  **settings: Any,
) -> Classifier | DualEncoder:
  """A model with the parameters of one of the authors' PyTorch models for the Long Range Arena.

  Names and shapes tell the variant: two key projections are MGK, shifts sMGK, neither softmax attention; a prior of
  two numbers was trained, a matrix of them came from EM, and none means the hard E step; a classifier of four times
  the embedding's width is that of retrieval. Their keys k − μ_r are our k + b_r with b = −μ, their prior is shared by
  the heads, and that of their EM is component 1's.

  Args:
    state_dict: the model's parameters by name, NumPy arrays or tensors; a common prefix ("module.") does not matter.
    max_len: the task's length, over which outputs are averaged. None: as many as there are position embeddings; if
      fewer, the others are left out.
    head_dim: width of a head, which shapes do not tell; 32 in all of the authors' models.
    rngs: for dropout; None: nnx.Rngs(0).
    **settings: other settings of the model, such as dropout_rate and implementation.

  Returns:
    A `Classifier`, or a `DualEncoder` for retrieval, in training mode.

  Raises:
    ValueError: unknown, missing or misshapen entries, all of them named.
    TypeError: a setting that the weights decide.
  """
  for name in settings:
    if name in INFERRED:
      raise TypeError(f"{name}: expected no such setting, for the weights decide it, got {settings[name]!r}")
  weights = _without_prefix({name: _as_numpy(x) for name, x in state_dict.items()})
  config = _infer(weights, max_len, head_dim, settings)
  _check(weights, _expected_shapes(weights, config))

  rngs = nnx.Rngs(0) if rngs is None else rngs
  model: Classifier | DualEncoder
  model = DualEncoder(config, rngs=rngs) if isinstance(config, DualEncoderConfig) else Classifier(config, rngs=rngs)
  _assign(model.encoder.token_embedding.embedding, weights[WORDS])
  _assign(model.encoder.position_embedding, weights[POSITIONS][: config.max_len])
  for i, block in enumerate(model.encoder.blocks):
    _fill_block(block, weights, f"model.transformer_{i}", config)
  _fill_norm(model.encoder.norm, weights, "model.norm")
  _fill_linear(model.head.hidden, weights, f"{HEAD}.0")
  _fill_linear(model.head.logits, weights, f"{HEAD}.2")
  return model


def _as_numpy(x: Any) -> np.ndarray:
  return np.asarray(x.detach().cpu().float().numpy() if hasattr(x, "detach") else x)


def _without_prefix(weights: Weights) -> Weights:
  found = [name for name in weights if name.endswith(WORDS)]
  if len(found) != 1:
    raise ValueError(f"state_dict: expected one entry whose name ends in {WORDS!r}, got {found or sorted(weights)}")
  prefix = found[0].removesuffix(WORDS)
  return {name.removeprefix(prefix): x for name, x in weights.items()}


def _infer(weights: Weights, max_len: int | None, head_dim: int, settings: dict[str, Any]) -> ClassifierConfig:
  """The settings that names and shapes tell."""
  first = "model.transformer_0"
  needed = (POSITIONS, f"{first}.mha.W_q.weight", f"{first}.mlpblock.0.weight", f"{HEAD}.0.weight", f"{HEAD}.2.weight")
  missing = [name for name in needed if name not in weights]
  misshapen = [name for name in (WORDS, *needed) if name in weights and weights[name].ndim != 2]
  if missing or misshapen:
    raise ValueError(f"state_dict: expected matrices {(WORDS, *needed)}, got {missing=} and {misshapen=}")

  vocab_size, emb_dim = weights[WORDS].shape
  rows = weights[f"{first}.mha.W_q.weight"].shape[0]
  if rows % head_dim:
    raise ValueError(f"{first}.mha.W_q.weight: expected a multiple of head_dim={head_dim} rows, got {rows}")
  positions = weights[POSITIONS].shape[0]
  if max_len is not None and not 1 <= max_len <= positions:
    raise ValueError(f"max_len: expected 1 to {positions}, the number of position embeddings, got {max_len}")

  attention = "softmax"
  if f"{first}.mha.W_k2.weight" in weights:
    attention = "mgk"
  elif f"{first}.mha.{SHIFTS}" in weights:
    attention = "smgk"
  prior = [weights[f"{first}.mha.{name}"] for name in PRIORS if f"{first}.mha.{name}" in weights]
  hidden, head_inputs = weights[f"{HEAD}.0.weight"].shape
  config_class = DualEncoderConfig if head_inputs == 4 * emb_dim else ClassifierConfig
  return config_class(
    **settings,
    vocab_size=vocab_size,
    max_len=positions if max_len is None else max_len,
    num_layers=len({name.split(".")[1] for name in weights if name.startswith("model.transformer_")}),
    emb_dim=emb_dim,
    mlp_dim=weights[f"{first}.mlpblock.0.weight"].shape[0],
    num_heads=rows // head_dim,
    head_dim=head_dim,
    attention=attention,
    num_components=2,
    estep="hard" if attention != "softmax" and not prior else "soft",
    prior="em" if prior and prior[0].ndim == 2 else "sgd",
    prior_scope="head" if attention == "softmax" else "shared",
    num_classes=weights[f"{HEAD}.2.weight"].shape[0],
    classifier_dim=hidden,
    pooling="mean",
  )


def _expected_shapes(weights: Weights, config: ClassifierConfig) -> dict[str, tuple[int, ...]]:
  """Every entry of a state_dict of this model."""
  D, F, N, H = config.emb_dim, config.mlp_dim, config.num_heads, config.head_dim
  positions = weights[POSITIONS].shape[0]

  def linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}

  def norm(name: str) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (D,), f"{name}.bias": (D,)}

  shapes: dict[str, tuple[int, ...]] = {WORDS: (config.vocab_size, D), POSITIONS: (positions, D)}
  for i in range(config.num_layers):
    block = f"model.transformer_{i}"
    for name in ("W_q", "W_k", "W_v", "W_k2") if config.attention == "mgk" else ("W_q", "W_k", "W_v"):
      shapes |= linear(f"{block}.mha.{name}", N * H, D)
    if config.attention == "smgk":
      shapes[f"{block}.mha.{SHIFTS}"] = (2, N, H)
    for name in PRIORS:
      # Two names for one parameter; which of them exist differs between their variants, not between layers.
      if config.attention != "softmax" and f"model.transformer_0.mha.{name}" in weights:
        shapes[f"{block}.mha.{name}"] = (N, positions) if config.prior == "em" else (2,)
    shapes |= linear(f"{block}.mha.ff", D, N * H) | norm(f"{block}.norm1") | norm(f"{block}.norm2")
    shapes |= linear(f"{block}.mlpblock.0", F, D) | linear(f"{block}.mlpblock.3", D, F)
  head_inputs = 4 * D if isinstance(config, DualEncoderConfig) else D
  shapes |= linear(f"{HEAD}.0", config.classifier_dim, head_inputs)
  return shapes | linear(f"{HEAD}.2", config.num_classes, config.classifier_dim) | norm("model.norm")


def _check(weights: Weights, shapes: dict[str, tuple[int, ...]]) -> None:
  faults = [f"{name}: missing, expected shape {list(shape)}" for name, shape in shapes.items() if name not in weights]
  for name, x in weights.items():
    if name not in shapes:
      faults.append(f"{name}: unknown")
    elif x.shape != shapes[name]:
      faults.append(f"{name}: expected shape {list(shapes[name])}, got {list(x.shape)}")
  if faults:
    raise ValueError("state_dict: " + "; ".join(faults))


def _fill_block(block: Block, weights: Weights, name: str, config: ClassifierConfig) -> None:
  attention, N, H = block.attention, config.num_heads, config.head_dim

  def matrix(part: str) -> np.ndarray:
    return weights[f"{name}.mha.{part}.weight"].T.reshape(config.emb_dim, N, H)

  def bias(part: str) -> np.ndarray:
    return weights[f"{name}.mha.{part}.bias"].reshape(N, H)

  _assign(attention.query.kernel, matrix("W_q"))
  _assign(attention.query.bias, bias("W_q"))
  _assign(attention.value.kernel, matrix("W_v"))
  _assign(attention.value.bias, bias("W_v"))
  if config.attention == "mgk":
    _assign(attention.key.kernel, np.stack([matrix("W_k"), matrix("W_k2")], axis=2))
    _assign(attention.key.bias, np.stack([bias("W_k"), bias("W_k2")], axis=1))
  else:
    _assign(attention.key.kernel, matrix("W_k"))
    _assign(attention.key.bias, bias("W_k"))
  if config.attention == "smgk":
    _assign(attention.shift, -weights[f"{name}.mha.{SHIFTS}"].swapaxes(0, 1))
  if attention.prior is not None:
    first, *others = (weights[f"{name}.mha.{part}"] for part in PRIORS if f"{name}.mha.{part}" in weights)
    if any(not np.array_equal(first, other) for other in others):
      raise ValueError(f"{name}.mha: expected {PRIORS[0]} and {PRIORS[1]} to be the same prior, got different values")
    if config.prior == "em":
      first = first.T[: config.max_len]
      _assign(attention.prior, np.stack([first, 1 - first], axis=-1))
    else:
      _assign(attention.prior, first[None])
  _assign(attention.out.kernel, weights[f"{name}.mha.ff.weight"].T.reshape(N, H, config.emb_dim))
  _assign(attention.out.bias, weights[f"{name}.mha.ff.bias"])
  _fill_norm(block.norm1, weights, f"{name}.norm1")
  _fill_norm(block.norm2, weights, f"{name}.norm2")
  _fill_linear(block.mlp_in, weights, f"{name}.mlpblock.0")
  _fill_linear(block.mlp_out, weights, f"{name}.mlpblock.3")


def _fill_norm(norm: nnx.LayerNorm, weights: Weights, name: str) -> None:
  _assign(norm.scale, weights[f"{name}.weight"])
  _assign(norm.bias, weights[f"{name}.bias"])


def _fill_linear(linear: nnx.Linear, weights: Weights, name: str) -> None:
  _assign(linear.kernel, weights[f"{name}.weight"].T)
  _assign(linear.bias, weights[f"{name}.bias"])


def _assign(variable: nnx.Variable | None, value: np.ndarray) -> None:
  assert variable is not None and variable.shape == value.shape  # `_check` has compared the shapes
  variable[...] = jnp.asarray(value, variable.dtype)
