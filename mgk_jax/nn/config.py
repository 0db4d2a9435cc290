"""The settings of the models, checked when they are made."""

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp
from flax.typing import Dtype

from mgk_jax.kernels import checks, feature_maps
from mgk_jax.kernels.attention import Implementation
from mgk_jax.nn import adaptive, choices, features, initializers, names
from mgk_jax.nn.choices import EStep, Prior, PriorScope

POOLINGS = ("mean", "masked_mean", "cls")


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
  """What the models have in common. The defaults are those of the paper's Long Range Arena models.

  Attributes:
    max_len: the longest sequence.
    num_layers: number of blocks.
    emb_dim: width of embeddings and of the residual stream.
    mlp_dim: hidden width of the blocks' MLP.
    num_heads: attention heads.
    head_dim: width of one head, whatever their number: fewer heads mean fewer parameters.
    attention: "softmax", "linear", "mgk", "smgk", "mlk" or "smlk".
    num_components: M of the mixtures; softmax and linear attention have one component.
    estep: "soft" or "hard" (mgk and smgk).
    prior: "sgd", "em" (mgk and smgk) or "fixed".
    prior_scope: "head", "shared" or "position", of sgd and fixed priors.
    variance: σ² of mgk and smgk, a number or one for each component; None: √head_dim.
    learn_variance: train σ².
    feature_map: φ of linear, mlk and smlk.
    shift_init: "paper" for shifts that start at N(0, 1); "code" for the authors' 0 and N(0, 0.25).
    dropout_rate: of embeddings and of what each sublayer adds.
    attention_dropout_rate: of attention weights; linear, mlk and smlk have no weights and no such dropout.
    implementation: of the attention kernels; None for the best one.
    dtype: of the computation; None: that of the parameters.
    param_dtype: of the parameters.
    remat: keep only what lies between blocks for the backward pass, and compute the rest again.

  Raises:
    ValueError, TypeError: a setting that is not allowed; the message lists what is.
  """

  max_len: int
  num_layers: int = 2
  emb_dim: int = 64
  mlp_dim: int = 128
  num_heads: int = 2
  head_dim: int = 32
  attention: str = "smgk"
  num_components: int = 2
  estep: EStep = "soft"
  prior: Prior = "sgd"
  prior_scope: PriorScope = "head"
  variance: Any = None
  learn_variance: bool = False
  feature_map: str | Callable[[jax.Array], jax.Array] = choices.DEFAULT_FEATURE_MAP
  shift_init: Literal["paper", "code"] = "paper"
  dropout_rate: float = 0.1
  attention_dropout_rate: float = 0.1
  implementation: Implementation | None = None
  dtype: Dtype | None = None
  param_dtype: Dtype = jnp.float32
  remat: bool = False

  def __post_init__(self) -> None:
    """Checks every setting."""
    for name in ("max_len", "num_layers", "emb_dim", "mlp_dim", "num_heads", "head_dim", "num_components"):
      choices.positive_int(name, getattr(self, name))
    choices.rate("dropout_rate", self.dropout_rate)
    choices.rate("attention_dropout_rate", self.attention_dropout_rate)
    checks.one_of("attention", self.attention, names.VARIANTS)
    checks.one_of("shift_init", self.shift_init, initializers.SHIFTS)
    # Lists, as they come out of JSON, would make the settings unhashable.
    object.__setattr__(self, "variance", choices.variance(self.variance, self.num_components))
    if names.VARIANTS[self.attention]["kernel"] == "linear":
      feature_maps.resolve(self.feature_map, self.head_dim)
      features.check_static(self.feature_map)
    arguments = self.attention_arguments()
    choices.check(**{name: arguments[name] for name in choices.CHECKED})

  def attention_arguments(self) -> dict[str, Any]:
    """The arguments of `MixtureAttention` that these settings decide."""
    variant = names.VARIANTS[self.attention]
    linear = variant["kernel"] == "linear"
    return {
      "num_components": self.num_components,
      "estep": self.estep,
      "prior": self.prior,
      "prior_scope": self.prior_scope,
      "max_len": self.max_len,
      "variance": self.variance,
      "learn_variance": self.learn_variance,
      "feature_map": self.feature_map if linear else choices.DEFAULT_FEATURE_MAP,
      "head_dim": self.head_dim,
      "shift_init": initializers.SHIFTS[self.shift_init],
      "dropout_rate": 0.0 if linear else self.attention_dropout_rate,
      "implementation": self.implementation,
      **variant,
    }


@dataclasses.dataclass(frozen=True, kw_only=True)
class TokenConfig(TransformerConfig):
  """The settings of a model of tokens.

  Attributes:
    vocab_size: number of token ids.
  """

  vocab_size: int

  def __post_init__(self) -> None:
    """Checks every setting."""
    choices.positive_int("vocab_size", self.vocab_size)
    super().__post_init__()


