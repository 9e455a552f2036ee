"""A processor as a bench: what runs there is checked and timed."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import DeviceError
from mlc.ir.graph import Builder, Graph
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.pipeline.machine import Processor
from mlc.rewrite.fuse import group_each
from mlc.targets.base import CallSpec
from mlc.targets.bench import Program
from mlc.targets.x86.target import X86Target


def product() -> Graph:
    g = Builder("product")
    a, b = g.input("a", TensorType((4, 6), f32)), g.input("b", TensorType((6, 5), f32))
    return g.finish([g.add(get("matmul"), [a, b])[0]])


@pytest.mark.parametrize("flush", [False, True])
def test_a_kernel_is_run_and_timed(flush: bool) -> None:
    target = X86Target.from_options({})
    (node,) = group_each(product()).nodes
    machine = Processor(target)
    fn = machine.kernel(node, "kernel", {})
    call = CallSpec("kernel", (("input", 0), ("input", 1), ("output", 0)))
    code = target.codegen(machine.emit({"kernel": fn}), [call], opt_level=3, whole=False).obj
    stand = target.bench(flush).open(1)
    assert stand.peak() > 1e8
    loaded = stand.load(Program(code), node, (False, False))
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 6), (6, 5)))
    assert loaded.run([a, b], 0xFF) > 0
    loaded.check()
    np.testing.assert_allclose(loaded.results()[0], a @ b, rtol=1e-5, atol=1e-6)
    assert loaded.sample(10) > 0
    if flush:
        assert loaded.cold_sample(10) > loaded.sample(10)
    loaded.close()


def test_caches_that_no_program_can_empty_are_not_emptied() -> None:
    class Sealed(X86Target):
        evict = ""

    with pytest.raises(DeviceError, match="no program can empty the caches of x86 processors"):
        Sealed.from_options({}).bench(flush=True)
