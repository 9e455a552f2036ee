"""Pools and norms over windows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, zeros
from mlc.frontend.common.windows import Window, slide
from mlc.ir.graph import Value
from mlc.ir.types import i64


def pool(ctx: Context, op: str, x: Value, window: Window, **attrs: Any) -> tuple[Value, ...]:
    """A pool over ``x``, ``[n, c, …]``; negative pads cut off the ends of the input.

    Args:
        ctx: whose graph grows.
        op: the core operator.
        x: data.
        window: what slides.
        attrs: other attributes of the operator.
    Raises:
        UnsupportedError: positions are wanted where the input's ends are cut off.
    """
    shape, window = slide(ctx, x, window)
    if min(window.pads, default=0) < 0:
        # the specification's sum for SAME pads is negative where windows leave gaps: it cuts pixels off the ends. So it
        # is in onnxruntime for averages and norms; maxima, which it refuses, are no different
        if op == "max_pool_with_indices":
            raise UnsupportedError(f"positions of maxima where auto_pad cuts off the ends of the input, {window.pads}")
        rank = len(shape)
        begins = [max(0, -p) for p in window.pads[:rank]]
        begin, end = (0, 0, *begins), x.type.shape
        x = ctx.add("slice", [x], begin=begin, end=end, step=(1,) * (rank + 2))
        window = replace(window, pads=tuple(max(0, p) for p in window.pads))
    if 0 in shape:
        dtypes = (x.type.dtype, i64) if op == "max_pool_with_indices" else (x.type.dtype,)
        return tuple(zeros(ctx, (*x.type.shape[:2], *shape), dtype) for dtype in dtypes)
    return ctx.add_many(op, [x], {"kernel": window.kernel, **window.attrs, "output_shape": shape, **attrs})


def lp_norm(ctx: Context, x: Value, axes: tuple[int, ...], p: int) -> Value:
    """``sum(|x| ** p) ** (1 / p)`` over ``axes``, which stay with extent 1.

    Raises:
        ImportModelError: ``p`` is below 1.
    """
    if p < 1:
        raise ImportModelError(f"a norm of order {p}")
    if p == 2:
        return ctx.add("sqrt", [ctx.add("reduce_sum", [ctx.add("mul", [x, x])], axes=axes, keepdims=True)])
    size = ctx.add("abs", [x])
    if p == 1:
        return ctx.add("reduce_sum", [size], axes=axes, keepdims=True)
    total = ctx.add("reduce_sum", [arith(ctx, "pow", size, p)], axes=axes, keepdims=True)
    return arith(ctx, "pow", total, 1.0 / p)
