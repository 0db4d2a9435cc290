"""The attentions as the paper defines them, in float64 numpy: what the kernels are tested against.

Written for plainness: differences q_i − k_jr are formed explicitly, every array is materialised, and the gradients are
derived by hand. With A_ij the posterior, γ_ijr the share of component r in pair (i, j) (hard: of the maximum, in equal
parts at ties), m_ij the dropout multiplier and g the cotangent of the output h_i = Σ_j m_ij A_ij v_j,

    ∂/∂A_ij    = a_ij = m_ij g_i·v_j
    ∂/∂s_ijr   = d_ijr = A_ij γ_ijr (a_ij − Σ_j' A_ij' a_ij')
    ∂/∂v_j     = Σ_i m_ij A_ij g_i
    ∂/∂q_i     = −Σ_jr d_ijr (q_i − k_jr) / σ_r²,   ∂/∂k_jr = Σ_i d_ijr (q_i − k_jr) / σ_r²
    ∂/∂log π_jr = Σ_i d_ijr,                         ∂/∂σ_r² = Σ_ij d_ijr ‖q_i − k_jr‖² / 2σ_r⁴
"""

import numpy as np


def allowed_pairs(B, N, T, S, *, mask=None, is_causal=False, query_seq_lengths=None, key_value_seq_lengths=None):
  """Which pairs may attend, boolean [B, N, T, S]."""
  allowed = np.ones((B, N, T, S), bool)
  if mask is not None:
    allowed &= np.asarray(mask)
  if is_causal:
    allowed &= np.arange(S)[None, :] <= np.arange(T)[:, None]
  for b in range(B):
    if query_seq_lengths is not None:
      allowed[b, :, query_seq_lengths[b] :, :] = False
    if key_value_seq_lengths is not None:
      allowed[b, :, :, key_value_seq_lengths[b] :] = False
  return allowed


def _float64(x):
  return None if x is None else np.asarray(x, np.float64)


