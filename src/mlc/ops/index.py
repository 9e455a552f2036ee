"""Operators that read at positions computed at run time: gather and its relatives, one_hot.

A negative index counts from the end. An index that is out of range even so is clamped into it: the result is then
unspecified but memory stays safe.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, IndexValue, binary, cast, select
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear, dynamic
from mlc.ir.types import TensorType, i64
from mlc.ops._broadcast import check_axes, check_count, check_kinds
from mlc.ops.common import check
from mlc.ops.registry import operator


def from_end(index: Expr, extent: int) -> Expr:
    """``index``, or ``index + extent`` where it is negative."""
    return index if index.dtype.kind == "u" else select(binary("lt", index, 0), index + extent, index)


def position(index: Expr, extent: int) -> Linear:
    """A run-time integer as an index into an axis of ``extent``: negative from the end, clamped into range."""
    last = max(0, extent - 1)
    return dynamic(binary("min", binary("max", from_end(index, extent), 0), last), 0, last)


def _check_indices(op: str, indices: TensorType) -> None:
    check_kinds(op, indices, "iu", "indices")


def _check_not_empty(op: str, data: TensorType, axes: Sequence[int], out: Sequence[int]) -> None:
    """An empty axis can only be indexed where there is nothing to read."""
    empty = any(data.shape[a] == 0 for a in axes) and 0 not in out
    check(not empty, op, f"indexes an empty axis of {data}")


def _infer_gather(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("gather", types, 2)
    data, indices = types
    axis = attrs["axis"]
    _check_indices("gather", indices)
    check_axes("gather", [axis], data.rank)
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])
    _check_not_empty("gather", data, [axis], shape)
    return [TensorType(shape, data.dtype)]


@operator("gather", FusionKind.INJECTIVE, _infer_gather, axis=0)
def _gather(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """The slices of ``data`` along ``axis`` that ``indices`` name; its axes take the place of that one."""
    data, indices = inputs
    axis = attrs["axis"]
    shape = (*data.shape[:axis], *indices.shape, *data.shape[axis + 1 :])

    def element(*i: Linear) -> Expr:
        after = axis + indices.rank
        chosen = position(indices[i[axis:after]], data.shape[axis])
        return data[(*i[:axis], chosen, *i[after:])]

    return [te.compute(shape, element, "gather", tag="gather", attrs={"axis": axis})]


def _infer_gather_elements(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("gather_elements", types, 2)
    data, indices = types
    axis = attrs["axis"]
    _check_indices("gather_elements", indices)
    check_axes("gather_elements", [axis], data.rank)
    fits = indices.rank == data.rank and all(
        m <= n for d, (m, n) in enumerate(zip(indices.shape, data.shape, strict=True)) if d != axis
    )
    check(fits, "gather_elements", f"indices {indices} do not lie within {data}")
    _check_not_empty("gather_elements", data, [axis], indices.shape)
    return [TensorType(indices.shape, data.dtype)]


@operator("gather_elements", FusionKind.INJECTIVE, _infer_gather_elements, axis=0)
def _gather_elements(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``out[i] = data[i]`` with the coordinate along ``axis`` replaced by ``indices[i]``."""
    data, indices = inputs
    axis = attrs["axis"]

    def element(*i: Linear) -> Expr:
        return data[(*i[:axis], position(indices[i], data.shape[axis]), *i[axis + 1 :])]

    return [te.compute(indices.shape, element, "gather_elements", tag="gather")]


def gather_nd_shape(op: str, data: TensorType, indices: TensorType, batch: int) -> tuple[int, ...]:
    """Shape of what ``indices`` (coordinates along its last axis) name in ``data``.

    Raises:
        VerifyError: the shapes do not go together.
    """
    _check_indices(op, indices)
    check(indices.rank > 0, op, "indices are a scalar")
    depth = indices.shape[-1]
    check(0 <= batch < indices.rank and batch + depth <= data.rank, op, f"{batch} batch axes, {data} at {indices}")
    check(indices.shape[:batch] == data.shape[:batch], op, f"batch axes of {data} and {indices} differ")
    shape = (*indices.shape[:-1], *data.shape[batch + depth :])
    _check_not_empty(op, data, range(batch, batch + depth), shape)
    return shape


def _infer_gather_nd(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("gather_nd", types, 2)
    data, indices = types
    return [TensorType(gather_nd_shape("gather_nd", data, indices, attrs["batch_dims"]), data.dtype)]


@operator("gather_nd", FusionKind.INJECTIVE, _infer_gather_nd, batch_dims=0)
def _gather_nd(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """The slices of ``data`` at the coordinates along the last axis of ``indices``, batch axes running along."""
    data, indices = inputs
    batch, depth, outer = attrs["batch_dims"], indices.shape[-1], indices.rank - 1
    shape = (*indices.shape[:-1], *data.shape[batch + depth :])

    def element(*i: Linear) -> Expr:
        chosen = [position(indices[(*i[:outer], k)], data.shape[batch + k]) for k in range(depth)]
        return data[(*i[:batch], *chosen, *i[outer:])]

    return [te.compute(shape, element, "gather_nd", tag="gather")]


def _infer_one_hot(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("one_hot", types, 2)
    indices, values = types
    axis, depth = attrs["axis"], attrs["depth"]
    _check_indices("one_hot", indices)
    check(values.shape == (2,), "one_hot", f"values are {values}, [2] is needed")
    check(0 <= axis <= indices.rank, "one_hot", f"axis {axis} of a tensor of rank {indices.rank + 1}")
    check(depth >= 0, "one_hot", f"depth {depth}")
    return [TensorType((*indices.shape[:axis], depth, *indices.shape[axis:]), values.dtype)]


@operator("one_hot", FusionKind.INJECTIVE, _infer_one_hot, depth=..., axis=...)
def _one_hot(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``values[1]`` where the coordinate along the new ``axis`` equals the index, ``values[0]`` elsewhere.

    An index outside ``[-depth, depth)`` gives ``values[0]`` everywhere.
    """
    indices, values = inputs
    axis, depth = attrs["axis"], attrs["depth"]

    def element(*i: Linear) -> Expr:
        # in 64 bits, where no index type wraps around
        index = from_end(cast(indices[(*i[:axis], *i[axis + 1 :])], i64), depth)
        return select(binary("eq", index, IndexValue(i[axis], i64)), values[1], values[0])

    shape = (*indices.shape[:axis], depth, *indices.shape[axis:])
    return [te.compute(shape, element, "one_hot")]
