"""Large buffers of parallel loops."""

from __future__ import annotations

import numpy as np

from mlc.ir.expr import Load, const
from mlc.ir.index import Var, as_index
from mlc.ir.interp.loop import run_function
from mlc.ir.loop import Allocate, Buffer, For, ForKind, Function, Stmt, Store, seq
from mlc.ir.types import f32
from mlc.lower.private import spare_stack
from mlc.lower.verify import verify

OUT, X = Buffer("out", (4, 100), f32), Buffer("x", (4, 100), f32)
I, J, K = Var("i", 0, 3), Var("j", 0, 99), Var("k", 0, 99)


def kernel(scope: str = "global", kind: ForKind = ForKind.PARALLEL) -> Function:
    """``out = 2·x + 1`` by a copy of each row and a small buffer beside it."""
    row, one = Buffer("row", (100,), f32, scope), Buffer("one", (1,), f32, scope)
    i, j, k, zero = as_index(I), as_index(J), as_index(K), as_index(0)
    copy = For(J, 100, ForKind.SERIAL, Store(row, (j,), Load(X, (i, j)) * 2.0))
    use = For(K, 100, ForKind.SERIAL, Store(OUT, (i, k), Load(row, (k,)) + Load(one, (zero,))))
    inside: Stmt = Allocate(row, Allocate(one, seq([Store(one, (zero,), const(1.0, f32)), copy, use])))
    return Function("f", (X, OUT), 1, For(I, 4, kind, inside))


def check(fn: Function) -> str:
    verify(fn)
    x = np.random.default_rng(0).standard_normal((4, 100)).astype(np.float32)
    out = np.zeros_like(x)
    run_function(fn, [x, out])
    np.testing.assert_allclose(out, 2 * x + 1, rtol=1e-6)
    return repr(fn.body)


def test_what_fits_stays() -> None:
    fn = kernel()
    assert spare_stack(fn, 512) is fn
    assert spare_stack(fn) is fn


def test_the_largest_get_a_place_an_iteration() -> None:
    text = check(spare_stack(kernel(), 400))
    assert "row: f32[4,100]" in text
    assert "row[i, j]" in text
    assert text.index("row: f32[4,100]") < text.index("parallel") < text.index("one: f32[1]")


def test_where_places_for_all_are_too_many_the_loop_is_serial(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr("mlc.lower.private._ALWAYS_AFFORDABLE", 0)
    monkeypatch.setattr("mlc.lower.private._AFFORDABLE", 0)
    text = check(spare_stack(kernel(), 400))
    assert "parallel" not in text
    assert text.index("row: f32[100]") < text.index("for i")


def test_local_buffers_outside_of_parallel_loops_move_too() -> None:
    fn = kernel("local", ForKind.SERIAL)
    assert spare_stack(fn, 512) is fn
    moved = spare_stack(fn, 399)
    check(moved)
    assert isinstance(moved.body, For)
    assert isinstance(moved.body.body, Allocate)
    assert moved.body.body.buffer.scope == "global"
