"""The step of UNIDIRECTIONAL_SEQUENCE_LSTM in integers: data and output of 8 bits, gates and cells of 16.

Products of the input and of the state are each brought to the scale of the gates, ``2**-12``, and saturate in 16 bits;
gates then have 15 binary places. With norms in between, products have scales of their own, which the operator's
intermediate tensors tell.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, need_rank, scalar, split
from mlc.frontend.common.recurrent import State
from mlc.frontend.tflite.fixed16 import sigmoids, tanhs
from mlc.frontend.tflite.fixedpoint import inverse_root
from mlc.frontend.tflite.lstm import CELL_STATE, GATES, OUTPUT_STATE, PROJECTION, PROJECTION_BIAS, gates_of
from mlc.frontend.tflite.quant import by_table, centred, fixed_point, power_of_two, scale_of, scaled, scaled_by, zero_of
from mlc.frontend.tflite.registry import Operator
from mlc.ir.graph import Value
from mlc.ir.types import i8, i16, i32, i64

_BITS = 3  # integer bits of what goes into gates
_PLACES = 15  # binary places of gates
_HIDDEN = 4  # the intermediate tensor that says how the state is scaled before its projection
_INTERMEDIATES = ("i", "f", "c", "o")  # whose scales the others say, where there are norms
_GUARD = 10000  # a variance of 0 counts as this times the norm's scale


class IntegerLstm:
    """One layer in integers.

    Raises:
        UnsupportedError: scales that the kernel's arithmetic does not cover.
        ImportModelError: operands or scales are missing, or of other types than the kernel takes.
    """

    def __init__(self, ctx: Context, op: Operator) -> None:
        self.ctx = ctx
        self.op = op
        self.names = gates_of(op)
        self.w, self.r = (self._joined(k) for k in (0, 1))
        self.cells = self.w.type.shape[0] // len(self.names)
        self.normed = any(op.optional(GATES[n][4]) is not None for n in self.names)
        if len(op.intermediates) != 5:
            raise ImportModelError(f"{len(op.intermediates)} intermediate tensors, 5 are needed")
        self.exponent = _power(scale_of(op.scale_of(CELL_STATE)))
        if not -15 <= self.exponent <= -9:
            raise UnsupportedError(f"a cell state at the scale 2**{self.exponent}, from 2**-15 to 2**-9 is supported")
        self._gate_table, self._new_table, self._cell_table = sigmoids(), tanhs(_BITS), tanhs(15 + self.exponent)

    # -- operands ---------------------------------------------------------------------------------------------------
    def _joined(self, k: int) -> Value:
        """The weights of all gates, of the input (``k`` 0) or of the state (1)."""
        return concat(self.ctx, [self._matrix(GATES[n][k]) for n in self.names], 0)

    def _matrix(self, k: int) -> Value:
        w = self.op.input(k, "weights")
        need_rank(w, "a matrix of weights", 2, 2)
        if w.type.dtype is not i8:
            raise UnsupportedError(f"weights are {w.type.dtype}, i8 is supported with integers")
        if zero_of(self.op.scale_of(k)):
            raise UnsupportedError("weights with a zero point")
        return w

    def _scale(self, k: int) -> np.float32:
        return np.float32(scale_of(self.op.scale_of(k)))

    def _gate_scale(self, name: str) -> np.float32:
        """Of what goes into a gate, or into its norm."""
        k = _INTERMEDIATES.index(name)
        return np.float32(scale_of(self.op.intermediate_scale(k))) if self.normed else np.float32(2.0**-12)

    def _vector(self, k: int, what: str) -> Value:
        v = self.op.input(k, what)
        if v.type.dtype is not i16 or v.type.size != self.cells:
            raise ImportModelError(f"{what}: {v.type}, {self.cells} numbers of 16 bits are needed")
        return v

    def _bias(self, k: int, count: int, *, optional: bool = False) -> Value | None:
        v = self.op.optional(k) if optional else self.op.input(k, "bias")
        if v is not None and (v.type.dtype is not i32 or v.type.size != count):
            raise ImportModelError(f"a bias of {v.type}, {count} numbers of 32 bits are needed")
        return v

    # -- one step ---------------------------------------------------------------------------------------------------
    def products(self, rows: Value) -> Value:
        """What all gates take from the input, in 16 bits."""
        data = self._times(centred(self.ctx, rows, self.op.scale_of(0)), self.w)
        if not self.normed:
            biases = [self._bias(GATES[n][3], self.cells) for n in self.names]
            data = self.ctx.add("add", [data, concat(self.ctx, [b for b in biases if b is not None], 0)])
        return self._narrow(self._at_gates(data, 0, self._scale(0)))

    def step(self, parts: Sequence[Value], state: State) -> State:
        ctx = self.ctx
        (x,), (h, c) = parts, state
        data = self._times(centred(ctx, h, self.op.scale_of(OUTPUT_STATE)), self.r)
        total = ctx.add("add", [self._at_gates(data, 1, self._scale(OUTPUT_STATE)), cast(ctx, x, i32)])
        z = self._clipped(total)
        pieces = dict(zip(self.names, split(ctx, z, 1, [self.cells] * len(self.names)), strict=True))
        forget = self._gate("f", pieces["f"], c)
        take = self._gate("i", pieces["i"], c) if "i" in pieces else arith(ctx, "sub", 32767, forget)
        new = self._gate("c", pieces["c"], c)
        kept = self._product(forget, cast(ctx, c, i32), _PLACES)
        gained = self._product(take, new, 30 + self.exponent)
        c = self._narrow(self._limited(ctx.add("add", [kept, gained]), "cell_clip", self._scale(CELL_STATE), 16))
        give = self._gate("o", pieces["o"], c)
        height = cast(ctx, by_table(ctx, c, self._cell_table), i32)
        return self._state(ctx.add("mul", [give, height])), c

    def _times(self, data: Value, weights: Value) -> Value:
        return self.ctx.add("matmul", [data, weights], transpose_b=True)

    def _at_gates(self, sums: Value, k: int, scale: np.float32) -> Value:
        """Sums of products, each gate's brought to its scale."""
        factors = [float(self._scale(GATES[n][k]) * scale / self._gate_scale(n)) for n in self.names]
        return scaled(self.ctx, sums, np.repeat(factors, self.cells).tolist(), (1, sums.type.shape[1]))

    def _gate(self, name: str, z: Value, cell: Value) -> Value:
        """A gate, with 15 binary places, in i32."""
        ctx, place = self.ctx, GATES[name][2]
        if place >= 0 and self.op.optional(place) is not None:
            product = ctx.add("mul", [cast(ctx, cell, i32), self._peephole(place, cell.type.shape)])
            factor = float(np.float32(2.0**self.exponent * float(self._scale(place)) / float(self._gate_scale(name))))
            z = self._clipped(ctx.add("add", [z, scaled(ctx, product, factor)]))
        if self.normed:
            z = self._normed(name, z)
        table = self._new_table if name == "c" else self._gate_table
        return cast(ctx, by_table(ctx, cast(ctx, z, i16), table), i32)

    def _peephole(self, k: int, shape: Sequence[int]) -> Value:
        """Weights that cells are multiplied by.

        The kernel walks over as many cells as there are outputs, sample after sample, through memory in which samples
        have as many as there are cells; so with a projection to fewer outputs it takes other weights, and leaves the
        last cells out. Where time does not come first, it does so sample by sample.
        """
        weights = cast(self.ctx, self._vector(k, "a peephole"), i32)
        outputs = self.r.type.shape[1]
        if outputs == self.cells:
            return weights
        if outputs > self.cells:
            raise UnsupportedError("peepholes with more outputs than cells, for which the kernel has no weights")
        array = self.ctx.require_const(weights, "a peephole")
        samples = shape[0] if self.op.option("time_major", False) else 1
        flat = np.zeros(samples * self.cells, np.int32)
        flat[: samples * outputs] = np.tile(array[:outputs], samples)
        return self.ctx.constant(flat.reshape(samples, self.cells))

    def _normed(self, name: str, z: Value) -> Value:
        """Rows less their mean, divided by their deviation, times weights, plus a bias; 16 bits with 12 places."""
        ctx, k = self.ctx, GATES[name][4]
        weights = cast(ctx, self._vector(k, f"the norm of the gate {name}"), i32)
        bias = self._bias(GATES[name][3], self.cells)
        assert bias is not None
        scale, count = self._scale(k), self.cells
        wide = cast(ctx, z, i64)
        total = ctx.add("reduce_sum", [wide], axes=(1,), keepdims=True)
        squares = ctx.add("reduce_sum", [ctx.add("mul", [wide, wide])], axes=(1,), keepdims=True)
        mean = arith(ctx, "div", arith(ctx, "mul", total, 1024), count)
        variance = arith(ctx, "mul", squares, (1 << 20) // count)
        variance = ctx.add("sub", [variance, ctx.add("mul", [mean, mean])])
        variance = cast(ctx, arith(ctx, "div", variance, 1 << 20), i32)
        guard = scalar(ctx, max(1, int(np.float32(_GUARD) * scale)), i32)
        variance = ctx.add("where", [arith(ctx, "lt", variance, 1), guard, variance])
        gap = ctx.add("sub", [arith(ctx, "mul", z, 1024), cast(ctx, mean, i32)])
        unit = ctx.add("fixed_scale", [gap, *inverse_root(ctx, variance)], roundings=2)
        y = cast(ctx, ctx.add("add", [ctx.add("mul", [unit, weights]), bias]), i64)
        half = ctx.add("where", [arith(ctx, "gt", y, 0), scalar(ctx, 512, i64), scalar(ctx, -512, i64)])
        y = cast(ctx, arith(ctx, "div", ctx.add("add", [y, half]), 1024), i32)
        multiplier, shift = fixed_point(float(scale))
        return self._clipped(scaled_by(ctx, y, multiplier, shift + 12))

    def _state(self, product: Value) -> Value:
        """The hidden state in 8 bits, of what gates let through with 30 binary places."""
        ctx, op = self.ctx, self.op
        hidden = op.intermediate_scale(_HIDDEN)
        scale, zero = np.float32(scale_of(hidden)), zero_of(hidden)
        y = scaled(ctx, product, float(np.float32(2.0**-15 / float(scale) * 2.0**-15)))
        if op.optional(PROJECTION) is None:
            return self._bytes(arith(ctx, "add", y, zero))
        # the zero point has the other sign where a projection follows
        weights = self._matrix(PROJECTION)
        outputs = weights.type.shape[0]
        data = cast(ctx, self._bytes(arith(ctx, "sub", y, zero)), i16)
        sums = self._times(arith(ctx, "sub", data, -zero) if zero else data, weights)
        bias = self._bias(PROJECTION_BIAS, outputs, optional=True)
        if bias is not None:
            sums = ctx.add("add", [sums, bias])
        q = op.scale_of(OUTPUT_STATE)
        y = scaled(ctx, sums, float(self._scale(PROJECTION) * scale / np.float32(scale_of(q))))
        y = ctx.add("clip", [arith(ctx, "add", y, zero_of(q))], lo=-128, hi=127)
        return cast(ctx, self._limited(y, "proj_clip", np.float32(scale_of(op.result_scale())), 8), i8)

    # -- numbers ----------------------------------------------------------------------------------------------------
    def _product(self, a: Value, b: Value, places: int) -> Value:
        """Divided by ``2**places``, halves away from zero."""
        product = self.ctx.add("mul", [a, b])
        below = cast(self.ctx, arith(self.ctx, "lt", product, 0), i32)
        return self.ctx.add("round_shift", [self.ctx.add("sub", [product, below]), scalar(self.ctx, places, i32)])

    def _clipped(self, x: Value) -> Value:
        return self.ctx.add("clip", [x], lo=-32768, hi=32767)

    def _narrow(self, x: Value) -> Value:
        return cast(self.ctx, self._clipped(x), i16)

    def _bytes(self, x: Value) -> Value:
        return cast(self.ctx, self.ctx.add("clip", [x], lo=-128, hi=127), i8)

    def _limited(self, x: Value, option: str, scale: np.float32, bits: int) -> Value:
        bound = np.float32(self.op.option(option, 0.0))
        if not bound > 0:
            return x
        most = int(min(float(bound / scale), float((1 << (bits - 1)) - 1)))
        return self.ctx.add("clip", [x], lo=-most, hi=most) if most > 0 else x


def _power(scale: float) -> int:
    """The exponent of a scale that is a power of two.

    Raises:
        UnsupportedError: it is none.
    """
    exponent = power_of_two(scale)
    if exponent is None:
        raise UnsupportedError(f"a cell state at the scale {scale}, which is no power of two")
    return exponent
