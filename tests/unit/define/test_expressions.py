"""Operators made of expressions: what fusion may know of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from mlc.define.expressions import operator_of
from mlc.ir import te
from mlc.ir.expr import ExprLike
from mlc.ir.graph import FusionKind
from mlc.ir.types import f32

x = te.placeholder((4, 1), f32, "x")
row = te.placeholder((1,), f32, "row")
three = te.placeholder((3,), f32, "three")
k = te.reduce_axis(4, "k")


@pytest.mark.parametrize(
    ("shape", "element", "kind", "elementwise"),
    [
        ((4, 1), lambda i, j: x[i, j] * row[j], FusionKind.INJECTIVE, True),
        ((4, 1), lambda i, j: x[i, j] * three[0], FusionKind.INJECTIVE, False),  # no broadcast: it has other elements
        ((4, 1), lambda i, j: x[3 - i, j], FusionKind.INJECTIVE, False),
        ((4,), lambda i: x[i, 0] * 2.0, FusionKind.INJECTIVE, False),
        ((1,), lambda i: te.sum_of(x[k, 0], k), FusionKind.REDUCTION, False),
    ],
)
def test_kinds(shape: tuple[int, ...], element: Callable[..., ExprLike], kind: FusionKind, elementwise: bool) -> None:
    t = te.compute(shape, element, "t")
    assert t.op is not None
    found = operator_of(t.op)
    assert (found.kind, found.elementwise) == (kind, elementwise)
