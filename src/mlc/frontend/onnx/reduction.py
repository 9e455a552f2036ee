"""Reductions: the plain ones, those made of several operators, positions, running sums, top-k."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import normal_axes, one_int
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast, normal_axis, reshape, scalar
from mlc.frontend.onnx.axes import ints_of
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import f32, f64


class _Reduction:
    """Reduces over the axes of a node."""

    def __init__(self, ctx: Context, axes: tuple[int, ...], keepdims: bool) -> None:
        self.ctx = ctx
        self.axes = axes
        self.keepdims = keepdims

    def fold(self, op: str, x: Value, keepdims: bool | None = None) -> Value:
        """``x`` folded; itself over no axes."""
        kept = self.keepdims if keepdims is None else keepdims
        return self.ctx.add(op, [x], axes=self.axes, keepdims=kept) if self.axes else x

    def squares(self, x: Value) -> Value:
        return self.fold("reduce_sum", self.ctx.add("mul", [x, x]))


def _wide(ctx: Context, x: Value) -> Value:
    """Whatever is squared or exponentiated needs more room than 16 bits."""
    return cast(ctx, x, f32) if x.type.dtype.bits == 16 and x.type.dtype.is_float else x


def _real(ctx: Context, x: Value) -> Value:
    return x if x.type.dtype.is_float else cast(ctx, x, f64)


def _log_sum_exp(r: _Reduction, x: Value) -> Value:
    ctx, x = r.ctx, _real(r.ctx, x)
    # shifted by the maximum, so that nothing overflows; not by an infinity, which would give NaN
    most = r.fold("reduce_max", x, keepdims=True)
    shift = ctx.add("where", [ctx.add("isinf", [most]), scalar(ctx, 0, x.type.dtype), most])
    total = r.fold("reduce_sum", ctx.add("exp", [ctx.add("sub", [x, shift])]))
    return ctx.add("add", [ctx.add("log", [total]), reshape(ctx, shift, total.type.shape)])


_COMPOSED: dict[str, Callable[[_Reduction, Value], Value]] = {
    "ReduceL1": lambda r, x: r.fold("reduce_sum", r.ctx.add("abs", [x])),
    "ReduceL2": lambda r, x: r.ctx.add("sqrt", [_real(r.ctx, r.squares(x))]),
    "ReduceSumSquare": lambda r, x: r.squares(x),
    "ReduceLogSum": lambda r, x: r.ctx.add("log", [_real(r.ctx, r.fold("reduce_sum", x))]),
    "ReduceLogSumExp": _log_sum_exp,
}
_PLAIN = {
    "ReduceSum": "reduce_sum",
    "ReduceMean": "reduce_mean",
    "ReduceMax": "reduce_max",
    "ReduceMin": "reduce_min",
    "ReduceProd": "reduce_prod",
}


@converter(*_PLAIN, *_COMPOSED)
def reduction(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    axes = ints_of(ctx, node, inputs, "axes", 1)
    if not axes:
        axes = () if node.attr("noop_with_empty_axes", 0) else tuple(range(x.type.rank))
    r = _Reduction(ctx, normal_axes(axes, x.type.rank), bool(node.attr("keepdims", 1)))
    if node.op_type in _PLAIN:
        return [r.fold(_PLAIN[node.op_type], x)]
    return [cast(ctx, _COMPOSED[node.op_type](r, _wide(ctx, x)), x.type.dtype)]


@converter("ArgMax", "ArgMin")
def arg_reduction(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [
        ctx.add(
            node.op_type.lower(),
            inputs,
            axis=normal_axis(node.attr("axis", 0), inputs[0].type.rank),
            keepdims=bool(node.attr("keepdims", 1)),
            select_last=bool(node.attr("select_last_index", 0)),
        )
    ]


@converter("CumSum", "CumProd", since=11)
def cumulative(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x, axis = inputs
    return [
        ctx.add(
            node.op_type.lower(),
            [x],
            axis=normal_axis(one_int(ctx, axis, "axis"), x.type.rank),
            exclusive=bool(node.attr("exclusive", 0)),
            reverse=bool(node.attr("reverse", 0)),
        )
    ]


@converter("TopK")
def top_k(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    x = inputs[0]
    axis = normal_axis(node.attr("axis", -1), x.type.rank)
    k = node.attr("k") if node.opset < 10 else one_int(ctx, inputs[1], "K")
    if not 0 <= k <= x.type.shape[axis]:
        raise ImportModelError(f"K is {k}, axis {axis} has {x.type.shape[axis]} elements")
    largest, in_order = bool(node.attr("largest", 1)), bool(node.attr("sorted", 1))
    return [*ctx.add_many("top_k", [x], {"k": k, "axis": axis, "largest": largest, "sorted": in_order})]


@converter("Hardmax")
def hardmax(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    shape = x.type.shape
    if node.opset < 13:
        # defined on the matrix that the tensor folds to at the axis
        axis = normal_axis(node.attr("axis", 1), x.type.rank + 1)
        rows = int(np.prod(shape[:axis], dtype=object))
        x, axis = reshape(ctx, x, (rows, x.type.size // max(1, rows))), 1
    else:
        axis = normal_axis(node.attr("axis", -1), x.type.rank)
    if x.type.size == 0:
        return [reshape(ctx, x, shape)]
    first = ctx.add("argmax", [x], axis=axis, keepdims=False)
    values = ctx.constant([0, 1], x.type.dtype.numpy)
    return [reshape(ctx, ctx.add("one_hot", [first, values], depth=x.type.shape[axis], axis=axis), shape)]
