"""Reductions over whole axes: sum, mean, max, min, prod, all, any, argmax, argmin."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from mlc.ir import te
from mlc.ir.expr import Expr, IndexValue, cast
from mlc.ir.graph import Attrs, FusionKind, Operator
from mlc.ir.index import IndexLike, Var, as_index
from mlc.ir.types import DType, TensorType, i64
from mlc.ops._broadcast import check_axes, check_count, check_kinds
from mlc.ops.common import accumulator, check, narrowed
from mlc.ops.registry import register


def _reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if d in axes else n for d, n in enumerate(shape))
    return tuple(n for d, n in enumerate(shape) if d not in axes)


def _full_index(
    outer: Sequence[IndexLike], inner: Sequence[Var], axes: Sequence[int], rank: int, keepdims: bool
) -> tuple[IndexLike, ...]:
    """Index into the operand from that of the result and the reduction axes."""
    kept = iter([i for d, i in enumerate(outer) if not keepdims or d not in axes])
    reduced = dict(zip(axes, inner, strict=True))
    return tuple(reduced[d] if d in reduced else next(kept) for d in range(rank))


# name -> (combiner, kinds of operand)
_COMBINERS: dict[str, tuple[te.Combiner, str]] = {
    "reduce_sum": (te.SUM, "fiu"),
    "reduce_mean": (te.SUM, "fiu"),
    "reduce_max": (te.MAX, "fiub"),
    "reduce_min": (te.MIN, "fiub"),
    "reduce_prod": (te.PROD, "fiu"),
    "reduce_all": (te.ALL, "b"),
    "reduce_any": (te.ANY, "b"),
}


def _sum_type(name: str, dtype: DType) -> DType:
    """The type in which a reduction keeps its running value."""
    if name == "reduce_mean" and dtype.is_int and dtype.bits <= 32:
        return i64  # the sum may not fit where the mean does
    return accumulator(dtype) if name in ("reduce_sum", "reduce_mean", "reduce_prod") else dtype


def _register_reduction(name: str, combiner: te.Combiner, kinds: str) -> Operator:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
        check_count(name, types, 1)
        (x,) = types
        check_kinds(name, x, kinds)
        check_axes(name, attrs["axes"], x.rank)
        return [TensorType(_reduced_shape(x.shape, attrs["axes"], attrs["keepdims"]), x.dtype)]

    def express(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
        (x,) = inputs
        axes, keepdims = sorted(attrs["axes"]), attrs["keepdims"]
        sum_type = _sum_type(name, x.dtype)
        shape = _reduced_shape(x.shape, axes, keepdims)
        inner = [te.reduce_axis(x.shape[d], f"r{k}") for k, d in enumerate(axes)]

        def term(*i: IndexLike) -> Expr | te.Reduction:
            if any(r.hi < r.lo for r in inner):
                # nothing to fold; a loop that never runs would have to be understood by everything downstream
                return combiner.identity([sum_type])[0]
            value = cast(x[_full_index(i, inner, axes, x.rank, keepdims)], sum_type)
            return te.Reduction(combiner, (value,), tuple(inner)) if inner else value

        stage = te.compute(shape, term, combiner.name)
        if name != "reduce_mean":
            return [narrowed(stage, x.dtype)]
        count = prod(x.shape[d] for d in axes)
        return [te.compute(shape, lambda *i: cast(stage[i] / count, x.dtype), "mean")]

    attrs: dict[str, Any] = {"axes": ..., "keepdims": True}
    return register(Operator(name, FusionKind.REDUCTION, infer, express, attrs=attrs))


for _name, (_combiner, _kinds) in _COMBINERS.items():
    _register_reduction(_name, _combiner, _kinds)


def _register_arg(name: str, first: te.Combiner, last: te.Combiner) -> Operator:
    def infer(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
        check_count(name, types, 1)
        (x,) = types
        check_kinds(name, x, "fiu")
        check_axes(name, [attrs["axis"]], x.rank)
        check(x.shape[attrs["axis"]] > 0, name, f"axis {attrs['axis']} of {x} is empty")
        return [TensorType(_reduced_shape(x.shape, [attrs["axis"]], attrs["keepdims"]), i64)]

    def express(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
        (x,) = inputs
        axis, keepdims = attrs["axis"], attrs["keepdims"]
        k = te.reduce_axis(x.shape[axis], "k")

        def term(*i: IndexLike) -> te.Reduction:
            value = x[_full_index(i, [k], [axis], x.rank, keepdims)]
            combiner = last if attrs["select_last"] else first
            return te.Reduction(combiner, (value, IndexValue(as_index(k), i64)), (k,))

        _, position = te.compute_many(_reduced_shape(x.shape, [axis], keepdims), term, name)
        return [position]

    attrs: dict[str, Any] = {"axis": ..., "keepdims": True, "select_last": False}
    return register(Operator(name, FusionKind.REDUCTION, infer, express, attrs=attrs))


_register_arg("argmax", te.ARGMAX, te.ARGMAX_LAST)
_register_arg("argmin", te.ARGMIN, te.ARGMIN_LAST)
