"""The profile of attentions: which operation is what, and that a profile finds them."""

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks import profile
from benchmarks.contenders import Attentions, Sizes


def test_kinds():
  """Each of four operations that XLA cannot fuse with each other."""

  def function(x, y):
    product = x @ y
    return jnp.sum(product, axis=1), jnp.sin(product) + 1, jnp.sort(x)[::-1].T

  text = jax.jit(function).lower(np.ones((64, 32), np.float32), np.ones((32, 48), np.float32)).compile().as_text()
  found = set(profile.kinds(text).values())
  assert {"products", "elementwise", "maxima and sums"} <= found <= set(profile.PARTS)


def test_a_product_within_a_fusion_is_one():
  text = """HloModule m

%inner (a: f32[2,3], b: f32[3,4]) -> f32[2,4] {
  %a = f32[2,3]{1,0} parameter(0)
  %b = f32[3,4]{1,0} parameter(1)
  ROOT %dot.1 = f32[2,4]{1,0} dot(%a, %b), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}

%moves (c: f32[2,4]) -> f32[4,2] {
  %c = f32[2,4]{1,0} parameter(0)
  ROOT %transpose.1 = f32[4,2]{1,0} transpose(%c), dimensions={1,0}
}

ENTRY %main (x: f32[2,3], y: f32[3,4]) -> f32[4,2] {
  %x = f32[2,3]{1,0} parameter(0)
  %y = f32[3,4]{1,0} parameter(1)
  %fusion.1 = f32[2,4]{1,0} fusion(%x, %y), kind=kCustom, calls=%inner, backend_config={"a": 1}
  ROOT %fusion.2 = f32[4,2]{1,0} fusion(%fusion.1), kind=kLoop, calls=%moves
}
"""
  found = profile.kinds(text)
  assert found["fusion.1"] == "products" and found["fusion.2"] == "copies"


def test_time_by_part():
  kind = {"dot.1": "products", "add.2": "elementwise"}
  events = [("dot.1", 2.0), ("dot.1", 1.0), ("add.2", 0.5), ("while.3", 9.0)]
  assert profile.seconds_by_part(events, kind) == {
    **dict.fromkeys(profile.PARTS, 0.0),
    "products": 3.0,
    "elementwise": 0.5,
  }


def test_small():
  whole, parts = profile.profile(Attentions(Sizes(1, 64, 2, 4)).mgk(), repeats=2)
  assert list(parts) == list(profile.PARTS)
  assert parts["products"] > 0 and parts["elementwise"] > 0 and whole > 0
  assert "| MGK 1 heads | " in profile.table({"MGK 1 heads": (whole, parts)})
