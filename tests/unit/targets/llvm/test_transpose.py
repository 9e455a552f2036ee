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


@pytest.mark.parametrize("height, width, columns", [(2, 16, 16), (3, 21, 16), (3, 21, 19)])
def test_transposes_between_reshapes_do_not_gather(height: int, width: int, columns: int) -> None:
    """As vision transformers have them around a depthwise convolution; rows that are no whole vectors, too."""
    target = record_for("haswell")
    x = te.placeholder((height * width, columns), f32, "x")
    turned = te.compute((columns, height * width), lambda i, j: x[j, i], "turned")
    y = te.compute((columns, height, width), lambda c, h, w: turned[c, h * width + w], "y")
    s = Schedule([y])
    s[turned].compute_inline()
    spread(s[y], target)
    fn = lower(s, [x, y], "k")
    array = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    result = np.empty(y.shape, np.float32)
    run_function(fn, [array, result])
    np.testing.assert_array_equal(result, array.T.reshape(y.shape))
    module = ModuleText()
    emit_function(fn, module)
    assert "shufflevector <8 x float>" in "\n".join(module.definitions)


def test_axes_of_one_element_do_not_hide_a_transpose() -> None:
    """As the weights of convolutions of single pixels have them, turned around for the derivative by the data."""
    target = record_for("haswell")
    x = te.placeholder((16, 24, 1, 1), f32, "x")
    y = te.compute((24, 16, 1, 1), lambda i, j, h, w: x[j, i, h, w], "y")
    s = Schedule([y])
    spread(s[y], target)
    fn = lower(s, [x, y], "k")
    array = np.random.default_rng(0).standard_normal(x.shape, np.float32)
    result = np.empty(y.shape, np.float32)
    run_function(fn, [array, result])
    np.testing.assert_array_equal(result, array.transpose(1, 0, 2, 3))
    module = ModuleText()
    emit_function(fn, module)
    assert "gather" not in "\n".join(module.definitions)
