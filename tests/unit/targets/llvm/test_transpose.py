"""Strided reads that become transpositions in registers."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.interp import run_function
from mlc.ir.layout import blocked
from mlc.ir.types import f32
from mlc.lower import Schedule, lower
from mlc.lower.relayout import relayout
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import ModuleText
from mlc.targets.llvm.transpose import shuffles
from mlc.targets.x86.record import record_for


@pytest.mark.parametrize("size", [4, 8, 16])
def test_shuffles_transpose(size: int) -> None:
    rows = [np.arange(size) + size * k for k in range(size)]
    for distance, *masks in shuffles(size):
        low, high = ([int(w.removeprefix("i32 ")) for w in m.split("<")[2].strip(">").split(", ")] for m in masks)
        for k in range(size):
            if not k & distance:
                both = np.concatenate([rows[k], rows[k | distance]])
                rows[k], rows[k | distance] = both[low], both[high]
    np.testing.assert_array_equal(np.stack(rows), np.arange(size * size).reshape(size, size).T)


@pytest.mark.parametrize("to_blocks", [True, False])
def test_conversions_between_layouts_do_not_gather(to_blocks: bool) -> None:
    target = record_for("haswell")
    shape = (1, 16, 5, 24)
    x = te.placeholder(shape, f32, "x")
    y = te.compute(shape, lambda n, c, h, w: x[n, c, h, w], "y", axis_names="nchw")
    layout = blocked(shape, 1, 8)
    (out,), new = relayout([y], {y: layout} if to_blocks else {x: layout})
    s = Schedule([out])
    spread(s[out], target)
    fn = lower(s, [new.get(x, x), out], "k")
    array = np.random.default_rng(0).standard_normal(shape, np.float32)
    result = np.empty(out.shape, np.float32)
    run_function(fn, [array if to_blocks else layout.pack(array), result])
    np.testing.assert_array_equal(result, layout.pack(array) if to_blocks else array)
    module = ModuleText()
    emit_function(fn, module)
    text = "\n".join(module.definitions)
    assert "gather" not in text
    assert "shufflevector <8 x float>" in text
