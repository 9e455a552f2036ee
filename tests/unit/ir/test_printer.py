"""Text of what other tests do not print."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import Expr, as_expr, binary, call, cast, const, select, within
from mlc.ir.graph import Builder, FusionKind, Operator, Value
from mlc.ir.index import Var, as_index
from mlc.ir.loop import Stmt
from mlc.ir.printer import attr_text, expr_text, indices_text, node_text, stmt_text, value_ref
from mlc.ir.types import TensorType, boolean, f32, i32

X = te.placeholder((8,), f32, "x")
N = te.placeholder((8,), i32, "n")
I = Var("i", 0, 7)


@pytest.mark.parametrize(
    "e, text",
    [
        (const(0.1, f32), "0.1"),
        (const(1, boolean), "True"),
        (const(-3, i32), "-3"),
        (as_expr(as_index(I) * 2 + 1, i32), "i32(2*i + 1)"),
        (within(I, 0, 5), "i < 5"),
        (within(I, 5, 8), "5 <= i"),
        (within(I, 2, 5), "2 <= i < 5"),
        (X[I] + X[0] * 2, "x[i] + (x[0] * 2.0)"),
        (binary("max", X[I] + 1, 0), "max(x[i] + 1.0, 0.0)"),
        (binary("and", within(I, 2, 5), within(I, 3, 6)), "(2 <= i < 5) and (3 <= i < 6)"),
        (binary("and", N[I], N[0]), "n[i] & n[0]"),
        (binary("shl", N[I], 2), "n[i] << 2"),
        (call("exp", X[I] + 1), "exp(x[i] + 1.0)"),
        (cast(X[I], i32), "i32(x[i])"),
        (select(within(I, 2, 5), X[I], 0.0), "select(2 <= i < 5, x[i], 0.0)"),
    ],
)
def test_expressions(e: Expr, text: str) -> None:
    assert repr(e) == text


def test_unit_stride_along_the_lane_is_a_slice() -> None:
    lane = Var("l", 0, 3)
    ixs = (as_index(I), as_index(lane), as_index(I) * 4 + lane + 1, as_index(lane) * 2)
    assert indices_text(ixs, lane) == "i, 0:4, 4*i + 1:4*i + 5, 2*l"


def test_attributes() -> None:
    assert attr_text(("a", 1, (2.5, None))) == "('a', 1, (2.5, None))"
    assert attr_text(np.zeros((2, 3), np.int8)) == "array<int8[2, 3]>"


def test_odd_names_are_quoted() -> None:
    t = TensorType((), f32)
    assert [value_ref(Value(n, t)) for n in ("a/b:0", "a b", "")] == ["%a/b:0", "%'a b'", "%''"]


def test_default_attributes_are_left_out() -> None:
    op = Operator("op", FusionKind.INJECTIVE, lambda t, a: [t[0]], attrs={"a": 1, "b": np.zeros(2), "c": True})
    b = Builder()
    b.add(op, [b.input("x", TensorType((2,), f32))], {"a": 1, "b": np.zeros(2), "c": 1})
    assert node_text(b.nodes[0]) == "%op: f32[2] = op(%x, b=array<float64[2]>, c=1)"


def test_what_is_no_node_has_no_text() -> None:
    class Odd(Expr):
        pass

    class Strange(Stmt):
        pass

    with pytest.raises(TypeError, match="no text for Odd"):
        expr_text(Odd())
    with pytest.raises(TypeError, match="no text for Strange"):
        stmt_text(Strange())
