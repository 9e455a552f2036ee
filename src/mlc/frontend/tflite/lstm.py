"""The step of UNIDIRECTIONAL_SEQUENCE_LSTM on floats.

With weights of 8 bits, rows of the data and of the state are quantised by their own range, step by step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, need_rank, split, zeros
from mlc.frontend.common.recurrent import State
from mlc.frontend.tflite.activations import fused
from mlc.frontend.tflite.hybrid import by_own_range
from mlc.frontend.tflite.quant import dequantised, scale_of
from mlc.frontend.tflite.registry import Operator
from mlc.ir.graph import Value
from mlc.ir.types import f32, i8

# positions of the operands: of each gate its weights of the input and of the state, its peephole, bias and norm
GATES = {"i": (1, 5, 9, 12, 20), "o": (4, 8, 11, 15, 23), "f": (2, 6, 10, 13, 21), "c": (3, 7, -1, 14, 22)}
PROJECTION, PROJECTION_BIAS, OUTPUT_STATE, CELL_STATE = 16, 17, 18, 19
_NORM_EPSILON = 1e-8


def gates_of(op: Operator) -> list[str]:
    """The gates in the order of ``GATES``; ``i`` is left out where it is the complement of ``f``."""
    return [n for n in GATES if n != "i" or op.optional(GATES["i"][0]) is not None]


class _Weights:
    """A matrix that rows are multiplied by, with one scale a row where it holds integers."""

    def __init__(self, ctx: Context, op: Operator, places: Sequence[int]) -> None:
        self.ctx = ctx
        values = [op.input(k, "weights") for k in places]
        for value in values:
            need_rank(value, "a matrix of weights", 2, 2)
        self.scales: Value | None = None
        self.signed_only = not op.option("asymmetric_quantize_inputs", False)
        if all(v.type.dtype is i8 for v in values):
            each = [np.full(v.type.shape[0], scale_of(op.scale_of(k))) for v, k in zip(values, places, strict=True)]
            self.scales = ctx.constant(np.concatenate(each).astype(np.float32))
        else:
            values = [floats_of(ctx, op, k) for k in places]
        self.matrix = concat(ctx, values, 0)

    def times(self, x: Value) -> Value:
        """``x @ w.T``."""
        if self.scales is not None:
            return by_own_range(self.ctx, x, self.matrix, self.scales, signed_only=self.signed_only)
        return self.ctx.add("matmul", [x, self.matrix], transpose_b=True)


def floats_of(ctx: Context, op: Operator, k: int) -> Value:
    """An operand in f32, whatever is stored."""
    value = op.input(k)
    if value.type.dtype is f32:
        return value
    return cast(ctx, value, f32) if value.type.dtype.is_float else dequantised(ctx, value, op.scale_of(k))


class FloatLstm:
    """One layer on floats."""

    def __init__(self, ctx: Context, op: Operator) -> None:
        self.ctx = ctx
        self.op = op
        self.names = gates_of(op)
        columns = {n: [self._operand(k) for k in GATES[n][2:]] for n in self.names}
        self._from_input, self._from_state = (_Weights(ctx, op, [GATES[n][k] for n in self.names]) for k in (0, 1))
        self.w, self.r = self._from_input.matrix, self._from_state.matrix
        self.peephole, self.bias, self.norm = ({n: columns[n][k] for n in self.names} for k in range(3))
        self.cells = self.w.type.shape[0] // len(self.names)
        self.projection = None if op.optional(PROJECTION) is None else _Weights(ctx, op, [PROJECTION])
        self.projection_bias = self._operand(PROJECTION_BIAS)
        self.normed = any(v is not None for v in self.norm.values())

    def _operand(self, k: int) -> Value | None:
        return None if k < 0 or self.op.optional(k) is None else floats_of(self.ctx, self.op, k)

    def products(self, rows: Value) -> Value:
        """What all gates take from the input."""
        return self.add(self._from_input.times(rows), self._all_biases())

    def add(self, a: Value, b: Value | None) -> Value:
        return a if b is None else self.ctx.add("add", [a, b])

    def mul(self, a: Value, b: Value) -> Value:
        return self.ctx.add("mul", [a, b])

    def _all_biases(self) -> Value | None:
        """The biases of all gates, to join the products with the input; none where a norm comes in between."""
        if self.normed:
            return None
        nothing = zeros(self.ctx, (self.cells,), f32)
        return concat(self.ctx, [nothing if (b := self.bias[n]) is None else b for n in self.names], 0)

    def _gate(self, name: str, z: Value, cell: Value) -> Value:
        """What goes into the activation of a gate."""
        peephole = self.peephole[name]
        if peephole is not None:
            z = self.add(z, self.mul(cell, peephole))
        if not self.normed:
            return z
        scale = self.norm[name]
        if scale is None:
            raise ImportModelError(f"the gate {name} has no norm")
        mean = self.ctx.add("reduce_mean", [z], axes=(1,), keepdims=True)
        gap = self.ctx.add("sub", [z, mean])
        variance = self.ctx.add("reduce_mean", [self.mul(gap, gap)], axes=(1,), keepdims=True)
        inverse = self.ctx.add("rsqrt", [arith(self.ctx, "add", variance, _NORM_EPSILON)])
        return self.add(self.mul(self.mul(gap, inverse), scale), self.bias[name])

    def _clipped(self, x: Value, option: str) -> Value:
        bound = float(self.op.option(option, 0.0))
        return self.ctx.add("clip", [x], lo=-bound, hi=bound) if bound > 0 else x

    def step(self, parts: Sequence[Value], state: State) -> State:
        ctx = self.ctx
        (x,), (h, c) = parts, state
        z = self.add(x, self._from_state.times(h))
        pieces = dict(zip(self.names, split(ctx, z, 1, [self.cells] * len(self.names)), strict=True))
        forget = ctx.add("sigmoid", [self._gate("f", pieces["f"], c)])
        if "i" in pieces:
            take = ctx.add("sigmoid", [self._gate("i", pieces["i"], c)])
        else:
            take = arith(ctx, "sub", 1, forget)
        new = fused(ctx, self.op, self._candidate(pieces["c"]))
        c = self._clipped(self.add(self.mul(forget, c), self.mul(take, new)), "cell_clip")
        give = ctx.add("sigmoid", [self._gate("o", pieces["o"], c)])
        h = self.mul(give, fused(ctx, self.op, c))
        if self.projection is not None:
            h = self.add(self.projection.times(h), self.projection_bias)
            h = self._clipped(h, "proj_clip")
        return h, c

    def _candidate(self, z: Value) -> Value:
        return self._gate("c", z, z)
