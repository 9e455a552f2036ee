"""Matrix products and general tensor contractions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from mlc.errors import VerifyError
from mlc.ir import te
from mlc.ir.expr import Expr, Load, binary, cast
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import IndexLike, Linear, as_index
from mlc.ir.types import DType, TensorType, bf16, f16, f32, i8, i32
from mlc.ops._broadcast import check_count
from mlc.ops.common import accumulator, broadcast_load, check, narrowed, product, product_type
from mlc.ops.registry import operator

_STORED = (f16, bf16, i8)  # types that are widened to f32 as they are read; see mlc.rewrite.weights


def _matmul_shape(a: Sequence[int], b: Sequence[int], attrs: Attrs) -> tuple[tuple[int, ...], int]:
    """Output shape and contracted extent."""
    check(len(a) >= 2 and len(b) >= 2, "matmul", f"operands have rank {len(a)} and {len(b)}, 2 or more is needed")
    m, k = (a[-1], a[-2]) if attrs["transpose_a"] else (a[-2], a[-1])
    k_b, n = (b[-1], b[-2]) if attrs["transpose_b"] else (b[-2], b[-1])
    check(k == k_b, "matmul", f"a is {tuple(a)} and b is {tuple(b)}: {k} columns meet {k_b} rows")
    try:
        batch = np.broadcast_shapes(tuple(a[:-2]), tuple(b[:-2]))
    except ValueError:
        raise VerifyError(f"matmul: batch axes {tuple(a[:-2])} and {tuple(b[:-2])} do not broadcast") from None
    return (*batch, m, n), k


def _sum_type(a: DType, b: DType) -> DType:
    """Element type of a product, see :func:`product_type`; weights may be stored in a smaller type than f32."""
    return f32 if a is f32 and b in _STORED else product_type("matmul", a, b)


def _matmul_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("matmul", types, 2)
    a, b = types
    shape, _ = _matmul_shape(a.shape, b.shape, attrs)
    return [TensorType(shape, _sum_type(a.dtype, b.dtype))]


@operator("matmul", FusionKind.COMPLEX, _matmul_type, transpose_a=False, transpose_b=False)
def matmul(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``out[…, i, j] = sum(a[…, i, k] * b[…, k, j] for k)``, where leading axes broadcast.

    ``transpose_*`` swaps the last two axes of an operand, each of rank 2 or more. Narrow integers give i32; 16-bit
    floats are summed in f32. A right operand of f16, bf16 or i8 is widened to the f32 of a left one.
    """
    a, b = inputs
    dtype = _sum_type(a.dtype, b.dtype)
    return [narrowed(_sums(a, b, attrs, dtype), dtype)]


def _wide_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("matmul_wide", types, 2)
    a, b = types
    check(a.dtype is b.dtype is bf16, "matmul_wide", f"operands are {a.dtype} and {b.dtype}, both must be bf16")
    return [TensorType(_matmul_shape(a.shape, b.shape, attrs)[0], f32)]


