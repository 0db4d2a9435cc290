"""The attentions that are compared: baselines with all heads, mixtures with half of them, on random numbers."""

import dataclasses
import functools
import importlib.util
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import mgk_jax
from benchmarks import timing
from benchmarks.timing import Contender, Program
from mgk_jax.kernels.attention import EStep, Implementation
from mgk_jax.nn.choices import Prior
from mgk_jax.nn.priors import EMPrior


@dataclasses.dataclass(frozen=True)
class Sizes:
  """The sizes of one comparison: B, N, the heads of the baselines, D and M."""

  batch: int
  length: int
  heads: int = 4
  head_dim: int = 32
  components: int = 2

  @property
  def half(self) -> int:
    """The heads of the mixtures."""
    return self.heads // 2

  def __str__(self) -> str:
    return f"B={self.batch}, N={self.length}, D={self.head_dim}, M={self.components}"


class Attentions:
  """Contenders of one size, by name; `options` are arguments of the attentions, such as is_causal."""

  def __init__(self, sizes: Sizes, **options: Any):
    self.sizes, self.options = sizes, options
    self.random = np.random.default_rng(0)
    self.baseline = tuple(self._heads(sizes.heads) for _ in range(3))
    self.query, self.key, self.value = (self._heads(sizes.half) for _ in range(3))
    self.keys = self._array(sizes.batch, sizes.length, sizes.half, sizes.components, sizes.head_dim)
    self.shift = self._array(sizes.half, sizes.components, sizes.head_dim)
    self.log_prior = jnp.full((sizes.half, sizes.components), -np.log(sizes.components), jnp.float32)

  def softmax(self, implementation: Implementation = "xla") -> Contender:
    """Ours in blocks, or materialised by "reference"."""
    function = functools.partial(mgk_jax.softmax_attention, implementation=implementation, **self.options)
    is_blocked = implementation != "reference"
    name = f"softmax {self.sizes.heads} heads" + ("" if is_blocked else ", materialised")
    return timing.gradient(name, function, self.baseline, self._quadratic(self.sizes.heads, 1, again=is_blocked))

  def jax_nn(self) -> Contender:
    """JAX's own."""
    function = functools.partial(jax.nn.dot_product_attention, implementation="xla", **self.options)
    flops = self._quadratic(self.sizes.heads, 1, again=False)
    return timing.gradient(f"softmax {self.sizes.heads} heads, jax.nn", function, self.baseline, flops)

  def torch(self) -> Contender:
    """PyTorch's fused attention."""

    def prepare() -> Program:
      import torch

      def tensor(x: jax.Array) -> Any:
        return torch.tensor(np.asarray(x)).transpose(1, 2).contiguous().requires_grad_()

      tensors = [tensor(x) for x in self.baseline]

      def run() -> None:
        out = torch.nn.functional.scaled_dot_product_attention(*tensors)
        torch.autograd.grad(out, tensors, out.detach())

      return Program(run, rest=0.3)  # its threads spin for a while, which would slow others down

    return Contender(f"softmax {self.sizes.heads} heads, torch", prepare, self._quadratic(self.sizes.heads, 1))

  def mgk(self, estep: EStep = "soft") -> Contender:
    """Keys of their own."""

    def function(query, keys, value, log_prior) -> jax.Array:
      return mgk_jax.mixture_attention(
        query, keys, value, log_prior=log_prior, estep=estep, implementation="xla", **self.options
      )

    arguments = (self.query, self.keys, self.value, self.log_prior)
    return timing.gradient(
      self._name("MGK", estep), function, arguments, self._quadratic(self.sizes.half, self.sizes.components)
    )

  def smgk(self, estep: EStep = "soft") -> Contender:
    """Shifted keys."""

    def function(query, key, value, shift, log_prior) -> jax.Array:
      return mgk_jax.shifted_mixture_attention(
        query, key, value, shift, log_prior=log_prior, estep=estep, implementation="xla", **self.options
      )

    arguments = (self.query, self.key, self.value, self.shift, self.log_prior)
    return timing.gradient(self._name("sMGK", estep), function, arguments, self._quadratic(self.sizes.half, 1))

  def linear(self) -> Contender:
    """Linear attention."""
    function = functools.partial(mgk_jax.linear_attention, **self.options)
    return timing.gradient(f"linear {self.sizes.heads} heads", function, self.baseline, self._linear(self.sizes.heads))

  def mlk(self) -> Contender:
    """Linear attention with a mixture of keys."""

    def function(query, keys, value, log_prior) -> jax.Array:
      return mgk_jax.mixture_linear_attention(query, keys, value, log_prior=log_prior, **self.options)

    arguments = (self.query, self.keys, self.value, self.log_prior)
    return timing.gradient(self._name("MLK"), function, arguments, self._linear(self.sizes.half))

  def module(self, name: str, prior: Prior) -> Contender:
    """A training step's work in one module, projections and the update of an EM prior included."""
    features = self.sizes.half * self.sizes.head_dim

    def prepare() -> Program:
      module = mgk_jax.MixtureAttention(
        self.sizes.half, features, num_components=self.sizes.components, prior=prior, rngs=nnx.Rngs(0),
        keys="shifted" if name == "sMGK" else "projected", max_len=self.sizes.length if prior == "em" else None,
      )  # fmt: skip
      graph, parameters, rest = nnx.split(module, nnx.Param, ...)  # type: ignore[misc]

      def step(parameters: nnx.State, rest: nnx.State, inputs: jax.Array) -> Any:
        def loss(parameters: nnx.State, inputs: jax.Array) -> Any:
          module = nnx.merge(graph, parameters, rest, copy=True)
          return jnp.sum(module(inputs, deterministic=False) ** 2), nnx.state(module, EMPrior)

        return jax.value_and_grad(loss, argnums=(0, 1), has_aux=True)(parameters, inputs)

      inputs = self._array(self.sizes.batch, self.sizes.length, features)
      return timing.compiled(step, parameters, rest, inputs)

    return Contender(f"{name} {self.sizes.half} heads, module with {prior} prior", prepare)

  def all(self) -> list[Contender]:
    """Every one that this machine can run."""
    softmax = [self.softmax()] + ([self.torch()] if importlib.util.find_spec("torch") else [])
    mixtures = [self.mgk(), self.mgk("hard"), self.smgk(), self.smgk("hard"), self.linear(), self.mlk()]
    modules = [module for name in ("MGK", "sMGK") for module in (self.module(name, "sgd"), self.module(name, "em"))]
    return [*softmax, *mixtures, *modules]

  def _array(self, *shape: int) -> jax.Array:
    return jnp.asarray(self.random.standard_normal(shape), jnp.float32)

  def _heads(self, number: int) -> jax.Array:
    return self._array(self.sizes.batch, self.sizes.length, number, self.sizes.head_dim)

  def _name(self, name: str, estep: str = "soft") -> str:
    return f"{name} {self.sizes.half} heads" + (", hard" if estep == "hard" else "")

  def _quadratic(self, heads: int, score_products: int, *, again: bool = True) -> float:
    products = score_products * (4 if again else 3) + 3
    pairs = self.sizes.length**2 / (2 if self.options.get("is_causal") else 1)
    return 2.0 * self.sizes.batch * heads * pairs * self.sizes.head_dim * products

  def _linear(self, heads: int) -> float:
    return 2.0 * self.sizes.batch * heads * self.sizes.length * self.sizes.head_dim**2 * 6


def shortened(sizes: Sizes) -> list[tuple[Contender, Contender]]:
  """The blocked attentions at full length, and with all examples half as long."""
  lengths = jnp.full((sizes.batch,), sizes.length // 2, jnp.int32)
  half = Attentions(sizes, query_seq_lengths=lengths, key_value_seq_lengths=lengths)
  return [
    (full, dataclasses.replace(short, name=f"{short.name}, lengths N/2", flops=(short.flops or 0) / 4))
    for full, short in zip(blocked(Attentions(sizes)), blocked(half), strict=True)
  ]


def causal(sizes: Sizes) -> list[tuple[Contender, Contender]]:
  """The blocked attentions, and the same with is_causal."""
  pairs = zip(blocked(Attentions(sizes)), blocked(Attentions(sizes, is_causal=True)), strict=True)
  return [(full, dataclasses.replace(half, name=f"{half.name}, causal")) for full, half in pairs]


def blocked(attentions: Attentions) -> Sequence[Contender]:
  """Those that go through all pairs in blocks."""
  return [attentions.softmax(), attentions.mgk(), attentions.mgk("hard"), attentions.smgk(), attentions.smgk("hard")]
