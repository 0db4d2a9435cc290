"""Forward and backward pass of the attentions, side by side: time, ratio, temporary memory, FLOPs.

    python -m benchmarks.attention                        # B=1, N=2048, D=32, 4 heads against 2
    python -m benchmarks.attention --length 4096 --batch 8
    python -m benchmarks.attention --padding               # what examples of half the length cost

Mixture models have half the heads of the baselines, as in the paper. Contenders take turns in one process and the
median of their times is shown: trust the ratios, not the milliseconds. FLOPs are those of the matrix products, counted
from the shapes (forward, backward, and what "xla" computes again instead of storing it).
"""

import argparse
import functools
import platform
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np

import mgk_jax
from benchmarks.timing import Contender, measure, table
from mgk_jax.kernels.attention import EStep, Implementation


def contenders(batch: int, length: int, heads: int, head_dim: int, components: int) -> list[Contender]:
  """Every attention: baselines with `heads` heads, mixtures with half of them."""
  half = heads // 2
  random = np.random.default_rng(0)

  def array(*shape: int) -> jax.Array:
    return jnp.asarray(random.standard_normal(shape), jnp.float32)

  def query_like(n: int) -> jax.Array:
    return array(batch, length, n, head_dim)

  def quadratic(n: int, score_products: int, *, recompute: bool = True) -> float:
    products = score_products * (4 if recompute else 3) + 3
    return 2.0 * batch * n * length**2 * head_dim * products

  def linear(n: int) -> float:
    return 2.0 * batch * n * length * head_dim**2 * 6

  def softmax(implementation: Implementation) -> Callable[..., jax.Array]:
    return functools.partial(mgk_jax.softmax_attention, implementation=implementation)

  def jax_nn(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    return jax.nn.dot_product_attention(q, k, v, implementation="xla")

  def mgk(estep: EStep) -> Callable[..., jax.Array]:
    def function(q, k, v, log_prior, **lengths) -> jax.Array:
      return mgk_jax.mixture_attention(q, k, v, log_prior=log_prior, estep=estep, implementation="xla", **lengths)

    return function

  def smgk(estep: EStep) -> Callable[..., jax.Array]:
    def function(q, k, v, shift, log_prior, **lengths) -> jax.Array:
      return mgk_jax.shifted_mixture_attention(
        q, k, v, shift, log_prior=log_prior, estep=estep, implementation="xla", **lengths
      )

    return function

  full = query_like(heads), query_like(heads), query_like(heads)
  query, key, value = query_like(half), query_like(half), query_like(half)
  keys = array(batch, length, half, components, head_dim)
  shift, log_prior = array(half, components, head_dim), jnp.full((half, components), -np.log(components), jnp.float32)

  def mlk(q: jax.Array, k: jax.Array, v: jax.Array, log_prior: jax.Array) -> jax.Array:
    return mgk_jax.mixture_linear_attention(q, k, v, log_prior=log_prior)

  return [
    Contender(f"softmax {heads} heads, materialised", softmax("reference"), full, quadratic(heads, 1, recompute=False)),
    Contender(f"softmax {heads} heads, jax.nn", jax_nn, full, quadratic(heads, 1, recompute=False)),
    Contender(f"softmax {heads} heads", softmax("xla"), full, quadratic(heads, 1)),
    Contender(f"MGK {half} heads", mgk("soft"), (query, keys, value, log_prior), quadratic(half, components)),
    Contender(f"MGK {half} heads, hard", mgk("hard"), (query, keys, value, log_prior), quadratic(half, components)),
    Contender(f"sMGK {half} heads", smgk("soft"), (query, key, value, shift, log_prior), quadratic(half, 1)),
    Contender(f"sMGK {half} heads, hard", smgk("hard"), (query, key, value, shift, log_prior), quadratic(half, 1)),
    Contender(f"linear {heads} heads", mgk_jax.linear_attention, full, linear(heads)),
    Contender(f"MLK {half} heads", mlk, (query, keys, value, log_prior), linear(half)),
  ]


def padding_contenders(batch: int, length: int, heads: int, head_dim: int, components: int) -> list[Contender]:
  """The blocked attentions at full length, and with all examples half as long."""
  lengths = jnp.full((batch,), length // 2, jnp.int32)
  result = []
  for contender in contenders(batch, length, heads, head_dim, components):
    if any(word in contender.name for word in ("linear", "MLK", "materialised", "jax.nn")):
      continue
    result.append(contender)
    result.append(
      Contender(
        f"{contender.name}, lengths N/2", _shortened(contender, lengths), contender.arguments, contender.flops / 4
      )
    )
  return result


def _shortened(contender: Contender, lengths: jax.Array) -> Callable[..., jax.Array]:
  return lambda *arguments: contender.function(*arguments, query_seq_lengths=lengths, key_value_seq_lengths=lengths)


def main(argv: Sequence[str] | None = None) -> None:
  """Runs the measurement that the command line asks for and prints its table."""
  parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
  parser.add_argument("--length", type=int, default=2048, help="N, the number of queries and of keys (default 2048)")
  parser.add_argument("--batch", type=int, default=None, help="B (default 1; 8 with --padding)")
  parser.add_argument("--heads", type=int, default=4, help="heads of the baselines; mixtures have half (default 4)")
  parser.add_argument("--head-dim", type=int, default=32, help="D (default 32)")
  parser.add_argument("--components", type=int, default=2, help="M (default 2)")
  parser.add_argument("--repeats", type=int, default=15, help="rounds of which the median is taken (default 15)")
  parser.add_argument("--padding", action="store_true", help="measure what lengths of N/2 save")
  arguments = parser.parse_args(argv)
  if arguments.heads < 2 or arguments.heads % 2:
    parser.error(f"--heads: expected an even number, since the mixtures have half of them, got {arguments.heads}")
  batch = arguments.batch or (8 if arguments.padding else 1)

  sizes = batch, arguments.length, arguments.heads, arguments.head_dim, arguments.components
  print(f"forward + backward, float32, B={sizes[0]}, N={sizes[1]}, D={sizes[3]}, M={sizes[4]}")
  print(f"{platform.machine()}, {jax.devices()[0].device_kind}, jax {jax.__version__}\n")
  if arguments.padding:
    measurements = measure(padding_contenders(*sizes), arguments.repeats)
    for full, short in zip(measurements[::2], measurements[1::2], strict=True):
      print(table([full, short], [full.contender.name]) + "\n")
  else:
    names = [f"softmax {arguments.heads} heads{suffix}" for suffix in (", materialised", ", jax.nn", "")]
    print(table(measure(contenders(*sizes), arguments.repeats), [*names, f"linear {arguments.heads} heads"]))


if __name__ == "__main__":
  main()
