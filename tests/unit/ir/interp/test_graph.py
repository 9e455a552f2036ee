"""The interpreter of graphs: expressions, opaque routines, packed constants, and what it refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Load
from mlc.ir.graph import Attrs, Builder, FusionKind, Operator
from mlc.ir.index import Var, as_index
from mlc.ir.interp import run_graph
from mlc.ir.layout import blocked
from mlc.ir.loop import Buffer, For, ForKind, Stmt, Store
from mlc.ir.types import TensorType, f32

T = TensorType((6,), f32)


def _add(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    a, b = inputs
    return [te.compute(a.shape, lambda i: a[i] + b[i], "sum")]


def _reversed(ins: Sequence[Buffer], outs: Sequence[Buffer], attrs: Attrs) -> Stmt:
    k = Var("k", 0, 5)
    return For(k, 6, ForKind.SERIAL, Store(outs[0], (as_index(k),), Load(ins[0], (5 - as_index(k),))))


ADD = Operator("add", FusionKind.INJECTIVE, lambda t, a: [t[0]], _add)
REVERSE = Operator("reverse", FusionKind.OPAQUE, lambda t, a: [t[0]], routine=_reversed)
DATA = np.arange(6, dtype=np.float32)


def test_expressions_and_routines_take_turns() -> None:
    b = Builder()
    x = b.input("x", T)
    (y,) = b.add(REVERSE, [x])
    (z,) = b.add(ADD, [x, y], names=["z"])
    seen = []
    out = run_graph(b.finish([z, x], ["sum", "same"]), {"x": DATA}, lambda v, a: seen.append(v.name))
    np.testing.assert_array_equal(out["sum"], [5] * 6)
    np.testing.assert_array_equal(out["same"], DATA)
    assert seen == ["reverse", "z"]


def test_routines_take_arrays_that_are_not_contiguous() -> None:
    b = Builder()
    (y,) = b.add(REVERSE, [b.input("x", T)])
    wide = np.arange(12, dtype=np.float32)
    out = run_graph(b.finish([y], ["y"]), {"x": wide[::2]})
    np.testing.assert_array_equal(out["y"], wide[::2][::-1])


def test_packed_constants_are_seen_in_logical_order() -> None:
    b = Builder()
    x = b.input("x", T)
    c = b.constant(DATA, "c")
    layout = blocked((6,), 0, 4)
    (y,) = b.add(ADD, [x, c])
    c.type = c.type.with_layout(layout)
    graph = replace(b.finish([y], ["y"]), constants={c: layout.pack(DATA)})
    np.testing.assert_array_equal(run_graph(graph, {"x": DATA})["y"], 2 * DATA)


def test_missing_and_mistyped_inputs_are_refused() -> None:
    b = Builder()
    graph = b.finish([b.input("x", T)])
    with pytest.raises(VerifyError, match="no value for input x"):
        run_graph(graph, {})
    with pytest.raises(VerifyError, match=r"input x: is float64\(6,\), typed f32\[6\]"):
        run_graph(graph, {"x": np.zeros(6)})
    with pytest.raises(VerifyError, match=r"input x: is float32\(5,\), typed f32\[6\]"):
        run_graph(graph, {"x": np.zeros(5, np.float32)})
