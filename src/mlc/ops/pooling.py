"""Pools over sliding windows, 1 to 3 spatial axes. A pool over the whole space is a plain reduction instead.

``output_shape`` (spatial) overrides the shape that the window arithmetic gives: the last windows may hang over the
padded input, as ONNX's ``ceil_mode`` wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Expr, IndexValue, all_of, as_expr, binary, call, cast, select, within
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear, Var
from mlc.ir.types import TensorType, i32, i64
from mlc.ops._broadcast import check_count
from mlc.ops.common import check, check_float, wide
from mlc.ops.registry import operator
from mlc.ops.window import SPACE, check_window, output_extents, padded, reach, taps, window_index

_WINDOW: dict[str, Any] = {"kernel": ..., "strides": ..., "pads": ..., "dilations": ..., "output_shape": ()}


def _space(op: str, shape: Sequence[int], attrs: Attrs) -> tuple[int, ...]:
    """Spatial output shape."""
    given = tuple(attrs["output_shape"])
    return given or output_extents(op, shape[2:], attrs["kernel"], attrs["strides"], attrs["pads"], attrs["dilations"])


def _pool_type(op: str, *, floats: bool = False) -> Callable[[Sequence[TensorType], Attrs], list[TensorType]]:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
        check_count(op, types, 1)
        (x,) = types
        check(3 <= x.rank <= 5, op, f"x has rank {x.rank}, 3 to 5 are supported")
        if floats:
            check_float(op, x)
        check(x.dtype.kind != "b", op, "x is bool")
        check_window(op, x.rank - 2, attrs["kernel"], attrs["strides"], attrs["pads"], attrs["dilations"])
        check(attrs.get("p", 1) >= 1, op, f"p is {attrs.get('p')}, at least 1 is needed")
        space = _space(op, x.shape, attrs)
        check(len(space) == x.rank - 2, op, f"output_shape {space} for {x.rank - 2} spatial axes")
        check(all(n >= 1 for n in space), op, f"the output has spatial shape {space}")
        return [TensorType((*x.shape[:2], *space), x.dtype)]

    return infer


def _with_positions(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    (out,) = _pool_type("max_pool_with_indices")(types, attrs)
    return [out, TensorType(out.shape, i64)]


class _Windows:
    """The windows of one pool over ``x``."""

    def __init__(self, op: str, x: te.Tensor, attrs: Attrs, fill: float | int) -> None:
        self.x = x
        self.rank = x.rank - 2
        self.kernel, self.strides, self.dilations = attrs["kernel"], attrs["strides"], attrs["dilations"]
        self.pads = attrs["pads"]
        self.space = _space(op, x.shape, attrs)
        self.shape = (*x.shape[:2], *self.space)
        self.names = ("n", "c", *SPACE[self.rank])
        touched = reach(self.space, self.kernel, self.strides, self.dilations)
        self.data = padded(x, self.pads[: self.rank], touched, fill)
        self.over: tuple[Var, ...] = taps(self.kernel)
        self.facts = {"kernel": tuple(self.kernel), "strides": tuple(self.strides), "dilations": tuple(self.dilations)}

    def tap(self, n: Linear, c: Linear, at: Sequence[Linear]) -> Expr:
        """The element under the reduction axes ``over``."""
        return self.data[(n, c, *window_index(at, self.over, self.strides, self.dilations))]

    def place(self, at: Sequence[Linear]) -> list[Linear]:
        """Where that element lies in ``x``, which may be outside."""
        index = window_index(at, self.over, self.strides, self.dilations)
        return [i - p for i, p in zip(index, self.pads, strict=False)]

    def sums(self, term: Callable[[Expr], Expr], tag: str) -> te.Tensor:
        """Sum of ``term(element)`` over every window."""
        return te.compute(
            self.shape,
            lambda n, c, *at: te.sum_of(term(self.tap(n, c, at)), self.over),
            "window_sum", axis_names=self.names, tag=tag, attrs=self.facts,
        )  # fmt: skip


@operator("max_pool", FusionKind.REDUCTION, _pool_type("max_pool"), **_WINDOW)
def max_pool(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """The greatest element of every window; padding never wins."""
    (x,) = inputs
    w = _Windows("max_pool", x, attrs, x.dtype.min_value)
    return [
        te.compute(
            w.shape, lambda n, c, *at: te.max_of(w.tap(n, c, at), w.over), "max_pool",
            axis_names=w.names, tag="max_pool", attrs=w.facts,
        )
    ]  # fmt: skip


@operator("max_pool_with_indices", FusionKind.REDUCTION, _with_positions, **_WINDOW, column_major=False)
def max_pool_with_indices(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``max_pool`` and where each maximum lies: its flat position in ``x`` (i64), the first one on a tie.

    With ``column_major`` the spatial part of the position is counted with the first spatial axis fastest.
    """
    (x,) = inputs
    w = _Windows("max_pool_with_indices", x, attrs, x.dtype.min_value)
    space = x.shape[2:]
    size = int(np.prod(space))

    def candidate(n: Linear, c: Linear, *at: Linear) -> te.Reduction:
        inside, flat = [], Linear({}, 0)
        for i, extent in zip(w.place(at), space, strict=True):
            inside.append(within(i, 0, extent))
            flat = flat * extent + i
        # a padded tap has position -1, which loses every tie
        position = select(all_of(inside), IndexValue(flat, i64), -1)
        return te.Reduction(te.ARGMAX, (w.tap(n, c, at), position), w.over)

    best, where = te.compute_many(w.shape, candidate, "max_pool", axis_names=w.names, tag="max_pool", attrs=w.facts)

    def position(n: Linear, c: Linear, *at: Linear) -> Expr:
        spot: Expr = where[(n, c, *at)]
        if attrs["column_major"]:
            spot = _transposed_position(spot, space)
        return spot + IndexValue((n * x.shape[1] + c) * size, i64)

    return [best, te.compute(w.shape, position, "positions", axis_names=w.names)]


