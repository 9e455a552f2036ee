"""Operators of quantised networks that the elementwise table lacks.

A quantised number ``q`` with scale ``s`` and zero point ``z`` stands for ``(q - z) * s``.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, Load, binary, call, cast, select
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear
from mlc.ir.types import TensorType, f32, i32
from mlc.ops._broadcast import broadcast_shape, check_count, check_kinds
from mlc.ops.common import broadcast_load, check, check_same_dtype
from mlc.ops.registry import operator


def _infer_round_shift(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("round_shift", types, 2)
    check_same_dtype("round_shift", *types)
    check_kinds("round_shift", types[0], "i")
    return [TensorType(broadcast_shape("round_shift", *types), types[0].dtype)]


def _rounded(x: Load, by: Load) -> Expr:
    """Halves go up: the last bit shifted out is added, which no sum can overflow by."""
    half = binary("and", binary("shr", x, binary("max", by, 1) - 1), 1)
    return select(binary("gt", by, 0), binary("shr", x, by) + half, x)


@operator("round_shift", FusionKind.INJECTIVE, _infer_round_shift, elementwise=True)
def round_shift(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``floor(x / 2**by + 1/2)``, exact: how fixed-point hardware drops ``by`` binary places.

    Operands are signed integers of one type and broadcast; ``by`` is from 0 to the width less one.
    """
    x, by = inputs
    shape = broadcast_shape("round_shift", *[TensorType(t.shape, t.dtype) for t in inputs])

    def element(*i: Linear) -> Expr:
        return _rounded(broadcast_load(x, i), broadcast_load(by, i))

    return [te.compute(shape, element, "round_shift")]


def _check_numbers(op: str, q: TensorType, zero: TensorType, *floats: TensorType) -> None:
    check(q.dtype.is_int, op, f"numbers of {q.dtype}, integers are needed")
    check(zero.dtype is q.dtype, op, f"a zero point of {zero.dtype} for numbers of {q.dtype}")
    for t in floats:
        check(t.dtype is f32, op, f"an operand is {t.dtype}, f32 is needed")


def _infer_quantize(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("quantize", types, 3)
    x, scale, zero = types
    _check_numbers("quantize", zero, zero, x, scale)
    return [TensorType(broadcast_shape("quantize", *types), zero.dtype)]


# Neither is folded: what becomes integer arithmetic (rewrite/integers.py) is seen by them, weights above all.
@operator("quantize", FusionKind.INJECTIVE, _infer_quantize, elementwise=True, foldable=False)
def quantize(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``saturate(round(x / scale) + zero)`` in the type of the zero point, halves to even (ONNX's QuantizeLinear).

    Operands broadcast; ``x`` and ``scale`` are f32, ``zero`` an integer.
    """
    x, scale, zero = inputs
    shape = broadcast_shape("quantize", *[TensorType(t.shape, t.dtype) for t in inputs])

    def element(*i: Linear) -> Expr:
        steps = call("round", broadcast_load(x, i) / broadcast_load(scale, i))
        moved = steps + cast(broadcast_load(zero, i), f32)
        least, most = float(zero.dtype.min_value), float(zero.dtype.max_value)
        return cast(binary("min", binary("max", moved, least), most), zero.dtype)

    return [te.compute(shape, element, "quantize")]


def _infer_dequantize(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("dequantize", types, 3)
    q, scale, zero = types
    _check_numbers("dequantize", q, zero, scale)
    return [TensorType(broadcast_shape("dequantize", *types), f32)]


@operator("dequantize", FusionKind.INJECTIVE, _infer_dequantize, elementwise=True, foldable=False)
def dequantize(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``(q - zero) * scale`` in f32. Operands broadcast; ``q`` and ``zero`` are integers of one type, ``scale`` f32."""
    q, scale, zero = inputs
    shape = broadcast_shape("dequantize", *[TensorType(t.shape, t.dtype) for t in inputs])

    def element(*i: Linear) -> Expr:
        steps = cast(broadcast_load(q, i), i32) - cast(broadcast_load(zero, i), i32)
        return cast(steps, f32) * broadcast_load(scale, i)

    return [te.compute(shape, element, "dequantize")]
