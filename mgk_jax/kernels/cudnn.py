"""MGK and sMGK as softmax attention over M·S keys, for the fused attention of cuDNN.

With one variance the score of component r of key j is scale · (q_i·k_jr) + u_ir + w_jr (see `scores`): softmax
attention over all keys of all components with something added. That joins the operands as further dimensions,

    q'_i = [q_i, u_i1 / scale, …, u_iM / scale, 1],        k'_jr = [k_jr, e_r, w_jr / scale],

with the r-th unit vector e_r, and without both where there is no u. A number that is added has to be exact to float32,
and is therefore split into as many numbers as that takes in the dtype of the inputs: three bfloat16 of 8 bits each.
Every value is repeated for the M components of its key.
"""

from typing import Literal

import jax
import jax.numpy as jnp

from mgk_jax.kernels.checks import Dims
from mgk_jax.kernels.masking import Masking
from mgk_jax.kernels.scores import Scores

ALIGNMENT = 8  # dimensions of a head come in multiples of this
LARGEST_HEAD = 128
PARTS = {"bfloat16": 3, "float16": 3, "float32": 1}
LEAST = -1e9  # in place of −inf, which has no parts: a component that is switched off, but never all of a key


def attention(
  scores: Scores,
  scale: float | None,
  value_BSNV: jax.Array,
  masking: Masking,
  dims: Dims,
  estep: str,
  *,
  fused: Literal["cudnn", "xla"] = "cudnn",
) -> jax.Array:
  """h_i = Σ_j A_ij v_j, [B, T, N, V], by jax.nn.dot_product_attention(implementation=fused).

  Args:
    scores: of the attention.
    scale: their scale as a number that is known when the function is compiled; None if it is not.
    value_BSNV, masking, dims, estep: as in the other implementations.
    fused: "cudnn", or "xla" to run the same algebra anywhere.

  Raises:
    NotImplementedError: an attention that is not of this form, or that cuDNN does not do.
  """
  M, dtype = scores.num_components, scores.query.dtype
  if scale is None:
    raise NotImplementedError("variances that differ or are not known when it is compiled")
  _check(scores, masking, estep, fused)
  query, key = _augmented(scores, scale)
  size = -(-max(query.shape[-1], value_BSNV.shape[-1]) // ALIGNMENT) * ALIGNMENT
  if fused == "cudnn" and size > LARGEST_HEAD:
    raise NotImplementedError(f"heads of {size} dimensions with what is added; at most {LARGEST_HEAD}")
  value = jnp.repeat(value_BSNV.astype(dtype), M, axis=1)
  query, key, value = (jnp.pad(x, [(0, 0)] * 3 + [(0, size - x.shape[-1])]) for x in (query, key, value))
  out = jax.nn.dot_product_attention(
    query,
    key,
    value,
    scale=scale,
    is_causal=masking.is_causal,
    query_seq_lengths=masking.query_lengths,
    key_value_seq_lengths=None if masking.key_lengths is None else masking.key_lengths * M,
    implementation=fused,
  )[..., : value_BSNV.shape[-1]]
  # Rows without an allowed key are zeros here and not defined there.
  for lengths, index in ((masking.key_lengths, jnp.zeros(1, jnp.int32)), (masking.query_lengths, jnp.arange(dims.T))):
    if lengths is not None:
      out = jnp.where((index < lengths[:, None])[:, :, None, None], out, 0)
  return out


def _check(scores: Scores, masking: Masking, estep: str, fused: str) -> None:
  M, dtype = scores.num_components, scores.query.dtype.name
  if estep == "hard" and M > 1:
    raise NotImplementedError("the hard E step, which is no sum over components")
  if masking.is_causal and M > 1:
    raise NotImplementedError("causality with several keys per position")
  if masking.mask is not None:
    raise NotImplementedError("a mask")
  if masking.query_segments is not None:
    raise NotImplementedError("segments")
  if dtype not in PARTS or (fused == "cudnn" and PARTS[dtype] == 1):
    raise NotImplementedError(f"{dtype}; it takes bfloat16 and float16")


def _augmented(scores: Scores, scale: float) -> tuple[jax.Array, jax.Array]:
  """q' [B, T, N, H'] and k' [B, S·M, N, H'], the components of a key side by side."""
  M, dtype = scores.num_components, scores.query.dtype
  parts = PARTS[dtype.name]
  query = [jnp.einsum("bnth->btnh", scores.query)]
  key_BSMNH = jnp.einsum("bnksh->bsknh", scores.key)
  B, S, _, N, H = key_BSMNH.shape
  key = [jnp.broadcast_to(key_BSMNH, (B, S, M, N, H)).astype(dtype)]
  if scores.row is not None:
    row = _split(jnp.einsum("bnmt->btnm", scores.row) / scale, parts, dtype)
    query.append(row.reshape(*row.shape[:3], -1))
    unit = jnp.repeat(jnp.eye(M, dtype=dtype), parts, axis=1)  # [M, M·parts]
    key.append(jnp.broadcast_to(unit[:, None], (B, S, M, N, M * parts)))
  column = scores.column
  if scores.shared is not None:
    column = scores.shared[:, :, None] if column is None else column + scores.shared[:, :, None]
  if column is not None:
    query.append(jnp.ones((*query[0].shape[:3], parts), dtype))
    key.append(_split(jnp.einsum("bnms->bsmn", jnp.maximum(column, LEAST)) / scale, parts, dtype))
  joined = jnp.concatenate(key, axis=-1)
  return jnp.concatenate(query, axis=-1), joined.reshape(B, S * M, N, joined.shape[-1])


def _split(x: jax.Array, parts: int, dtype: jnp.dtype) -> jax.Array:
  """Numbers that add up to x, along a new last axis, each in `dtype`."""
  found = []
  for _ in range(parts):
    found.append(x.astype(dtype))
    x = x - found[-1].astype(x.dtype)
  return jnp.stack(found, axis=-1)
