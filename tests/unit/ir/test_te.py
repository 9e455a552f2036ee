"""Tensor expressions: building them, their order, and what the verifier refuses."""

from __future__ import annotations

import pytest

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Load, as_expr
from mlc.ir.index import Var, as_index
from mlc.ir.types import f32, i64

X = te.placeholder((4, 6), f32, "x")


def test_compute_names_axes_and_outputs() -> None:
    y = te.compute((4, 6), lambda i, j: X[i, j] + 1.0, "y", tag="bump", attrs={"by": 1})
    assert y.op is not None
    assert repr(y.op) == "y[i:4, j:6] = x[i, j] + 1.0  # bump"
    assert repr(y) == "y: f32[4,6]"
    assert (y.rank, y.size, y.op.shape, y.op.inputs) == (2, 24, (4, 6), [X])
    assert y.op.attrs == {"by": 1}


def test_axes_may_be_named() -> None:
    y = te.compute((4,), lambda r: X[r, 0], "y", axis_names=["r"])
    assert y.op is not None
    assert [a.name for a in y.op.axes] == ["r"]


def test_many_axes_get_numbered_names() -> None:
    y = te.compute((1,) * 11, lambda *ix: 1.0, "y")
    assert y.op is not None
    assert [a.name for a in y.op.axes][-3:] == ["q", "i9", "i10"]


def test_reductions_print_their_axes() -> None:
    k, l = te.reduce_axis(6, "k"), te.reduce_axis(4, "l")
    y = te.compute((), lambda: te.max_of(X[l, k], [l, k]), "y")
    assert repr(y.op) == "y[] = max(x[l, k] for l, k in (4, 6))"
    assert [str(te.prod_of(X[l, k], k).combiner), str(te.min_of(X[l, k], k).combiner)] == ["prod", "min"]


def test_several_outputs_share_a_nest() -> None:
    k = te.reduce_axis(6, "k")
    top, at = te.compute_many((4,), lambda i: te.Reduction(te.ARGMAX, (X[i, k], as_expr(k, i64)), (k,)), "best")
    assert top.op is at.op
    assert [top.name, at.name, str(at.dtype), at.which] == ["best_0", "best_1", "i64", 1]
    assert repr(top.op) == "best_0, best_1[i:4] = argmax(x[i, k], i64(k) for k in (6))"


def test_producers_come_before_users_and_once() -> None:
    a = te.compute((4, 6), lambda i, j: X[i, j], "a")
    b = te.compute((4, 6), lambda i, j: a[i, j], "b")
    c = te.compute((4, 6), lambda i, j: b[i, j] + a[i, j], "c")
    assert [op.name for op in te.topological([c, b])] == ["a", "b", "c"]
    assert te.topological([X]) == []


def test_long_chains_need_no_recursion() -> None:
    t = X
    for _ in range(3000):
        t = te.compute((4, 6), lambda i, j, t=t: t[i, j], "t")  # type: ignore[misc]
    assert len(te.topological([t])) == 3000


def test_index_of_wrong_rank_is_refused() -> None:
    with pytest.raises(VerifyError, match="x has 2 axes, indexed with 1"):
        _ = X[0]


def test_foreign_variable_is_refused() -> None:
    z = Var("z", 0, 3)
    y = te.compute((4,), lambda i: X[i, z], "y")
    with pytest.raises(VerifyError, match=r"y: \['z'\] is no axis of it, in\ny\[i:4\] = x\[i, z\]"):
        te.verify([y])


def test_access_of_wrong_rank_is_refused() -> None:
    y = te.compute((4,), lambda i: Load(X, (i,)), "y")
    with pytest.raises(VerifyError, match=r"y: x\[i\] has 1 of 2 indices"):
        te.verify([y])


@pytest.mark.parametrize("combiner, axes", [(te.SUM, ()), (None, (te.reduce_axis(3, "k"),))])
def test_combiner_without_axes_is_refused(combiner: te.Combiner | None, axes: tuple[Var, ...]) -> None:
    i = te.axis(4, "i")
    op = te.Compute("y", (i,), axes, (X[as_index(i), as_index(0)],), combiner)
    with pytest.raises(VerifyError, match="y: reduction axes and combiner must come together"):
        te.verify(te.finish(op))


def test_good_expressions_pass() -> None:
    k = te.reduce_axis(6, "k")
    te.verify([te.compute((4,), lambda i: te.sum_of(X[i, k], k), "y")])