@operator("matmul_wide", FusionKind.COMPLEX, _wide_type, transpose_a=False, transpose_b=False)
def matmul_wide(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``matmul`` of bf16 whose sums stay in f32."""
    a, b = inputs
    return [_sums(a, b, attrs, f32)]


def _half_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("matmul_half", types, 2)
    a, b = types
    check(a.dtype is b.dtype is f16, "matmul_half", f"operands are {a.dtype} and {b.dtype}, both must be f16")
    return [TensorType(_matmul_shape(a.shape, b.shape, attrs)[0], f16)]


@operator("matmul_half", FusionKind.COMPLEX, _half_type, transpose_a=False, transpose_b=False)
def matmul_half(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``matmul`` of f16 whose sums are f16 as well."""
    a, b = inputs
    return [_sums(a, b, attrs, f16, f16)]


def _nibbles_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    check_count("matmul_nibbles", types, 2)
    x, w = types
    check(x.dtype is f32 and w.dtype is i8, "matmul_nibbles", f"operands are {x.dtype} and {w.dtype}, not f32 and i8")
    check(x.rank >= 2 == w.rank, "matmul_nibbles", f"operands have rank {x.rank} and {w.rank}")
    check(x.shape[-1] == 2 * w.shape[0], "matmul_nibbles", f"{x.shape[-1]} columns meet {w.shape[0]} pairs of rows")
    return [TensorType((*x.shape[:-1], w.shape[1]), f32)]


@operator("matmul_nibbles", FusionKind.COMPLEX, _nibbles_type)
def matmul_nibbles(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """``matmul`` of f32 by whole numbers of 4 bits, two rows of which are the low and the high halves of bytes.

    ``out[…, i, j] = sum(x[…, i, 2 * q] * low(w[q, j]) + x[…, i, 2 * q + 1] * high(w[q, j]) for q)``, both halves with a
    sign.
    """
    x, w = inputs
    q = te.reduce_axis(w.shape[0], "q")

    def element(*at: Linear) -> te.Reduction:
        *row, j = at
        both = cast(w[q, j], i32)
        low, high = binary("shr", binary("shl", both, 28), 28), binary("shr", both, 4)
        even, odd = as_index(q) * 2, as_index(q) * 2 + 1
        return te.sum_of(x[(*row, even)] * cast(low, f32) + x[(*row, odd)] * cast(high, f32), q)

    names = (*(f"b{d}" for d in range(x.rank - 2)), "i", "j")
    return [te.compute((*x.shape[:-1], w.shape[1]), element, "matmul", axis_names=names, tag="matmul")]


def _sums(a: te.Tensor, b: te.Tensor, attrs: Attrs, dtype: DType, sums: DType | None = None) -> te.Tensor:
    """The sums of a product, in the type in which those of ``dtype`` are kept unless ``sums`` names one."""
    shape, extent = _matmul_shape(a.shape, b.shape, attrs)
    k = te.reduce_axis(extent, "k")

    def element(*at: Linear) -> te.Reduction:
        *batch, i, j = at
        left = (k, i) if attrs["transpose_a"] else (i, k)
        right = (j, k) if attrs["transpose_b"] else (k, j)
        return te.sum_of(product(_batched(a, batch, left), _batched(b, batch, right), dtype, sums), k)

    names = (*(f"b{d}" for d in range(len(shape) - 2)), "i", "j")
    facts = {"transpose_a": bool(attrs["transpose_a"]), "transpose_b": bool(attrs["transpose_b"])}
    return te.compute(shape, element, "matmul", axis_names=names, tag="matmul", attrs=facts)


def _batched(t: te.Tensor, batch: Sequence[Linear], last: Sequence[IndexLike]) -> Load:
    # the last two indices range over whole axes: only the batch axes may have to repeat
    lead = t.rank - 2
    used = batch[len(batch) - lead :]
    return t[(*(0 if n == 1 else i for n, i in zip(t.shape[:lead], used, strict=True)), *last)]


# -- einsum -------------------------------------------------------------------------------------------------------
Labels = tuple[str, ...]


def parse_einsum(equation: str, ranks: Sequence[int]) -> tuple[list[Labels], Labels]:
    """Axis labels of every operand and of the result.

    An ellipsis becomes labels ``"…0", "…1"`` counted from its last axis, so that operands align at the right. Without
    ``->`` the result has the ellipsis and then, sorted, every letter that occurs once.

    Raises:
        VerifyError: the equation is malformed or does not fit the ranks.
    """
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    check(len(terms) == len(ranks), "einsum", f"{equation!r} has {len(terms)} operands, {len(ranks)} are given")
    operands = [_labels(equation, term, rank) for term, rank in zip(terms, ranks, strict=True)]
    hidden = max((_hidden(o) for o in operands), default=0)
    dots = tuple(f"…{d}" for d in reversed(range(hidden)))
    if not arrow:
        letters = [x for o in operands for x in o if not x.startswith("…")]
        return operands, (*dots, *sorted(x for x in set(letters) if letters.count(x) == 1))
    result = _labels(equation, right, len(right.replace("...", "")) + (hidden if "..." in right else 0))
    known = {x for o in operands for x in o}
    check(set(result) <= known, "einsum", f"{equation!r}: the result has an axis that no operand has")
    check(len(set(result)) == len(result), "einsum", f"{equation!r}: an axis occurs twice in the result")
    return operands, result


def _labels(equation: str, term: str, rank: int) -> Labels:
    before, dots, after = term.partition("...")
    check(all(x.isalpha() for x in before + after), "einsum", f"{equation!r} cannot be read")
    hidden = rank - len(before) - len(after)
    fits = hidden >= 0 if dots else hidden == 0
    check(fits, "einsum", f"{equation!r}: {term!r} does not fit an operand of rank {rank}")
    return (*before, *(f"…{d}" for d in reversed(range(hidden))), *after)


def _hidden(labels: Labels) -> int:
    return sum(x.startswith("…") for x in labels)


def _extents(equation: str, operands: Sequence[Labels], shapes: Sequence[Sequence[int]]) -> dict[str, int]:
    extents: dict[str, int] = {}
    for labels, shape in zip(operands, shapes, strict=True):
        for label, n in zip(labels, shape, strict=True):
            old = extents.setdefault(label, n)
            check(n == old or 1 in (n, old), "einsum", f"{equation!r}: axis {label} is {old} and {n}")
            extents[label] = n if old == 1 else old
    return extents


def _einsum_dtype(dtypes: Sequence[DType]) -> DType:
    check(len(dtypes) > 0, "einsum", "no operands")
    results = [product_type("einsum", dtypes[0], d) for d in dtypes[1:]]
    return results[0] if results else dtypes[0]


def _einsum_type(types: Sequence[TensorType], attrs: Attrs) -> list[TensorType]:
    dtype = _einsum_dtype([t.dtype for t in types])
    operands, result = parse_einsum(attrs["equation"], [t.rank for t in types])
    extents = _extents(attrs["equation"], operands, [t.shape for t in types])
    return [TensorType(tuple(extents[x] for x in result), dtype)]


@operator("einsum", FusionKind.COMPLEX, _einsum_type, equation=...)
def einsum(inputs: Sequence[te.Tensor], attrs: Attrs) -> list[te.Tensor]:
    """Sum of products over every axis that the result lacks; a label twice in one operand takes its diagonal.

    The product of more than two operands is one loop nest: contract pairwise where that matters.
    """
    dtype = _einsum_dtype([t.dtype for t in inputs])
    operands, result = parse_einsum(attrs["equation"], [t.rank for t in inputs])
    extents = _extents(attrs["equation"], operands, [t.shape for t in inputs])
    folded = {x: te.reduce_axis(n, _axis_name(x)) for x, n in extents.items() if x not in result}

    def element(*at: Linear) -> te.Reduction | Expr:
        index: dict[str, IndexLike] = {**folded, **dict(zip(result, at, strict=True))}
        factors = [broadcast_load(t, [index[x] for x in labels]) for t, labels in zip(inputs, operands, strict=True)]
        term = reduce(lambda a, b: product(a, b, dtype), factors[1:], cast(factors[0], accumulator(dtype)))
        return te.sum_of(term, folded.values()) if folded else term

    shape = tuple(extents[x] for x in result)
    names = [_axis_name(x) for x in result]
    y = te.compute(shape, element, "einsum", axis_names=names, tag="einsum", attrs={"equation": attrs["equation"]})
    return [narrowed(y, dtype)]


def _axis_name(label: str) -> str:
    return label.replace("…", "b")
