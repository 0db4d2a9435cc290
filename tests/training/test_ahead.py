"""Compiling for machines that are not there: names and reports everywhere, compilers where they are installed."""

import importlib.util

import jax
import jax.numpy as jnp
import pytest

from mgk_jax.training import TrainingStopped, ahead, compiled, targets

HLO = """
  %all-reduce.1 = f32[4]{0} all-reduce(%x), replica_groups={{0,1}}
  %start = (f32[4], f32[8]) all-gather-start(%x), dimensions={0}
  %done = f32[8] all-gather-done(%start)
  %p = f32[4] collective-permute(%x)
"""


def test_collectives_are_counted_once():
  assert ahead.count_collectives(HLO.replace("(f32[4], f32[8])", "(f32[4],f32[8])")) == {
    "all-reduce": 1, "all-gather": 1, "collective-permute": 1,
  }  # fmt: skip


def test_report():
  needs = ahead.Needs(3 * 2**30, 2**30, None, 2.0**31, {"all-reduce": 2}, 1.5, "pallas: runs")
  target = targets.Target("v5e:2x2", "tpu", [None] * 4, 2 * 2**30)
  said = ahead.describe(target, {"smgk, 2 heads": needs}, {"smgk, 2 heads": 8e9})
  assert "v5e:2x2, 4 devices" in said and "150.0% (does not fit)" in said and "2 all-reduce" in said
  assert "not how long it takes" in said


@pytest.mark.parametrize(
  ("message", "gib"),
  [
    ("Ran out of memory in memory space hbm. Used 34.53G of 15.75G hbm. Exceeded hbm capacity by 18.78G.", 34.53),
    ("the total memory required for HLO temporaries (1.5T) exceeds available HBM (15.75G).", 1536),
  ],
)
def test_memory_of_a_step_that_does_not_fit(message, gib):
  assert compiled.overflow(RuntimeError(f"RESOURCE_EXHAUSTED: {message}")) == round(gib * 2**30)


def test_another_failure_is_no_overflow():
  assert compiled.overflow(RuntimeError("RESOURCE_EXHAUSTED: Ran out of memory in memory space vmem")) is None


def test_cost_where_the_compiler_has_none():
  program = jax.jit(lambda x: x @ x).lower(jnp.ones((32, 32))).compile()

  class Silent:
    cost_analysis = staticmethod(lambda: None)
    runtime_executable = staticmethod(program.runtime_executable)

  assert compiled.cost(Silent())["flops"] == compiled.cost(program)["flops"] == 2 * 32**3


@pytest.mark.parametrize("name", ["", "v5e", "v9z:2x2", "a100", "a100x0", "rtx4090x1"])
def test_unknown_machines(name):
  with pytest.raises(ValueError, match="expected a machine such as"):
    targets.find(name)


@pytest.mark.parametrize(
  ("name", "module", "extra"), [("v5e:2x2", "libtpu", "aot-tpu"), ("a100x4", "jax_cuda12_plugin", "aot-cuda")]
)
def test_compilers_that_are_not_installed(name, module, extra, monkeypatch):
  monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
  with pytest.raises(TrainingStopped, match=rf"pip install 'mgk_jax\[{extra}\]'"):
    targets.find(name)


@pytest.mark.aot
def test_a_sharded_step_for_tpus():
  pytest.importorskip("libtpu", reason="needs the TPU compiler: pip install -e '.[aot-tpu,test]'")
  from configs.lra import listops
  from lra import ahead as lra_ahead

  config = listops.get_config("smgk,attention_dropout=0,mesh_model=2,length=256")
  said = lra_ahead.report(config, "v5e:2x2", variants=["softmax", "smgk"], heads=[2])
  assert said.count("pallas: runs") == 2 and "all-reduce" in said
