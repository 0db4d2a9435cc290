"""Pure functions on arrays: every attention of the paper, in several implementations. No Flax inside."""

from mgk_jax.kernels import feature_maps as feature_maps
from mgk_jax.kernels.attention import (
  mixture_attention as mixture_attention,
  mixture_attention_weights as mixture_attention_weights,
  responsibilities as responsibilities,
  shifted_mixture_attention as shifted_mixture_attention,
  softmax_attention as softmax_attention,
)
from mgk_jax.kernels.dispatch import (
  compiling_for as compiling_for,
  explain_implementation as explain_implementation,
)
from mgk_jax.kernels.em import em_prior as em_prior, em_variance as em_variance
from mgk_jax.kernels.heads import sharded_heads as sharded_heads
from mgk_jax.kernels.linear import (
  linear_attention as linear_attention,
  mixture_linear_attention as mixture_linear_attention,
)
from mgk_jax.kernels.linear_state import (
  LinearState as LinearState,
  mixture_linear_attention_state as mixture_linear_attention_state,
  mixture_linear_attention_step as mixture_linear_attention_step,
)