@dataclasses.dataclass(frozen=True, kw_only=True)
class EncoderConfig(TokenConfig):
  """The settings of an `Encoder`: those of `TransformerConfig`, where id 0 is padding.

  Attributes:
    is_causal: a position sees itself and those before it.
  """

  is_causal: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class ClassifierConfig(EncoderConfig):
  """The settings of a `Classifier`.

  Attributes:
    num_classes: number of logits.
    pooling: "mean", the sum over the valid positions divided by max_len, so that padding has no say; "masked_mean",
      divided by their number; "cls", the output at a learned token that is put before the sequence (one more row of
      token embeddings and one more position than vocab_size and max_len say).
    classifier_dim: hidden width of the classifier's MLP.
  """

  num_classes: int
  pooling: Literal["mean", "masked_mean", "cls"] = "mean"
  classifier_dim: int = 128

  def __post_init__(self) -> None:
    """Checks every setting."""
    super().__post_init__()
    choices.positive_int("num_classes", self.num_classes)
    choices.positive_int("classifier_dim", self.classifier_dim)
    checks.one_of("pooling", self.pooling, POOLINGS)

  def encoder(self) -> EncoderConfig:
    """The settings of the encoder inside."""
    settings = {field.name: getattr(self, field.name) for field in dataclasses.fields(EncoderConfig)}
    if self.pooling == "cls":
      settings |= {"vocab_size": self.vocab_size + 1, "max_len": self.max_len + 1}
    return EncoderConfig(**settings)


@dataclasses.dataclass(frozen=True, kw_only=True)
class DualEncoderConfig(ClassifierConfig):
  """The settings of a `DualEncoder`: those of a `Classifier`, by default with two classes."""

  num_classes: int = 2


@dataclasses.dataclass(frozen=True, kw_only=True)
class ViTConfig(TransformerConfig):
  """The settings of a `ViT`. The defaults suit pictures of 32 × 32 pixels in colour.

  Attributes:
    num_classes: number of logits.
    image_size: height and width in pixels, a number if they are equal.
    patch_size: height and width of a patch, which divide those of the image.
    channels: numbers for each pixel.
    pooling: "cls", the output at a learned token that is put before the patches, or "mean" over the patches.
    classifier_dim: hidden width of the classifier's MLP.
    max_len: not to be chosen: the number of patches, and one for the token of "cls".
  """

  is_causal: ClassVar[bool] = False

  num_classes: int
  image_size: int | tuple[int, int] = 32
  patch_size: int | tuple[int, int] = 4
  channels: int = 3
  pooling: Literal["cls", "mean"] = "cls"
  classifier_dim: int = 192
  max_len: int = dataclasses.field(init=False)
  num_layers: int = 6
  emb_dim: int = 192
  mlp_dim: int = 384
  num_heads: int = 3
  head_dim: int = 64

  def __post_init__(self) -> None:
    """Checks every setting."""
    for name in ("num_classes", "channels", "classifier_dim"):
      choices.positive_int(name, getattr(self, name))
    checks.one_of("pooling", self.pooling, ("cls", "mean"))
    for name in ("image_size", "patch_size"):
      object.__setattr__(self, name, choices.pair(name, getattr(self, name)))
    (height, width), (patch_height, patch_width) = self.sizes
    if height % patch_height or width % patch_width:
      raise ValueError(f"patch_size: expected divisors of image_size={self.image_size}, got {self.patch_size}")
    patches = (height // patch_height) * (width // patch_width)
    object.__setattr__(self, "max_len", patches + (self.pooling == "cls"))
    super().__post_init__()

  @property
  def sizes(self) -> tuple[tuple[int, int], tuple[int, int]]:
    """Height and width of the image and of a patch."""
    return choices.pair("image_size", self.image_size), choices.pair("patch_size", self.patch_size)


@dataclasses.dataclass(frozen=True, kw_only=True)
class LanguageModelConfig(TokenConfig):
  """The settings of a `LanguageModel`. The defaults are those of the paper's models for WikiText-103.

  Attributes:
    max_len: the longest sequence for priors per position; positions themselves have no bound.
    cutoffs: where words, numbered by falling frequency, are cut into clusters; () for a plain softmax.
    div_val: by what the width of word vectors is divided from each cluster to the next.
    tie_embeddings: the softmax has the vectors of the embeddings.
    tie_projections: with div_val > 1, the softmax has the projections of the embeddings: for all clusters or for each.
    attention_bias: whether the projections of queries, keys, values and outputs have biases.
  """

  is_causal: ClassVar[bool] = True

  max_len: int = 256
  num_layers: int = 16
  emb_dim: int = 128
  mlp_dim: int = 2048
  num_heads: int = 8
  head_dim: int = 16
  attention: str = "mgk"
  attention_dropout_rate: float = 0.0
  cutoffs: tuple[int, ...] = (20_000, 40_000, 200_000)
  div_val: int = 1
  tie_embeddings: bool = True
  tie_projections: bool | tuple[bool, ...] = True
  attention_bias: bool = False

  def __post_init__(self) -> None:
    """Checks every setting."""
    super().__post_init__()
    # Lists, as they come out of JSON, would make the settings unhashable.
    object.__setattr__(self, "cutoffs", tuple(self.cutoffs))
    if not isinstance(self.tie_projections, bool):
      object.__setattr__(self, "tie_projections", tuple(self.tie_projections))
    adaptive.cluster_widths(self.vocab_size, self.emb_dim, self.cutoffs, self.div_val)
    adaptive.ties_of_projections(self.tie_projections, len(self.cutoffs) + 1)
