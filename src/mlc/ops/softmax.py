"""Softmax and its logarithm, in the numerically safe form: the greatest element is taken off first.

Arithmetic is in f32 for the 16-bit floats. NaN, and an axis of only minus infinities, give NaN.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, call, cast
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import IndexLike, Var
from mlc.ir.types import TensorType
from mlc.ops._broadcast import check_count
from mlc.ops.common import check_float, normal_axis, wide
from mlc.ops.registry import operator


def _softmax_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("softmax", types, 1)
    (x,) = types
    check_float("softmax", x)
    normal_axis("softmax", attrs["axis"], x.rank)
    return [TensorType(x.shape, x.dtype)]


class _Rows:
    """``x`` seen as rows along one axis, with the statistics that both operators need."""

    def __init__(self, x: te.Tensor, axis: int) -> None:
        self.x = x
        self.axis = normal_axis("softmax", axis, x.rank)
        self.outer = x.shape[: self.axis] + x.shape[self.axis + 1 :]
        k = self._along()
        self.greatest = te.compute(
            self.outer, lambda *i: te.max_of(wide(x[self.insert(i, k)]), k), "greatest", tag="max"
        )

    def _along(self) -> Var:
        return te.reduce_axis(self.x.shape[self.axis], "r")

    def insert(self, outer: Sequence[IndexLike], at: IndexLike) -> tuple[IndexLike, ...]:
        """Position in ``x`` of element ``at`` of row ``outer``."""
        return (*outer[: self.axis], at, *outer[self.axis :])

    def row(self, at: Sequence[IndexLike]) -> tuple[IndexLike, ...]:
        """The row that position ``at`` of ``x`` lies in."""
        return (*at[: self.axis], *at[self.axis + 1 :])

    def below(self, at: Sequence[IndexLike]) -> Expr:
        """How far the element at ``at`` lies from the greatest of its row: at most 0."""
        return wide(self.x[tuple(at)]) - self.greatest[self.row(at)]

    def total(self, term: Callable[[tuple[IndexLike, ...]], Expr]) -> te.Tensor:
        """Sum of ``term(position)`` over each row."""
        k = self._along()
        return te.compute(self.outer, lambda *i: te.sum_of(term(self.insert(i, k)), k), "total", tag="sum")


@operator("softmax", FusionKind.REDUCTION, _softmax_type, axis=-1)
def softmax(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``exp(x - max(x)) / sum(exp(x - max(x)))`` along ``axis``."""
    (x,) = inputs
    rows = _Rows(x, attrs["axis"])
    powers = te.compute(x.shape, lambda *i: call("exp", rows.below(i)), "powers", tag="exp")
    total = rows.total(lambda at: powers[at])
    return [te.compute(x.shape, lambda *i: cast(powers[i] / total[rows.row(i)], x.dtype), "softmax", tag="softmax")]


@operator("log_softmax", FusionKind.REDUCTION, _softmax_type, axis=-1)
def log_softmax(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``x - max(x) - log(sum(exp(x - max(x))))`` along ``axis``."""
    (x,) = inputs
    rows = _Rows(x, attrs["axis"])
    total = rows.total(lambda at: call("exp", rows.below(at)))
    logs = te.compute(total.shape, lambda *i: call("log", total[i]), "log_total")
    return [
        te.compute(x.shape, lambda *i: cast(rows.below(i) - logs[rows.row(i)], x.dtype), "log_softmax", tag="softmax")
    ]
