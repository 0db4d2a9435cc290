"""Transformer with a Mixture of Gaussian Keys in JAX: attention kernels and Flax NNX modules."""

from mgk_jax.kernels import (
  LinearState as LinearState,
  em_prior as em_prior,
  em_variance as em_variance,
  feature_maps as feature_maps,
  linear_attention as linear_attention,
  mixture_attention as mixture_attention,
  mixture_attention_weights as mixture_attention_weights,
  mixture_linear_attention as mixture_linear_attention,
  mixture_linear_attention_state as mixture_linear_attention_state,
  mixture_linear_attention_step as mixture_linear_attention_step,
  responsibilities as responsibilities,
  shifted_mixture_attention as shifted_mixture_attention,
  softmax_attention as softmax_attention,
)
from mgk_jax.nn import (
  Classifier as Classifier,
  ClassifierConfig as ClassifierConfig,
  DualEncoder as DualEncoder,
  DualEncoderConfig as DualEncoderConfig,
  EMPrior as EMPrior,
  Encoder as Encoder,
  EncoderConfig as EncoderConfig,
  FixedPrior as FixedPrior,
  MixtureAttention as MixtureAttention,
  RandomProjection as RandomProjection,
  code_shift as code_shift,
  from_name as from_name,
  load_reference_lra as load_reference_lra,
  paper_shift as paper_shift,
)