def _transposed_position(flat: Expr, space: Sequence[int]) -> Expr:
    """A row-major position among ``space`` counted with the first axis fastest."""
    result: Expr = as_expr(0, i64)
    rest = flat
    weight = int(np.prod(space))
    for extent in reversed(space):
        weight //= extent
        result = result + binary("mod", rest, extent) * weight
        rest = rest / extent
    return result


@operator("avg_pool", FusionKind.REDUCTION, _pool_type("avg_pool", floats=True), **_WINDOW, count_include_pad=False)
def avg_pool(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """The mean of every window: over its elements of ``x``, or with ``count_include_pad`` of ``x`` and its padding.

    What hangs over the padding is never counted; a window that touches nothing gives 0.
    """
    (x,) = inputs
    w = _Windows("avg_pool", x, attrs, 0)
    total = w.sums(wide, "avg_pool")

    def element(n: Linear, c: Linear, *at: Linear) -> Expr:
        fixed, varying = 1, None
        for d, i in enumerate(at):
            count = _count(w, d, i, bool(attrs["count_include_pad"]))
            if isinstance(count, int):
                fixed *= count
            else:
                varying = count if varying is None else varying * count
        if varying is None:
            return cast(total[(n, c, *at)] / float(fixed), x.dtype)
        return cast(total[(n, c, *at)] / cast(varying * fixed, total.dtype), x.dtype)

    return [te.compute(w.shape, element, "avg_pool", axis_names=w.names)]


def _count(w: _Windows, d: int, at: Linear, include_pad: bool) -> int | Expr:
    """Taps that count along spatial axis ``d`` for output position ``at``: a number where all positions agree."""
    kernel, stride, dilation = w.kernel[d], w.strides[d], w.dilations[d]
    before, after, extent = w.pads[d], w.pads[w.rank + d], w.x.shape[2 + d]
    lo, hi = (-before, extent + after) if include_pad else (0, extent)
    starts = np.arange(w.space[d]) * stride - before
    first = np.maximum(0, -((starts - lo) // dilation))
    last = np.minimum(kernel, -((starts - hi) // dilation))
    counts = np.maximum(1, last - first)
    if np.all(counts == counts[0]):
        return int(counts[0])
    start = at * stride - before
    begin, end = (IndexValue(-((start - edge) // dilation), i32) for edge in (lo, hi))
    taken: Expr = binary("min", end, kernel) if np.any(last == kernel) else end
    taken = taken - binary("max", begin, 0) if np.any(first > 0) else taken
    return binary("max", taken, 1) if np.any(last - first < 1) else taken


@operator("lp_pool", FusionKind.REDUCTION, _pool_type("lp_pool", floats=True), **_WINDOW, p=2)
def lp_pool(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``sum(|x| ** p) ** (1 / p)`` over every window."""
    (x,) = inputs
    p = attrs["p"]
    w = _Windows("lp_pool", x, attrs, 0)

    def power(e: Expr) -> Expr:
        v = wide(e)
        if p == 2:
            return v * v
        return call("abs", v) if p == 1 else binary("pow", call("abs", v), float(p))

    total = w.sums(power, "lp_pool")

    def element(*i: Linear) -> Expr:
        root = total[i] if p == 1 else call("sqrt", total[i]) if p == 2 else binary("pow", total[i], 1.0 / p)
        return cast(root, x.dtype)

    return [te.compute(w.shape, element, "lp_pool", axis_names=w.names)]
