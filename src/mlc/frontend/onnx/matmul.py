"""Matrix products: MatMul, Gemm, Einsum and onnxruntime's FusedMatMul."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, VerifyError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import Number, arith, cast, need_rank, reshape, transpose
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import DType
from mlc.ops.matmul import parse_einsum


def product(ctx: Context, a: Value, b: Value, **transposes: bool) -> Value:
    """``a @ b`` of two tensors of rank 2 or more.

    Batches times one matrix are one large product: a schedule then tiles all rows together.
    """
    rows = a.type.shape[:-1]
    if b.type.rank == 2 and a.type.rank > 2 and prod(rows[:-1]) > 1 and not transposes.get("transpose_a"):
        y = ctx.add("matmul", [reshape(ctx, a, (prod(rows), a.type.shape[-1])), b], **transposes)
        return reshape(ctx, y, (*rows, y.type.shape[-1]))
    return ctx.add("matmul", [a, b], **transposes)


@converter("MatMul")
def matmul(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """A vector on the left is a row, on the right a column; that axis is absent from the result."""
    a, b = inputs
    left, right = need_rank(a, "A", 1), need_rank(b, "B", 1)
    row = reshape(ctx, a, (1, *a.type.shape)) if left == 1 else a
    column = reshape(ctx, b, (*b.type.shape, 1)) if right == 1 else b
    y = product(ctx, row, column)
    shape = [*y.type.shape]
    if right == 1:
        del shape[-1]
    if left == 1:
        del shape[-1 if right == 1 else -2]
    return [reshape(ctx, y, shape)]


def scaled(ctx: Context, factor: float, *operands: Value) -> list[Value]:
    """The operands with the first constant one multiplied by ``factor``, the first one if none is."""
    if factor == 1:
        return list(operands)
    known = [k for k, v in enumerate(operands) if ctx.const(v) is not None]
    at = known[0] if known else 0
    number = _factor(factor, operands[at].type.dtype)
    array = ctx.const(operands[at])
    if array is None:
        changed = arith(ctx, "mul", operands[at], number)
    else:
        changed = ctx.constant((array * np.asarray(number, array.dtype)).astype(array.dtype))
    return [changed if k == at else v for k, v in enumerate(operands)]


def _factor(factor: float, dtype: DType) -> Number:
    if dtype.is_float:
        return factor
    if factor != int(factor):
        raise ImportModelError(f"integers multiplied by {factor}")
    return int(factor)


@converter("Gemm", since=6)
def gemm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """``alpha * A' @ B' + beta * C``; ``alpha`` goes into a constant operand, else onto the product."""
    a, b, c = (*inputs, None)[:3]
    for what, v in (("A", a), ("B", b)):
        if v.type.rank != 2:
            raise ImportModelError(f"{what} has rank {v.type.rank}, 2 is needed")
    alpha, beta = node.attr("alpha", 1.0), node.attr("beta", 1.0)
    fixed = any(ctx.const(v) is not None for v in (a, b))
    if fixed:
        b, a = scaled(ctx, alpha, b, a)
    y = ctx.add("matmul", [a, b], transpose_a=bool(node.attr("transA", 0)), transpose_b=bool(node.attr("transB", 0)))
    if not fixed:
        (y,) = scaled(ctx, alpha, y)
    if c is None or beta == 0:
        return [y]
    (c,) = scaled(ctx, beta, c)
    total = ctx.add("add", [y, c])
    if total.type.shape != y.type.shape:
        raise ImportModelError(f"C has shape {c.type.shape}, the product {y.type.shape}")
    return [total]


@converter("FusedMatMul", "TransposeMatMul", domain="com.microsoft")
def fused_matmul(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """A matrix product with transposes and a factor.

    ``transBatchA`` says that the batch axes come between the two matrix axes: ``[m, batch…, k]``.
    """
    a, b = inputs[:2]
    need_rank(a, "A", 2), need_rank(b, "B", 2)
    swap = [bool(node.attr(f"trans{x}", 0)) for x in "AB"]
    a, b = (
        _batch_first(ctx, v, s) if node.attr(f"transBatch{x}", 0) else v
        for v, s, x in zip((a, b), swap, "AB", strict=True)
    )
    y = product(ctx, a, b, transpose_a=swap[0], transpose_b=swap[1])
    return scaled(ctx, node.attr("alpha", 1.0), y)


def _batch_first(ctx: Context, x: Value, swapped: bool) -> Value:
    """``[m, batch…, k]`` as ``[batch…, m, k]``."""
    rank = x.type.rank
    return transpose(ctx, x, [*range(1, rank - 1), 0, rank - 1])


# -- einsum -------------------------------------------------------------------------------------------------------
Labels = tuple[str, ...]


@converter("Einsum", since=12)
def einsum(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """Pairs of operands are contracted from left to right, each as a matrix product where it is one."""
    equation = node.attr("equation", "")
    try:
        terms, result = parse_einsum(equation, [v.type.rank for v in inputs])
    except VerifyError as error:
        raise ImportModelError(error.message) from error
    if _is_irregular(terms, inputs):
        value = ctx.add("einsum", inputs, equation=equation)
    else:
        value, labels = inputs[0], terms[0]
        for k in range(1, len(inputs)):
            later = {x for part in (result, *terms[k + 1 :]) for x in part}
            value, labels = _contract(ctx, (value, labels), (inputs[k], terms[k]), later)
        value, labels = _fold(ctx, value, labels, set(result))
        value = transpose(ctx, value, [labels.index(x) for x in result])
    # narrow integers are summed in a wider type
    return [cast(ctx, value, inputs[0].type.dtype)]


def _is_irregular(terms: Sequence[Labels], inputs: Sequence[Value]) -> bool:
    """Whether an operand has an axis twice, or an axis of extent 1 repeats against a longer one."""
    extents: dict[str, int] = {}
    for labels, v in zip(terms, inputs, strict=True):
        for label, n in zip(labels, v.type.shape, strict=True):
            if extents.setdefault(label, n) != n:
                return True
    return any(len(set(labels)) != len(labels) for labels in terms)


def _fold(ctx: Context, x: Value, labels: Labels, keep: set[str]) -> tuple[Value, Labels]:
    """``x`` summed over the axes that nobody needs."""
    gone = tuple(d for d, label in enumerate(labels) if label not in keep)
    if not gone:
        return x, labels
    return ctx.add("reduce_sum", [x], axes=gone, keepdims=False), tuple(x for x in labels if x in keep)


def _contract(
    ctx: Context, left: tuple[Value, Labels], right: tuple[Value, Labels], later: set[str]
) -> tuple[Value, Labels]:
    """Product of two operands, summed over what neither the result nor a later operand has."""
    a, a_labels = _fold(ctx, *left, later | set(right[1]))
    b, b_labels = _fold(ctx, *right, later | set(left[1]))
    both = [x for x in a_labels if x in b_labels]
    batch = [x for x in both if x in later]
    inner = [x for x in both if x not in later]
    rows = [x for x in a_labels if x not in both]
    columns = [x for x in b_labels if x not in both]
    labels = (*batch, *rows, *columns)
    extent = dict(zip((*a_labels, *b_labels), (*a.type.shape, *b.type.shape), strict=True))
    shapes = [[extent[x] for x in part] for part in (batch, rows, inner, columns)]
    if not inner:
        a = reshape(
            ctx, transpose(ctx, a, _order(a_labels, batch + rows)), [*shapes[0], *shapes[1], *[1] * len(columns)]
        )
        b = reshape(
            ctx, transpose(ctx, b, _order(b_labels, batch + columns)), [*shapes[0], *[1] * len(rows), *shapes[3]]
        )
        return ctx.add("mul", [a, b]), labels
    m, k, n = (prod(s) for s in shapes[1:])
    # a transpose of the last two axes is the product's own business
    flip_a = list(a_labels) == batch + inner + rows and bool(rows)
    flip_b = list(b_labels) == batch + columns + inner and bool(columns)
    a = transpose(ctx, a, _order(a_labels, batch + (inner + rows if flip_a else rows + inner)))
    b = transpose(ctx, b, _order(b_labels, batch + (columns + inner if flip_b else inner + columns)))
    a = reshape(ctx, a, [*shapes[0], *((k, m) if flip_a else (m, k))])
    b = reshape(ctx, b, [*shapes[0], *((n, k) if flip_b else (k, n))])
    y = product(ctx, a, b, transpose_a=flip_a, transpose_b=flip_b)
    return reshape(ctx, y, [*shapes[0], *shapes[1], *shapes[3]]), labels


def _order(labels: Labels, wanted: Sequence[str]) -> list[int]:
    return [labels.index(x) for x in wanted]
