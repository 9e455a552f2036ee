"""Inlining: expressions take the place of loads."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import select, within
from mlc.ir.index import dynamic
from mlc.ir.types import f32, i64
from mlc.lower import Schedule
from mlc.lower.inline import inline

X = te.placeholder((8,), f32, "x")


def inlined(out: te.Tensor, *stages: te.Tensor) -> str:
    """The output's expression once the given stages are inlined."""
    schedule = Schedule([out])
    for t in stages:
        schedule[t].compute_inline()
    inline(schedule)
    return repr(schedule[out].op)


def test_chain_collapses_into_its_reader() -> None:
    a = te.compute((8,), lambda i: X[i] + 1.0, "a")
    b = te.compute((8,), lambda i: a[i] * 2.0, "b")
    out = te.compute((4,), lambda i: b[i * 2] - a[i], "out")
    assert inlined(out, a, b) == "out[i:4] = ((x[2*i] + 1.0) * 2.0) - (x[i] + 1.0)"
    assert inlined(out, a) == "out[i:4] = b[2*i] - (x[i] + 1.0)"


def test_reductions_read_inlined_stages() -> None:
    a = te.compute((8,), lambda i: X[i] * X[i], "a")
    k = te.reduce_axis(8, "k")
    out = te.compute((), lambda: te.sum_of(a[k], k), "out")
    assert inlined(out, a) == "out[] = sum(x[k] * x[k] for k in (8))"


def test_guards_are_kept_with_what_they_guard() -> None:
    pad = te.compute((10,), lambda i: select(within(i, 1, 9), X[i - 1], 0.0), "pad")
    out = te.compute((8,), lambda i: pad[i] + pad[i + 2], "out")
    assert inlined(out, pad) == "out[i:8] = select(1 <= i, x[i - 1], 0.0) + select(i + 2 < 9, x[i + 1], 0.0)"


def test_places_known_at_run_time_are_inlined_too() -> None:
    rows = te.placeholder((4,), i64, "rows")
    twice = te.compute((4,), lambda i: rows[i] * 2, "twice")
    out = te.compute((4,), lambda i: X[dynamic(twice[i], 0, 7)], "out")
    assert inlined(out, twice) == "out[i:4] = x[int(rows[i] * 2)]"


def test_one_of_several_outputs() -> None:
    a, b = te.compute_many((8,), lambda i: (X[i] + 1.0, X[i] + 2.0), "pair")
    out = te.compute((8,), lambda i: b[i] - a[i], "out")
    assert inlined(out, a) == "out[i:8] = (x[i] + 2.0) - (x[i] + 1.0)"
