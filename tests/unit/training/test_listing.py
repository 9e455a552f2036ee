"""Gradients as people read them."""

from __future__ import annotations

from collections.abc import Callable

from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32, i64
from mlc.ops import get
from mlc.training.listing import gradient_text


def test_each_distinct_operator_once(golden: Callable[[str], None]) -> None:
    g = Builder("net")
    x, w = g.input("x", TensorType((4, 6), f32)), g.input("w", TensorType((6, 6), f32))
    k = g.input("k", TensorType((4,), i64))
    for layer in ("first", "second"):
        (x,) = g.add(get("matmul"), [x, w], names=["p"], sources=[layer])
        (x,) = g.add(get("tanh"), [x], names=["h"], sources=[f"{layer}.tanh"])
    (s,) = g.add(get("softmax"), [x], names=["s"], sources=["scores"])
    (t,) = g.add(get("cumprod"), [s], {"axis": 1}, names=["t"], sources=["running"])
    (r,) = g.add(get("round"), [t], names=["r"])
    g.add(get("add"), [k, k])
    golden(gradient_text(g.finish([r])))
