"""What the Long Range Arena's own configurations have in common."""

import ml_collections

from configs.lra import schema


def setting(
  task: str, *, length: int, emb_dim: int, qkv_dim: int, mlp_dim: int, heads: int
) -> ml_collections.ConfigDict:
  """A configuration with these sizes: Adam with 0.9, 0.98 and 1e-9, and a [CLS] token instead of a mean.

  A head is qkv_dim / heads wide and stays so with any other number of them. The model is this project's encoder (see
  `mgk_jax.Encoder`), which starts differently from theirs and learns its positions.
  """
  config = schema.paper(task, length=length)
  config.checkpoint_every = 500
  config.model.update(
    emb_dim=emb_dim, mlp_dim=mlp_dim, num_heads=heads, head_dim=qkv_dim // heads, classifier_dim=mlp_dim, pooling="cls"
  )
  config.optimizer.update(b1=0.9, b2=0.98, eps=1e-9)
  return config
