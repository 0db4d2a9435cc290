"""The Long Range Arena classifier in PyTorch's usual style, from the paper's equations, with every pair materialised.

Attention weights are A_ij = Σ_r π_r exp(−‖q_i − k_jr‖² / 2σ²) / Σ_j' Σ_r' π_r' exp(−‖q_i − k_j'r'‖² / 2σ²), computed as
they stand: a tensor of all distances for each component, its exponential, the sum, the division.
"""

from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from mgk_jax import ClassifierConfig

EPSILON = 1e-6  # added to the normaliser, which underflows far from all keys


class Attention(nn.Module):
  """Softmax attention, or a mixture of projected (mgk) or shifted (smgk) Gaussian keys."""

  def __init__(self, config: ClassifierConfig):
    super().__init__()
    self.kind, self.heads, self.head_dim = config.attention, config.num_heads, config.head_dim
    inner = self.heads * self.head_dim
    self.components = 1 if self.kind == "softmax" else config.num_components
    self.query, self.value = nn.Linear(config.emb_dim, inner), nn.Linear(config.emb_dim, inner)
    keys = self.components if self.kind == "mgk" else 1
    self.keys = nn.ModuleList(nn.Linear(config.emb_dim, inner) for _ in range(keys))
    if self.kind == "smgk":
      self.shift = nn.Parameter(torch.randn(self.heads, self.components, self.head_dim))
    if self.kind != "softmax":
      self.prior = nn.Parameter(torch.full((self.heads, self.components), 1 / self.components))
    self.out = nn.Linear(inner, config.emb_dim)
    self.dropout = nn.Dropout(config.attention_dropout_rate)

  def forward(self, x: Tensor) -> Tensor:
    """[B, L, D] → [B, L, D]."""
    query, value = self._split(self.query(x)), self._split(self.value(x))
    keys = [self._split(key(x)) for key in self.keys]
    if self.kind == "softmax":
      weights = functional.softmax(query @ keys[0].transpose(-1, -2) / self.head_dim**0.5, dim=-1)
    else:
      if self.kind == "smgk":
        keys = [keys[0] + self.shift[None, :, r, None] for r in range(self.components)]
      prior = self.prior.clamp(0, 1)
      parts = [
        prior[None, :, r, None, None] * torch.exp(-(torch.cdist(query, key) ** 2) / (2 * self.head_dim**0.5))
        for r, key in enumerate(keys)
      ]
      weights = torch.stack(parts).sum(0)
      weights = weights / (weights.sum(-1, keepdim=True) + EPSILON)
    return self.out((self.dropout(weights) @ value).transpose(1, 2).flatten(2))

  def _split(self, x: Tensor) -> Tensor:
    return x.unflatten(-1, (self.heads, self.head_dim)).transpose(1, 2)


class Block(nn.Module):
  """x + attention(norm(x)), then x + mlp(norm(x))."""

  def __init__(self, config: ClassifierConfig):
    super().__init__()
    self.norm1, self.norm2 = nn.LayerNorm(config.emb_dim), nn.LayerNorm(config.emb_dim)
    self.attention, self.dropout = Attention(config), nn.Dropout(config.dropout_rate)
    self.mlp = nn.Sequential(
      nn.Linear(config.emb_dim, config.mlp_dim),
      nn.GELU(),
      nn.Dropout(config.dropout_rate),
      nn.Linear(config.mlp_dim, config.emb_dim),
      nn.Dropout(config.dropout_rate),
    )

  def forward(self, x: Tensor) -> Tensor:
    """[B, L, D] → [B, L, D]."""
    x = x + self.dropout(self.attention(self.norm1(x)))
    return x + self.mlp(self.norm2(x))


class Classifier(nn.Module):
  """Logits of sequences that fill the length."""

  def __init__(self, config: ClassifierConfig):
    super().__init__()
    self.tokens = nn.Embedding(config.vocab_size, config.emb_dim)
    self.positions = nn.Parameter(torch.randn(config.max_len, config.emb_dim) * 0.02)
    self.dropout = nn.Dropout(config.dropout_rate)
    self.blocks = nn.Sequential(*(Block(config) for _ in range(config.num_layers)), nn.LayerNorm(config.emb_dim))
    self.head = nn.Sequential(
      nn.Linear(config.emb_dim, config.classifier_dim), nn.ReLU(), nn.Linear(config.classifier_dim, config.num_classes)
    )

  def forward(self, tokens: Tensor) -> Tensor:
    """[B, L] → [B, classes]."""
    x = self.dropout(self.tokens(tokens) + self.positions[: tokens.shape[1]])
    return self.head(self.blocks(x).mean(1))


def training_step(model: nn.Module, tokens: np.ndarray, labels: np.ndarray) -> Callable[[], float]:
  """A step of AdamW on one batch, to be called again and again; it returns the loss."""
  optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
  inputs, targets = torch.tensor(tokens), torch.tensor(labels, dtype=torch.long)
  model.train()

  def step() -> float:
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(inputs), targets)
    loss.backward()
    optimizer.step()
    return loss.item()

  return step
