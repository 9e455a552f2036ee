"""UNIDIRECTIONAL_SEQUENCE_LSTM."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, concat, reshape, split, transpose, zeros
from mlc.frontend.common.recurrent import State, run_steps
from mlc.frontend.tflite.activations import fused
from mlc.frontend.tflite.quant import dequantised
from mlc.frontend.tflite.registry import Operator, converter
from mlc.ir.graph import Value
from mlc.ir.types import f32

# positions of the operands: of each gate its weights of the input and of the state, its peephole, bias and norm
_GATES = {"i": (1, 5, 9, 12, 20), "o": (4, 8, 11, 15, 23), "f": (2, 6, 10, 13, 21), "c": (3, 7, -1, 14, 22)}
_PROJECTION, _PROJECTION_BIAS, _OUTPUT_STATE, _CELL_STATE = 16, 17, 18, 19
_NORM_EPSILON = 1e-8


class _Lstm:
    """The operands of one layer as floats, and its step.

    The gate ``i`` is left out where it is the complement of ``f``.
    """

    def __init__(self, ctx: Context, op: Operator) -> None:
        self.ctx = ctx
        self.op = op
        self.names = [n for n in _GATES if n != "i" or op.optional(_GATES["i"][0]) is not None]
        columns = {n: [self._operand(k) for k in places] for n, places in _GATES.items() if n in self.names}
        self.w = concat(ctx, [self._needed(columns[n][0], "weights") for n in self.names], 0)
        self.r = concat(ctx, [self._needed(columns[n][1], "weights") for n in self.names], 0)
        self.peephole = {n: columns[n][2] for n in self.names}
        self.bias = {n: columns[n][3] for n in self.names}
        self.norm = {n: columns[n][4] for n in self.names}
        self.cells = self.w.type.shape[0] // len(self.names)
        self.projection, self.projection_bias = self._operand(_PROJECTION), self._operand(_PROJECTION_BIAS)
        self.normed = any(v is not None for v in self.norm.values())

    def _operand(self, k: int) -> Value | None:
        value = self.op.optional(k) if k >= 0 else None
        if value is None or value.type.dtype is f32:
            return value
        if value.type.dtype.is_float:
            return cast(self.ctx, value, f32)
        return dequantised(self.ctx, value, self.op.scale_of(k))

    def _needed(self, value: Value | None, what: str) -> Value:
        if value is None:
            raise ImportModelError(f"a gate has no {what}")
        return value

    def add(self, a: Value, b: Value | None) -> Value:
        return a if b is None else self.ctx.add("add", [a, b])

    def mul(self, a: Value, b: Value) -> Value:
        return self.ctx.add("mul", [a, b])

    def all_biases(self) -> Value | None:
        """The biases of all gates, to join the products with the input; none where a norm comes in between."""
        if self.normed:
            return None
        nothing = zeros(self.ctx, (self.cells,), f32)
        return concat(self.ctx, [nothing if (b := self.bias[n]) is None else b for n in self.names], 0)

    def gate(self, name: str, z: Value, cell: Value) -> Value:
        """What goes into the activation of a gate."""
        peephole = self.peephole[name]
        if peephole is not None:
            z = self.add(z, self.mul(cell, peephole))
        if not self.normed:
            return z
        scale = self._needed(self.norm[name], "norm")
        mean = self.ctx.add("reduce_mean", [z], axes=(1,), keepdims=True)
        gap = self.ctx.add("sub", [z, mean])
        variance = self.ctx.add("reduce_mean", [self.mul(gap, gap)], axes=(1,), keepdims=True)
        inverse = self.ctx.add("rsqrt", [arith(self.ctx, "add", variance, _NORM_EPSILON)])
        return self.add(self.mul(self.mul(gap, inverse), scale), self.bias[name])

    def clipped(self, x: Value, option: str) -> Value:
        bound = float(self.op.option(option, 0.0))
        return self.ctx.add("clip", [x], lo=-bound, hi=bound) if bound > 0 else x

    def step(self, parts: Sequence[Value], state: State) -> State:
        ctx = self.ctx
        (x,), (h, c) = parts, state
        z = self.add(x, ctx.add("matmul", [h, self.r], transpose_b=True))
        pieces = dict(zip(self.names, split(ctx, z, 1, [self.cells] * len(self.names)), strict=True))
        forget = ctx.add("sigmoid", [self.gate("f", pieces["f"], c)])
        if "i" in pieces:
            take = ctx.add("sigmoid", [self.gate("i", pieces["i"], c)])
        else:
            take = arith(ctx, "sub", 1, forget)
        new = fused(ctx, self.op, self._candidate(pieces["c"]))
        c = self.clipped(self.add(self.mul(forget, c), self.mul(take, new)), "cell_clip")
        give = ctx.add("sigmoid", [self.gate("o", pieces["o"], c)])
        h = self.mul(give, fused(ctx, self.op, c))
        if self.projection is not None:
            h = self.add(ctx.add("matmul", [h, self.projection], transpose_b=True), self.projection_bias)
            h = self.clipped(h, "proj_clip")
        return h, c

    def _candidate(self, z: Value) -> Value:
        return self.gate("c", z, z)


@converter(
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
    limits="floats; weights of 8 bits as floats; the state begins at zero in every run",
)
def lstm(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    if x.type.dtype is not f32:
        raise UnsupportedError(f"an LSTM on {x.type.dtype}")
    if x.type.rank != 3:
        raise ImportModelError(f"the input has rank {x.type.rank}, 3 is needed")
    time_major = bool(op.option("time_major", False))
    x = x if time_major else transpose(ctx, x, (1, 0, 2))
    steps, batch, size = x.type.shape
    layer = _Lstm(ctx, op)
    h, c = op.input(_OUTPUT_STATE, "output state"), op.input(_CELL_STATE, "cell state")
    outputs = layer.r.type.shape[1]
    if layer.w.type.shape[1] != size or (h.type.shape, c.type.shape) != ((batch, outputs), (batch, layer.cells)):
        raise ImportModelError(f"weights {layer.w.type} and states {h.type}, {c.type} for data {x.type}")
    rows = reshape(ctx, x, (steps * batch, size))
    product = layer.add(ctx.add("matmul", [rows, layer.w], transpose_b=True), layer.all_biases())
    product = reshape(ctx, product, (steps, batch, product.type.shape[1]))
    nothing = zeros(ctx, (batch, outputs), f32)
    history, _ = run_steps(ctx, [product], (h, c), layer.step, nothing=nothing)
    assert history is not None
    return [history if time_major else transpose(ctx, history, (1, 0, 2))]
