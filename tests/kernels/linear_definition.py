"""Linear attention as Eqn 14 defines it, in float64 numpy: what the kernels are tested against.

The T×S weights are formed explicitly and the gradients are derived by hand. With A_ij = φ(q_i)·Φ_j, z_i = Σ_j A_ij,
W_ij = A_ij / z_i and g the cotangent of h_i = Σ_j W_ij v_j,

    ∂/∂v_j      = Σ_i W_ij g_i
    ∂/∂A_ij     = d_ij = (g_i·v_j − Σ_j' W_ij' g_i·v_j') / z_i
    ∂/∂φ(q_i)   = Σ_j d_ij Φ_j,   ∂/∂Φ_j = D_j = Σ_i d_ij φ(q_i)
    ∂/∂φ(k_jr)  = π_jr D_j,       ∂/∂log π_jr = π_jr φ(k_jr)·D_j
"""

import numpy as np

from tests.kernels import definition


class Elu:
  def __call__(self, x):
    return np.where(x > 0, x + 1, np.exp(np.minimum(x, 0)))

  def pull_back(self, x, d, each):
    return d * np.where(x > 0, 1, np.exp(np.minimum(x, 0)))


class Relu:
  def __call__(self, x):
    return np.maximum(x, 0)

  def pull_back(self, x, d, each):
    return d * (x > 0)


class Square:
  """A map that mixes signs of its derivative; stands for a caller's own function."""

  def __call__(self, x):
    return x**2 + 0.5

  def pull_back(self, x, d, each):
    return d * each(2 * x)


class Dpfp:
  def __init__(self, nu=1):
    self.nu = nu

  def __call__(self, x):
    r = np.maximum(np.concatenate([x, -x], -1), 0)
    size = r.shape[-1]
    pairs = [(i, (i - s) % size) for s in range(1, self.nu + 1) for i in range(size)]
    return np.stack([r[..., i] * r[..., j] for i, j in pairs], -1)

  def pull_back(self, x, d, each):
    r = np.maximum(np.concatenate([x, -x], -1), 0)
    size, H = r.shape[-1], x.shape[-1]
    by_r = np.zeros_like(r)
    for s in range(1, self.nu + 1):
      for i in range(size):
        part = d[..., (s - 1) * size + i]
        by_r[..., i] += part * r[..., (i - s) % size]
        by_r[..., (i - s) % size] += part * r[..., i]
    by_r = by_r * (r > 0)
    return by_r[..., :H] + each(-by_r[..., H:])


class Favor:
  def __init__(self, projection):
    self.projection = np.asarray(projection, np.float64)

  def __call__(self, x):
    x = x / x.shape[-1] ** 0.25
    exponent = np.einsum("...h,fh->...f", x, self.projection) - np.sum(x**2, -1, keepdims=True) / 2
    return np.exp(exponent) / np.sqrt(len(self.projection))

  def pull_back(self, x, d, each):
    root = x.shape[-1] ** 0.25
    d = d * self(x)
    return np.einsum("...f,...fh->...h", d, each(self.projection - x[..., None, :] / root)) / root


class LinearAttention:
  """One problem.

  Attributes:
    weights: A_ij, [B, N, T, S], zero where not allowed.
    total: z_i, [B, N, T, 1].
    output: [B, T, N, V]; zeros where z_i is zero.
  """

  def __init__(self, query, key, value, *, log_prior=None, phi, **masking):
    self.query, self.key, self.value = (np.asarray(x, np.float64) for x in (query, key, value))
    self.phi, self.prior_shape = phi, np.shape(log_prior)
    B, T, N, _ = self.query.shape
    _, S, _, M, _ = self.key.shape
    self.prior = np.broadcast_to(np.exp(np.zeros((N, M)) if log_prior is None else np.float64(log_prior)), (S, N, M))
    self.query_features, self.key_features = phi(self.query), phi(self.key)
    self.mixed = np.einsum("snm,bsnmf->bsnf", self.prior, self.key_features)
    weights = np.einsum("btnf,bsnf->bnts", self.query_features, self.mixed)
    self.weights = np.where(definition.allowed_pairs(B, N, T, S, **masking), weights, 0)
    self.total = self.weights.sum(-1, keepdims=True)
    self.alive = self.total > 0
    self.safe_total = np.where(self.alive, self.total, 1)
    self.output = np.einsum("bnts,bsnv->btnv", self.weights / self.safe_total, self.value)
    self.allowed = definition.allowed_pairs(B, N, T, S, **masking)

  def gradients(self, cotangent):
    """The gradients of Σ cotangent · output with respect to every input, by name."""
    cotangent = np.asarray(cotangent, np.float64)
    a = np.einsum("btnv,bsnv->bnts", cotangent, self.value)
    centred = a - np.sum(self.weights / self.safe_total * a, -1, keepdims=True)
    return self._pull_back(centred, cotangent, lambda x: x)

  def magnitudes(self, cotangent):
    """The same sums with every term replaced by its absolute value: the scale of the rounding error of each result."""
    cotangent = np.abs(np.asarray(cotangent, np.float64))
    a = np.einsum("btnv,bsnv->bnts", cotangent, np.abs(self.value))
    spread = a + np.sum(self.weights / self.safe_total * a, -1, keepdims=True)
    output = np.einsum("bnts,bsnv->btnv", self.weights / self.safe_total, np.abs(self.value))
    return {"output": output, **self._pull_back(spread, cotangent, np.abs)}

  def _pull_back(self, by_weight, cotangent, each):
    d = np.where(self.allowed & self.alive, by_weight / self.safe_total, 0)
    by_query_features = np.einsum("bnts,bsnf->btnf", d, self.mixed)
    by_mixed = np.einsum("bnts,btnf->bsnf", d, self.query_features)
    by_key_features = np.einsum("snm,bsnf->bsnmf", self.prior, by_mixed)
    by_log_prior = np.einsum("snm,bsnmf,bsnf->snm", self.prior, self.key_features, by_mixed)
    return {
      "query": self.phi.pull_back(self.query, by_query_features, each),
      "key": self.phi.pull_back(self.key, by_key_features, each),
      "value": np.einsum("bnts,btnv->bsnv", self.weights / self.safe_total, cotangent),
      "log_prior": by_log_prior.sum(0) if len(self.prior_shape) == 2 else by_log_prior,
    }
