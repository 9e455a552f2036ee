"""Expressions deeper than Python's stack: printed, interpreted, lowered and compiled."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.expr import Expr, binary, call, cast, select, within
from mlc.ir.interp import run_function, run_tensors
from mlc.ir.types import f32, f64
from mlc.ir.unwind import Steps, unwind
from mlc.lower import lower
from mlc.lower.schedule import Schedule
from mlc.targets.llvm.function import emit_function
from mlc.targets.llvm.module import ModuleText

DEPTH = 5_000


def test_queries_nest_as_deep_as_memory_goes() -> None:
    def count(n: int) -> int | Steps[int, int]:
        def below() -> Steps[int, int]:
            return (yield n - 1) + 1

        return below() if n else 0

    assert unwind(20_000, count) == 20_000


def test_errors_come_through() -> None:
    def fail(n: int) -> int | Steps[int, int]:
        def below() -> Steps[int, int]:
            return (yield n - 1)

        return below() if n else 1 // 0

    with pytest.raises(ZeroDivisionError):
        unwind(3000, fail)


def chain(x: te.Tensor) -> te.Tensor:
    """Operators of every kind, each over the one before; what leaves the tensor is never chosen."""

    def element(i: te.Var) -> Expr:
        e: Expr = x[i]
        for k in range(DEPTH):
            e = (
                binary("max", e, -1.0) if k % 5 == 0
                else call("neg", e) if k % 5 == 1
                else cast(cast(e, f64), f32) if k % 5 == 2
                else select(within(i, 0, 3), x[i + 1], e) if k % 4000 == 3
                else e * 0.5 + 0.25
            )  # fmt: skip
        return e

    return te.compute(x.shape, element, "y")


def expected(x: np.ndarray) -> np.ndarray:
    e = x
    for k in range(DEPTH):
        if k % 5 == 0:
            e = np.maximum(e, -1)
        elif k % 5 == 1:
            e = -e
        elif k % 4000 == 3 and k % 5 != 2:
            e = np.where(np.arange(4) < 3, np.roll(x, -1), e)
        elif k % 5 != 2:
            e = e * np.float32(0.5) + np.float32(0.25)
    return e


@pytest.mark.parametrize("vectorized", [False, True])
def test_a_chain_of_five_thousand_operators(vectorized: bool) -> None:
    x = te.placeholder((4,), f32, "x")
    y = chain(x)
    assert repr(y.op).startswith("y[")
    array = np.float32([0.5, -2, 3, 0.125])
    (got,) = run_tensors([y], {x: array})
    np.testing.assert_allclose(got, expected(array), rtol=1e-6)
    schedule = Schedule([y])
    if vectorized:
        schedule[y].vectorize(schedule[y].axes[0])
    fn = lower(schedule, [x, y], "chain")
    out = np.zeros(4, np.float32)
    run_function(fn, [array, out])
    np.testing.assert_array_equal(out, got)
    text = ModuleText()
    emit_function(fn, text)
