"""Flax NNX modules on top of the kernels: attention, encoders, classifiers, language and vision models."""

from mgk_jax.nn.adaptive import AdaptiveVocabulary as AdaptiveVocabulary
from mgk_jax.nn.attention import MixtureAttention as MixtureAttention
from mgk_jax.nn.classifier import Classifier as Classifier, DualEncoder as DualEncoder
from mgk_jax.nn.config import (
  ClassifierConfig as ClassifierConfig,
  DualEncoderConfig as DualEncoderConfig,
  EncoderConfig as EncoderConfig,
  LanguageModelConfig as LanguageModelConfig,
  ViTConfig as ViTConfig,
)
from mgk_jax.nn.encoder import Encoder as Encoder
from mgk_jax.nn.features import RandomProjection as RandomProjection
from mgk_jax.nn.initializers import code_shift as code_shift, paper_shift as paper_shift
from mgk_jax.nn.language_model import LanguageModel as LanguageModel
from mgk_jax.nn.names import from_name as from_name
from mgk_jax.nn.priors import EMPrior as EMPrior, FixedPrior as FixedPrior
from mgk_jax.nn.reference_lra import load_reference_lra as load_reference_lra
from mgk_jax.nn.saving import (
  from_safetensors as from_safetensors,
  load_safetensors as load_safetensors,
  save_safetensors as save_safetensors,
)
from mgk_jax.nn.vit import ViT as ViT
