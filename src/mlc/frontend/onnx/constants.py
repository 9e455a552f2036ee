"""Operators whose results are known at import: constants, shapes, ranges, fills."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil, isfinite
from typing import Any

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.axes import ints
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import need_rank, scalar
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.frontend.onnx.tensors import element_type
from mlc.ir.graph import Value

_CONSTANT_TYPES: dict[str, Callable[[Any], np.ndarray]] = {
    "value": np.asarray,
    "sparse_value": np.asarray,
    "value_float": lambda v: np.asarray(v, np.float32),
    "value_floats": lambda v: np.asarray(v, np.float32),
    "value_int": lambda v: np.asarray(v, np.int64),
    "value_ints": lambda v: np.asarray(v, np.int64),
}


@converter("Constant", limits="no strings")
def constant(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    for name, value in node.attrs.items():
        if name not in _CONSTANT_TYPES:
            raise UnsupportedError(f"attribute {name!r}: strings are not supported")
        return [ctx.constant(_CONSTANT_TYPES[name](value))]
    raise ImportModelError("a constant without a value")


@converter("Shape")
def shape_of(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    shape = inputs[0].type.shape
    # Python slices clamp exactly as the definition says
    return [ctx.constant(shape[node.attr("start", 0) : node.attr("end", len(shape))], np.int64)]


@converter("OptionalHasElement", since=15, limits="of tensors")
def optional_has_element(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.constant(np.array(any(v is not None for v in inputs)))]


@converter("OptionalGetElement", since=18, limits="of tensors")
def optional_get_element(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [inputs[0]]


@converter("Size")
def size_of(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    return [ctx.constant(inputs[0].type.size, np.int64)]


@converter("ConstantOfShape", since=9)
def constant_of_shape(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    shape = ints(ctx, inputs[0], "the shape")
    value = np.asarray(node.attr("value", np.float32(0)))
    if value.size != 1 or min(shape, default=0) < 0:
        raise ImportModelError(f"{value.size} values for the shape {list(shape)}")
    return [ctx.add("broadcast_to", [ctx.constant(value.reshape(()))], shape=shape)]


@converter("Range", since=11)
def arange(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    dtype = inputs[0].type.dtype
    start, limit, delta = (
        _scalar_of(ctx, v, what) for v, what in zip(inputs, ("start", "limit", "delta"), strict=True)
    )
    if delta == 0 or not all(isfinite(v) for v in (start, limit, delta)):
        raise ImportModelError(f"a range from {start} to {limit} by {delta}")
    if dtype.is_float:
        count = max(0, ceil((limit - start) / delta))
    else:
        count = len(range(start, limit, delta))
    # the steps are counted in 64 bits before anything is made
    ctx.check_constant((count,), 8)
    steps = np.arange(count, dtype=np.float64 if dtype.is_float else np.int64)
    return [ctx.constant((start + steps * delta).astype(dtype.numpy))]


def _scalar_of(ctx: Context, value: Value, what: str) -> Any:
    array = ctx.require_const(value, what)
    if array.size != 1:
        raise ImportModelError(f"{what} has {array.size} elements, one is needed")
    item = array.reshape(-1)[0]
    return float(item) if value.type.dtype.is_float else int(item)


@converter("EyeLike", since=9)
def eye_like(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    (x,) = inputs
    need_rank(x, "the input", 2, 2)
    code = node.attr("dtype")
    dtype = x.type.dtype if code is None else element_type(code, "attribute 'dtype'")
    ones = ctx.add("broadcast_to", [scalar(ctx, 1, dtype)], shape=x.type.shape)
    k = node.attr("k", 0)
    # what is on the k-th diagonal is neither above nor below it
    return [ctx.add("trilu", [ctx.add("trilu", [ones], upper=True, k=k)], upper=False, k=k)]