class Attention:
  """One attention problem with everything there is to know about it.

  Attributes:
    allowed: boolean [B, N, T, S].
    scores: the joint log scores s_ijr, [B, N, T, S, M].
    weights: A_ij, [B, N, T, S], before dropout; zero rows where no key is allowed.
    responsibilities: γ_ijr, [B, N, T, S, M], zero where not allowed.
    output: [B, T, N, V], or None without values.
  """

  def __init__(
    self, query, key, value=None, *, shift=None, log_prior=None, variance=None, mask=None, is_causal=False,
    query_seq_lengths=None, key_value_seq_lengths=None, estep="soft", multiplier=1.0, dot_product=False,
  ):  # fmt: skip
    self.query, self.key, self.value, self.shift = (_float64(x) for x in (query, key, value, shift))
    if shift is not None:
      self.key = self.key[:, :, :, None, :] + self.shift
    elif dot_product:
      self.key = self.key[:, :, :, None, :]
    self.dot_product, self.prior_shape, self.estep = dot_product, np.shape(log_prior), estep
    self.multiplier = _float64(multiplier)
    B, T, N, H = self.query.shape
    _, S, _, M, _ = self.key.shape

    variance = np.sqrt(H) if variance is None else _float64(variance)
    self.variance_shape, self.variance = np.shape(variance), np.broadcast_to(variance, (M,))
    log_prior = np.zeros((N, M)) if log_prior is None else _float64(log_prior)
    self.log_prior = np.broadcast_to(log_prior, (S, N, M))
    self.allowed = allowed_pairs(
      B, N, T, S, mask=mask, is_causal=is_causal,
      query_seq_lengths=query_seq_lengths, key_value_seq_lengths=key_value_seq_lengths,
    )  # fmt: skip

    # [B, N, T, S, M, H], the queries and keys in one layout
    self.query_side = self.query.transpose(0, 2, 1, 3)[:, :, :, None, None, :]
    self.key_side = self.key.transpose(0, 2, 1, 3, 4)[:, :, None]
    if dot_product:
      self.scores = np.sum(self.query_side * self.key_side, -1) / np.sqrt(H)
    else:
      squared = np.sum((self.query_side - self.key_side) ** 2, -1)
      self.scores = -squared / (2 * self.variance)
      if estep == "soft":
        self.scores = self.scores + self.log_prior.transpose(1, 0, 2)[:, None]
    self.responsibilities = self._responsibilities()
    self.weights = self._weights()
    self.output = None
    if value is not None:
      self.output = np.einsum("bnts,bsnv->btnv", self.weights * self.multiplier, self.value)

  def _responsibilities(self):
    top = self.scores.max(-1, keepdims=True)
    if self.estep == "hard":
      share = (self.scores == top).astype(np.float64)
    else:
      share = np.exp(self.scores - np.where(np.isfinite(top), top, 0))
    total = share.sum(-1, keepdims=True)
    return np.where(self.allowed[..., None], share / np.where(total > 0, total, 1), 0)

  def _weights(self):
    if self.estep == "hard":
      score = self.scores.max(-1)
    else:
      score = np.logaddexp.reduce(self.scores, -1)
    score = np.where(self.allowed, score, -np.inf)
    top = score.max(-1, keepdims=True)
    weight = np.exp(score - np.where(np.isfinite(top), top, 0))
    total = weight.sum(-1, keepdims=True)
    return weight / np.where(total > 0, total, 1)

  def gradients(self, cotangent):
    """The gradients of Σ cotangent · output with respect to every input, by name."""
    cotangent = np.asarray(cotangent, np.float64)
    a = np.einsum("btnv,bsnv->bnts", cotangent, self.value) * self.multiplier
    centred = a - np.sum(self.weights * a, -1, keepdims=True)
    d = (self.weights * centred)[..., None] * self.responsibilities
    return self._pull_back(d, cotangent, lambda x: x)

  def magnitudes(self, cotangent):
    """The same sums as `gradients` with every term replaced by its absolute value.

    A term's rounding error is proportional to its size, so this is the scale of the error of each gradient, however
    much of the sum cancels.
    """
    cotangent = np.abs(np.asarray(cotangent, np.float64))
    a = np.einsum("btnv,bsnv->bnts", cotangent, np.abs(self.value)) * self.multiplier
    spread = a + np.sum(self.weights * a, -1, keepdims=True)
    d = (self.weights * spread)[..., None] * self.responsibilities
    output = np.einsum("bnts,bsnv->btnv", self.weights * self.multiplier, np.abs(self.value))
    return {"output": output, **self._pull_back(d, cotangent, np.abs)}

  def _pull_back(self, d, cotangent, each):
    grad = {"value": np.einsum("bnts,btnv->bsnv", self.weights * self.multiplier, cotangent)}
    if self.dot_product:
      scale = 1 / np.sqrt(self.query.shape[-1])
      grad["query"] = np.einsum("bntsm,bsnmh->btnh", d, each(self.key)) * scale
      grad["key"] = np.einsum("bntsm,btnh->bsnmh", d, each(self.query))[:, :, :, 0] * scale
      return grad
    pull = d[..., None] * each(self.query_side - self.key_side) / self.variance[:, None]
    grad["query"] = each(-pull).sum((3, 4)).transpose(0, 2, 1, 3)
    grad["key"] = pull.sum(2).transpose(0, 2, 1, 3, 4)
    if self.shift is not None:
      grad["shift"] = grad["key"].sum((0, 1))
      grad["key"] = grad["key"].sum(3)
    if self.prior_shape:
      by_position = d.sum((0, 2)).transpose(1, 0, 2) if self.estep == "soft" else np.zeros_like(self.log_prior)
      grad["log_prior"] = by_position.sum(0) if len(self.prior_shape) == 2 else by_position
    squared = np.sum((self.query_side - self.key_side) ** 2, -1)
    by_component = (d * squared).sum((0, 1, 2, 3)) / (2 * self.variance**2)
    grad["variance"] = by_component if self.variance_shape else by_component.sum()
    return grad

  def em_prior(self):
    """The M step of π, [S, N, M]: the mean of γ_ijr over the allowed pairs of key j; an unused key keeps its prior."""
    count = self.allowed.sum((0, 2))  # [N, S]
    mean = self.responsibilities.sum((0, 2)) / np.maximum(count, 1)[..., None]
    prior = np.exp(self.log_prior - np.logaddexp.reduce(self.log_prior, -1, keepdims=True))
    return np.where(count[..., None] > 0, mean, prior.transpose(1, 0, 2)).transpose(1, 0, 2)

  def em_variance(self):
    """The M step of σ_r² (Eqn 13, pooled), [M]: Σ γ ‖q − k‖² / (H Σ γ); an unused component keeps its variance."""
    squared = np.sum((self.query_side - self.key_side) ** 2, -1)
    total = self.responsibilities.sum((0, 1, 2, 3))
    pooled = (self.responsibilities * squared).sum((0, 1, 2, 3)) / (self.query.shape[-1] * np.maximum(total, 1e-300))
    return np.where(total > 0, pooled, self.variance)
