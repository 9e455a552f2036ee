"""Operators of quantised networks that the elementwise table lacks.

A quantised number ``q`` with scale ``s`` and zero point ``z`` stands for ``(q - z) * s``.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, Load, binary, call, cast, const, select
from mlc.ir.graph import Attrs, FusionKind
from mlc.ir.index import Linear
from mlc.ir.types import TensorType, f32, i32, i64
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


def _infer_fixed_scale(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    check_count("fixed_scale", types, 3)
    x, multiplier, shift = types
    check(x.dtype in (i32, i64), "fixed_scale", f"x is {x.dtype}, i32 or i64 is needed")
    check(attrs["roundings"] in (1, 2), "fixed_scale", f"{attrs['roundings']} roundings")
    for what, t in (("multiplier", multiplier), ("shift", shift)):
        check(t.dtype is i32, "fixed_scale", f"the {what} is {t.dtype}, i32 is needed")
    return [TensorType(broadcast_shape("fixed_scale", *types), i32)]


def _scaled_once(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    places = cast(31 - shift, i64)
    half = binary("shl", const(1, i64), places - 1)
    return cast(binary("shr", cast(x, i64) * cast(multiplier, i64) + half, places), i32)


def _scaled_twice(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    left, right = binary("max", shift, 0), binary("max", -shift, 0)
    product = cast(binary("shl", x, left), i64) * cast(multiplier, i64)
    high = cast(binary("shr", product + (1 << 30), 31), i32)
    # halves away from zero: what is shifted out of a negative number has to be more than half
    mask = binary("shl", const(1, i32), right) - 1
    threshold = binary("shr", mask, 1) + cast(binary("lt", high, 0), i32)
    up = cast(binary("gt", binary("and", high, mask), threshold), i32)
    return binary("shr", high, right) + up


def _scaled_wide(x: Expr, multiplier: Expr, shift: Expr) -> Expr:
    # sixteen bits of the multiplier, so that products of 48-bit sums fit
    reduced = select(binary("lt", multiplier, 0x7FFF0000), binary("shr", cast(multiplier, i64) + (1 << 15), 16), 0x7FFF)
    places = cast(15 - shift, i64)
    half = binary("shl", const(1, i64), places - 1)
    return cast(binary("shr", x * reduced + half, places), i32)


@operator("fixed_scale", FusionKind.INJECTIVE, _infer_fixed_scale, elementwise=True, roundings=2)
def fixed_scale(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
    """``x * multiplier * 2**(shift - 31)`` in integers, rounded as TensorFlow Lite's kernels do. Gives i32.

    Operands broadcast: ``x``, i32 or i64; ``multiplier``, 0 or from 2**30 to 2**31 - 1; ``shift`` from -31 to 30. With
    ``roundings=1`` the product is exact, and halves go up at the end. With 2 it is rounded at its 31st place (halves
    up) and, where the shift is to the right, once more (halves away from zero); of i64 the multiplier keeps 16 bits
    then, the shift is below 15, and halves go up at the end.
    """
    shape = broadcast_shape("fixed_scale", *[TensorType(t.shape, t.dtype) for t in inputs])
    twice = _scaled_twice if inputs[0].dtype is i32 else _scaled_wide
    formula = twice if attrs["roundings"] == 2 else _scaled_once

    def element(*i: Linear) -> Expr:
        return formula(*[broadcast_load(t, i) for t in inputs])

    return [te.compute(shape, element, "fixed_scale")]
