"""QONNX: quantisation to any number of bits, as Brevitas and QKeras export it (domain ``qonnx.custom_op.general``).

``Quant`` (or ``IntQuant``) and ``BipolarQuant`` give floats, in steps of a scale; what they mean is in qonnx's
``docs/qonnx-custom-ops`` (Pappalardo et al., QONNX, arXiv:2206.07527). Where scale, zero point and width are known and
fit integers of at most 8 bits, they become ``quantize`` and ``dequantize``, of which products in integers are made
(:mod:`mlc.rewrite.integers`), and of bits (:mod:`mlc.rewrite.bits`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import cast
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import DType, f32, i2, i4, i8, u2, u4, u8

DOMAIN = "qonnx.custom_op.general"
FORMER = ("onnx.brevitas", "finn.custom_op.general")  # names that it had before
_ROUNDINGS = {"ROUND": "round", "CEIL": "ceil", "FLOOR": "floor"}
_WIDEST = 32


@dataclass(frozen=True)
class _Integers:
    """What numbers a node rounds to: integers from ``least`` to ``most``, or -1 and 1."""

    least: int
    most: int
    bipolar: bool

    @property
    def dtype(self) -> DType | None:
        """The smallest type that holds them."""
        types = (i2, i4, i8) if self.least < 0 else (u2, u4, u8)
        return next((t for t in types if t.min_value <= self.least and self.most <= t.max_value), None)


def _integers(node: OnnxNode, width: np.ndarray) -> _Integers:
    """Those of a node's attributes and width.

    Raises:
        ImportModelError: the width is no whole number of bits.
    """
    bits = float(width.reshape(-1)[0]) if width.size == 1 else 0.0
    if not 1 <= bits <= _WIDEST or bits != int(bits):
        raise ImportModelError(f"a bit width of {width.tolist()}; a whole number from 1 to {_WIDEST} is needed")
    n, signed, narrow = int(bits), bool(node.attr("signed", 1)), int(bool(node.attr("narrow", 1)))
    if signed:
        return _Integers(-(1 << (n - 1)) + narrow, (1 << (n - 1)) - 1, n == 1)
    return _Integers(0, (1 << n) - 1 - narrow, False)


def _quant(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """``(round(clip(x / scale + zero)) - zero) * scale``; of one signed bit, the sign."""
    if len(inputs) != 4 or any(v is None for v in inputs):
        given = sum(v is not None for v in inputs)
        raise ImportModelError(f"{given} inputs; data, scale, zero point and bit width are needed")
    x, scale, zero, width = inputs
    name = str(node.attr("rounding_mode", "ROUND")).upper()
    if name not in _ROUNDINGS:
        raise ImportModelError(f"rounding_mode={name!r}, there are {', '.join(_ROUNDINGS)}")
    to = _integers(node, ctx.require_const(width, "the bit width"))
    made = _in_integers(ctx, x, scale, zero, to) if name == "ROUND" else None
    if made is not None:
        return [made]
    y = ctx.add("add", [ctx.add("div", [x, scale]), zero])
    if to.bipolar:
        y = _signs(ctx, y)
    else:
        y = ctx.add(_ROUNDINGS[name], [ctx.add("clip", [y], lo=float(to.least), hi=float(to.most))])
    return [ctx.add("mul", [ctx.add("sub", [y, zero]), scale])]


def _bipolar_quant(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    """``scale`` where ``x >= 0``, else ``-scale``."""
    if len(inputs) != 2 or any(v is None for v in inputs):
        raise ImportModelError(f"{sum(v is not None for v in inputs)} inputs; data and scale are needed")
    x, scale = inputs
    made = _in_integers(ctx, x, scale, ctx.constant(np.float32(0), np.float32), _Integers(-1, 0, True))
    return [made if made is not None else ctx.add("mul", [_signs(ctx, x), scale])]


def _signs(ctx: Context, x: Value) -> Value:
    """1 where ``x >= 0``, else -1."""
    up = ctx.add("ge", [x, ctx.constant(np.float32(0), np.float32)])
    one, minus = (ctx.constant(np.float32(number), np.float32) for number in (1, -1))
    return ctx.add("where", [up, one, minus])


def _in_integers(ctx: Context, x: Value, scale: Value, zero: Value, to: _Integers) -> Value | None:
    """The same by way of stored integers; ``None`` where these would not be what the node says."""
    s, z, dtype = ctx.const(scale), ctx.const(zero), to.dtype
    if s is None or z is None or dtype is None or x.type.dtype is not f32 or s.dtype != np.float32:
        return None
    # halves are rounded before the zero point is added, which makes no difference to even ones
    if not (s > 0).all() or z.size != 1 or float(z.reshape(-1)[0]) % 2 != 0:
        return None
    shift, data = int(z.reshape(-1)[0]), ctx.const(x)
    if s.size == 1:
        s = s.reshape(())
    if to.bipolar and shift:
        return None
    if data is not None:
        steps = np.where(data >= 0, 1, -1) if to.bipolar else np.rint(np.clip(data / s + shift, to.least, to.most))
        kind = i2 if to.bipolar else dtype
        stored = ctx.constant(np.broadcast_to(steps, np.broadcast_shapes(steps.shape, s.shape)), kind.numpy)
        return _number(ctx, stored, s, shift, kind)
    if s.size != 1:
        return None
    if to.bipolar:
        # 0 and 2 with a zero point of 1, so that zeros around a feature map can be stored, too
        up = ctx.add("ge", [x, ctx.constant(np.float32(0), np.float32)])
        stored = ctx.add("shl", [cast(ctx, up, u2), ctx.constant(np.uint8(1), u2.numpy)])
        return _number(ctx, stored, s, 1, u2)
    if not dtype.min_value <= shift <= dtype.max_value:
        return None
    if (to.least, to.most) != (dtype.min_value, dtype.max_value):
        limits = {"lo": float(np.float32(to.least - shift) * s), "hi": float(np.float32(to.most - shift) * s)}
        x = ctx.add("clip", [x], **limits)
    stored = ctx.add("quantize", [x, ctx.constant(s, np.float32), ctx.constant(np.asarray(shift), dtype.numpy)])
    return _number(ctx, stored, s, shift, dtype)


def _number(ctx: Context, stored: Value, scale: np.ndarray, zero: int, dtype: DType) -> Value:
    return ctx.add(
        "dequantize", [stored, ctx.constant(scale, np.float32), ctx.constant(np.asarray(zero), dtype.numpy)]
    )  # fmt: skip


for _domain in (DOMAIN, *FORMER):
    converter("Quant", "IntQuant", domain=_domain, limits="a bit width known at import")(_quant)
    converter("BipolarQuant", domain=_domain)(_bipolar_quant)
