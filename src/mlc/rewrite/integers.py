"""Products of quantised numbers, in integers.

In: a graph where ``dequantize`` and ``quantize`` say how floats are stored. Out: the same model with ``conv`` and
``matmul`` of 8-bit integers into i32 in place of products of floats::

    quantize(relu(conv(dequantize(x), dequantize(w)) + dequantize(b)))
    → cast(clip(nearest(cast(conv(pad(x, zx), w) + c) * (sx * sw / sy)) + zy, …))      c = b - zx * sum(w)

* Zero points become part of the bias: ``sum((x - zx) * w) = sum(x * w) - zx * sum(w)``, where what surrounds ``x`` is
  its zero point. Weights lose theirs where the difference still has 8 bits.
* Stored activations get the sign that the target multiplies: for unsigned bytes, ``x + 128`` for a signed ``x``. Those
  of fewer bits lose theirs in any case, and their limits stay known (:mod:`mlc.rewrite.bits`).
* Steps of the result become integers before they are limited, where all that the sums can be fits: processors narrow
  integers with saturation, and need no limits of floats.
* A bias in i32 joins the sums, limits (``relu``, ``clip``) join those of the result; other arithmetic stays as it is,
  in floats around the sums.
* What moves elements, or takes the greatest of them, works on the stored numbers.

What is left of the two operators is spelled out in arithmetic at the end, for the passes to come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.types import DType, u8
from mlc.ops import get
from mlc.rewrite.bytes import I32_MAX, Sums, cast, channel_of, moved_by, product_of_bytes, total, with_sign_of
from mlc.rewrite.rewriter import Rewriter, replay

_SAME_SCALE = 1e-5  # relative difference of scales that are computed in different orders
_ROOM = 2.0**30  # magnitude of steps from which they, moved by a zero point, may not fit an i32
_MOVES = ("reshape", "transpose", "slice", "max_pool", "channel_shuffle")  # exact, whatever is moved


def use_integers(graph: Graph, data: DType = u8) -> Graph:
    """Compute products of quantised numbers in integers, and spell out what is left of quantisation.

    Args:
        graph: floats and how they are stored.
        data: the type of activations that the target multiplies by signed weights, u8 or i8.
    """
    return replay(replay(graph, _Products(data).visit), _spelled_out)


@dataclass(frozen=True, eq=False)
class _Stored:
    """A tensor of floats as it is stored: ``(integers - zero) * scale``, both for all of it.

    Integers are bytes of the data's type; where ``bits`` are fewer, without a sign.
    """

    integers: Value
    scale: np.ndarray
    zero: int
    bits: int = 8


@dataclass(frozen=True, eq=False)
class _Scaled:
    """A tensor of floats as ``clip(sums * scale, lo, hi)``; the scale is in f32, one a channel or one for all."""

    sums: Sums
    scale: np.ndarray
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True, eq=False)
class _Total:
    """A tensor of floats as the total of two, within limits; each is stored, or sums."""

    operands: tuple[Value, Value]
    lo: float | None = None
    hi: float | None = None


@dataclass(frozen=True, eq=False)
class _Steps:
    """A tensor in steps of the scale that it will be stored with, in f32.

    Args:
        value: the steps, ``zero`` of which are a zero point's.
        zero: to be taken off, in f32.
        most: the greatest magnitude of what is left without it.
    """

    value: Value
    zero: np.ndarray
    most: float


@dataclass(frozen=True, eq=False)
class _Rounded:
    """What stored numbers were made of in f32: they are it rounded, within limits, and then moved by a zero point."""

    value: Value
    zero: int
    lo: float
    hi: float


class _Products:
    def __init__(self, data: DType) -> None:
        self.data = data
        self.sums: dict[Value, _Scaled] = {}
        self.totals: dict[Value, _Total] = {}
        self.moved: dict[Value, Value] = {}  # of a tensor of the other sign: the one that is stored
        self.rounded: dict[Value, _Rounded] = {}

    def visit(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        op = node.op
        if op is get("quantize"):
            return self._quantize(rw, node)
        if op in (get("conv"), get("matmul")):
            return self._product(rw, node)
        if op is get("add"):
            self._note_total(rw, node)
            return self._bias(rw, node)
        if op in (get("relu"), get("clip")):
            self._limit(node)
            return None
        if op in [get(name) for name in _MOVES]:
            return self._move(rw, node)
        return self._concat(rw, node) if op is get("concat") else None

    # -- what operands are ------------------------------------------------------------------------------------------
    def _is_stored(self, rw: Rewriter, v: Value) -> bool:
        """Whether activations are stored in 8 bits, with one scale for all."""
        made = rw.maker(v)
        if made is None or made.op is not get("dequantize"):
            return False
        q, scale, zero = made.inputs
        known = all(rw.constant(p) is not None and p.type.size == 1 for p in (scale, zero))
        return known and rw.constant(q) is None and _is_narrow(q.type.dtype) and q.type.shape == v.type.shape

    def _stored(self, rw: Rewriter, v: Value) -> _Stored | None:
        """How activations are stored in 8 bits, with the sign of the data."""
        if not self._is_stored(rw, v):
            return None
        made = rw.maker(v)
        assert made is not None
        scale, zero = (rw.constant(p) for p in made.inputs[1:])
        assert scale is not None
        assert zero is not None
        q = made.inputs[0]
        if q not in self.moved:
            self.moved[q] = with_sign_of(rw, q, self.data)
        dtype = q.type.dtype
        shift = int(zero.reshape(())) + moved_by(dtype, self.data)
        return _Stored(self.moved[q], scale.reshape(()), shift, dtype.bits)

    def _weights(self, rw: Rewriter, v: Value) -> tuple[np.ndarray, np.ndarray] | None:
        """Constant weights as integers without a zero point, and their scales."""
        made = rw.maker(v)
        if made is None or made.op is not get("dequantize"):
            return None
        q, scale, zero = (rw.constant(p) for p in made.inputs)
        if q is None or scale is None or zero is None or q.dtype.itemsize > 1 or q.shape != v.type.shape:
            return None
        integers = q.astype(np.int32) - zero.astype(np.int32)
        return integers, scale

    # -- operators --------------------------------------------------------------------------------------------------
    def _product(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        x, w = self._stored(rw, node.inputs[0]), self._weights(rw, node.inputs[1])
        if x is None or w is None:
            return None
        integers, scale = w
        channel, rank = channel_of(node), integers.ndim
        if any(n != 1 and d != channel for d, n in enumerate(np.broadcast_shapes(scale.shape, (1,) * rank))):
            return None
        sums = product_of_bytes(rw, node, x.integers, x.zero, integers)
        if sums is None:
            return None
        per_channel = scale.reshape(sums.offset.shape if scale.size > 1 else ())
        return [self._floats(rw, _Scaled(sums, (x.scale * per_channel).astype(np.float32)))]

    def _floats(self, rw: Rewriter, scaled: _Scaled) -> Value:
        """The tensor of floats."""
        y = rw.emit(get("mul"), [cast(rw, total(rw, scaled.sums), "f32"), rw.new_constant(scaled.scale)])
        self.sums[y] = scaled
        return y

    def _bias(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        for y, b in (node.inputs, node.inputs[::-1]):
            scaled, made = self.sums.get(y), rw.maker(b)
            if scaled is None or scaled.lo is not None or scaled.hi is not None:
                continue
            if made is None or made.op is not get("dequantize"):
                continue
            q, scale, zero = (rw.constant(p) for p in made.inputs)
            if q is None or scale is None or zero is None or zero.any() or node.outputs[0].type != y.type:
                continue
            sums = scaled.sums
            if not _along(q, sums.offset):
                continue
            if not np.allclose(scale.reshape(-1), scaled.scale.reshape(-1), _SAME_SCALE, 0):
                continue
            q = q.reshape(sums.offset.shape if q.size > 1 else ()).astype(np.int64)
            more = Sums(sums.value, sums.offset + q, sums.bound + np.abs(q))
            if more.bound.max() <= I32_MAX:
                return [self._floats(rw, replace(scaled, sums=more))]
        return None

    def _note_total(self, rw: Rewriter, node: Node) -> None:
        """Totals are kept in mind for whoever quantises them."""
        a, b = node.inputs
        known = all(self._known(rw, v) and v.type == node.outputs[0].type for v in (a, b))
        if known:
            self.totals[node.outputs[0]] = _Total((a, b))

    def _known(self, rw: Rewriter, v: Value) -> bool:
        """Whether a tensor is stored, or sums without limits."""
        sums = self.sums.get(v)
        return self._is_stored(rw, v) if sums is None else sums.lo is None and sums.hi is None

    def _limit(self, node: Node) -> None:
        """Limits are kept in mind likewise."""
        x, y = node.inputs[0], node.outputs[0]
        lo, hi = (0.0, None) if node.op is get("relu") else (node.attrs["lo"], node.attrs["hi"])
        sums, total = self.sums.get(x), self.totals.get(x)
        if sums is not None and sums.lo is None and sums.hi is None:
            self.sums[y] = replace(sums, lo=lo, hi=hi)
        elif total is not None and total.lo is None and total.hi is None:
            self.totals[y] = replace(total, lo=lo, hi=hi)

    def _quantize(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        x, scale, zero = node.inputs[0], *(rw.constant(p) for p in node.inputs[1:])
        if scale is None or zero is None or scale.size != 1 or zero.size != 1:
            return None
        dtype = node.outputs[0].type.dtype
        if not _is_narrow(dtype) or not (np.isfinite(scale).all() and scale.all()):
            return None
        z = int(zero.reshape(())) + moved_by(dtype, self.data)
        scale = scale.reshape(())
        made = rw.maker(x)
        if made is not None and made.op is get("concat") and rw.uses(x) == 1:
            # whoever makes the parts can write them in bytes
            parts = [self._quantized(rw, v, scale, z, dtype.bits) for v in made.inputs]
            y = rw.emit(get("concat"), parts, made.attrs)
        else:
            y = self._quantized(rw, x, scale, z, dtype.bits)
        q = with_sign_of(rw, y, dtype)
        self.moved[q] = y
        return [q]

    def _quantized(self, rw: Rewriter, x: Value, scale: np.ndarray, z: int, bits: int) -> Value:
        """A tensor of floats in bytes of the data's type, of which so many bits are used."""
        stored = self._stored(rw, x)
        if stored is not None and stored.zero == z and stored.scale == scale and stored.bits <= bits:
            return stored.integers
        known = self.sums.get(x) or self.totals.get(x)
        if known is None and (stored is None or not self._is_multiple(stored, scale)):
            divided = rw.emit(get("div"), [x, rw.new_constant(scale)])
            return self._narrowed(rw, _Steps(divided, np.zeros((), np.float32), inf), z, bits)
        if isinstance(known, _Total):  # each of them in steps of the result, whose zero points are taken off together
            a, b = (self._steps(rw, v, scale) for v in known.operands)
            steps = _Steps(rw.emit(get("add"), [a.value, b.value]), a.zero + b.zero, a.most + b.most)
        else:
            steps = self._steps(rw, x, scale)
        limits = (None, None) if known is None else (known.lo, known.hi)
        return self._narrowed(rw, steps, z, bits, *(_limit_in_steps(limit, scale, z) for limit in limits))

    def _is_multiple(self, stored: _Stored, scale: np.ndarray) -> bool:
        """Whether :meth:`_steps` rounds every stored number as a division by the scale does.

        There are so few that all are tried; where a processor divides, multiplying takes a tenth of the time.
        """
        least, most = self._ends(stored.bits)
        numbers = np.arange(least, most + 1, dtype=np.float32)
        near = numbers - np.float32(stored.zero)
        factor = (stored.scale / scale).astype(np.float32)
        exact = np.rint(near * stored.scale / scale)
        others = (near * factor, numbers * factor - stored.zero * factor)  # the zero point is taken off first, or last
        return all(np.array_equal(exact, np.rint(steps)) for steps in others)

    def _ends(self, bits: int) -> tuple[float, float]:
        """The least and the greatest stored number of so many bits."""
        return (self.data.min_value, self.data.max_value) if bits == self.data.bits else (0, (1 << bits) - 1)

    def _steps(self, rw: Rewriter, v: Value, scale: np.ndarray) -> _Steps:
        """Stored numbers, or sums, in steps of another scale."""
        sums = self.sums.get(v)
        if sums is not None:
            value, own, zero, bound = cast(rw, total(rw, sums.sums), "f32"), sums.scale, 0, sums.sums.bound
        else:
            stored = self._stored(rw, v)
            assert stored is not None
            value, zero = self._as_floats(rw, stored, v)
            own, bound = stored.scale, np.asarray(u8.max_value)
        factor = (own / scale).astype(np.float32)
        steps = rw.emit(get("mul"), [value, rw.new_constant(factor)])
        return _Steps(steps, zero * factor, float((bound * np.abs(factor)).max()))

    def _as_floats(self, rw: Rewriter, stored: _Stored, v: Value) -> tuple[Value, int]:
        """Stored numbers in floats, and their zero point: what they were rounded to, where nobody else reads the bytes.

        Whole numbers within limits that have not been moved by the zero point need not be moved back.
        """
        near = self.rounded.get(stored.integers)
        if near is None or rw.uses(stored.integers) > 1 or rw.uses(v) > 1:
            return cast(rw, stored.integers, "f32"), stored.zero
        whole = rw.emit(get("round"), [near.value])
        return rw.emit(get("clip"), [whole], {"lo": near.lo, "hi": near.hi}), stored.zero - near.zero

    def _narrowed(
        self, rw: Rewriter, steps: _Steps, zero: int, bits: int, lo: float | None = None, hi: float | None = None
    ) -> Value:
        """Steps as numbers of so many bits: rounded, halves to even, moved by the zero point, within limits."""
        y = steps.value
        if steps.zero.any():
            y = rw.emit(get("sub"), [y, rw.new_constant(steps.zero.astype(np.float32))])
        whole = steps.most + np.abs(steps.zero).max() < _ROOM
        near = rw.emit(get("nearest" if whole else "round"), [y])
        if zero:
            near = rw.emit(get("add"), [near, rw.new_constant(np.asarray(zero, np.int32 if whole else np.float32))])
        least, most = self._ends(bits)
        lo = float(least if lo is None else min(max(lo, least), most))
        hi = float(most if hi is None else min(max(hi, least), most))
        integers = cast(rw, rw.emit(get("clip"), [near], {"lo": lo, "hi": hi}), self.data.name)
        self.rounded[integers] = _Rounded(y, zero, lo - zero, hi - zero)
        return integers

    def _move(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        made = rw.maker(node.inputs[0])
        if made is None or made.op is not get("dequantize") or len(node.outputs) > 1:
            return None
        stored = self._stored(rw, node.inputs[0])
        if stored is not None:
            if node.op is get("max_pool") and stored.scale < 0:
                return None
            return [self._dequantized(rw, rw.emit(node.op, [stored.integers], node.attrs), stored)]
        parts = [rw.constant(p) for p in made.inputs]
        if node.op is not get("reshape") or any(p is None for p in parts):
            return None
        q, *others = (p for p in parts if p is not None)
        if any(p.size > 1 and p.shape != q.shape for p in others):
            return None
        shape = node.attrs["shape"]
        new = [q.reshape(shape), *(p.reshape(shape if p.size > 1 or q.size == 1 else ()) for p in others)]
        return [rw.emit(get("dequantize"), [rw.new_constant(p) for p in new])]

    def _concat(self, rw: Rewriter, node: Node) -> Sequence[Value] | None:
        parts = [self._stored(rw, v) for v in node.inputs]
        if len({(float(p.scale), p.zero) if p is not None else None for p in parts}) > 1 or parts[0] is None:
            return None
        joined = rw.emit(node.op, [p.integers for p in parts if p is not None], node.attrs)
        return [self._dequantized(rw, joined, parts[0])]

    def _dequantized(self, rw: Rewriter, integers: Value, like: _Stored) -> Value:
        zero = np.asarray(like.zero, self.data.numpy)
        return rw.emit(get("dequantize"), [integers, rw.new_constant(like.scale), rw.new_constant(zero)])


def _is_narrow(dtype: DType) -> bool:
    """Whether numbers fit bytes."""
    return dtype.is_int and dtype.bits <= u8.bits


def _along(q: np.ndarray, offset: np.ndarray) -> bool:
    """Whether a constant is a number a channel, or one for all."""
    return q.size == 1 or np.broadcast_shapes(q.shape, offset.shape) in (offset.shape, (1, *offset.shape))


def _limit_in_steps(limit: float | None, scale: np.ndarray, zero: int) -> float | None:
    """A limit of floats as one of stored numbers."""
    return None if limit is None else float(np.rint(np.float32(limit) / scale)) + zero


def _spelled_out(rw: Rewriter, node: Node) -> Sequence[Value] | None:
    """``quantize`` and ``dequantize`` in arithmetic, where constants can be folded and operators fused."""
    if node.op is get("quantize"):
        x, scale, zero = node.inputs
        dtype = zero.type.dtype
        steps = rw.emit(get("round"), [rw.emit(get("div"), [x, scale])])
        known = rw.constant(zero)
        if known is None or known.any():
            steps = rw.emit(get("add"), [steps, cast(rw, zero, "f32")])
        limits = {"lo": float(dtype.min_value), "hi": float(dtype.max_value)}
        return [cast(rw, rw.emit(get("clip"), [steps], limits), dtype.name)]
    if node.op is get("dequantize"):
        q, scale, zero = node.inputs
        known = rw.constant(zero)
        if known is None or known.any():
            q = rw.emit(get("sub"), [cast(rw, q, "i32"), cast(rw, zero, "i32")])
        return [rw.emit(get("mul"), [cast(rw, q, "f32"), scale])]
    return None
