"""UNIDIRECTIONAL_SEQUENCE_LSTM."""

from __future__ import annotations

from math import prod

from mlc.errors import ImportModelError, UnsupportedError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import reshape, transpose, zeros
from mlc.frontend.common.recurrent import run_steps
from mlc.frontend.tflite.integer_lstm import IntegerLstm
from mlc.frontend.tflite.lstm import CELL_STATE, OUTPUT_STATE, PROJECTION, FloatLstm
from mlc.frontend.tflite.registry import Operator, converter
from mlc.ir.graph import Value
from mlc.ir.types import f32, i8


@converter("UNIDIRECTIONAL_SEQUENCE_LSTM", limits="floats and 8-bit integers; the state begins at zero in every run")
def lstm(ctx: Context, op: Operator) -> list[Value]:
    x = op.input(0)
    if x.type.dtype not in (f32, i8):
        raise UnsupportedError(f"an LSTM on {x.type.dtype}")
    if x.type.rank != 3:
        raise ImportModelError(f"the input has rank {x.type.rank}, 3 is needed")
    time_major = bool(op.option("time_major", False))
    x = x if time_major else transpose(ctx, x, (1, 0, 2))
    steps, batch, size = x.type.shape
    layer = FloatLstm(ctx, op) if x.type.dtype is f32 else IntegerLstm(ctx, op)
    h, c = op.input(OUTPUT_STATE, "output state"), op.input(CELL_STATE, "cell state")
    units, outputs = layer.r.type.shape
    projection = op.optional(PROJECTION)
    hidden = layer.cells if projection is None else projection.type.shape[0]
    if (layer.w.type.shape, outputs) != ((units, size), hidden):
        raise ImportModelError(f"weights {layer.w.type} and {layer.r.type} for data {x.type}")
    wanted = ((h, (batch, outputs)), (c, (batch, layer.cells)))
    if any(v.type.size != prod(shape) for v, shape in wanted):
        raise ImportModelError(f"states {h.type}, {c.type} for data {x.type} and weights {layer.r.type}")
    state = tuple(reshape(ctx, v, shape) for v, shape in wanted)
    product = layer.products(reshape(ctx, x, (steps * batch, size)))
    product = reshape(ctx, product, (steps, batch, units))
    nothing = zeros(ctx, (batch, outputs), h.type.dtype)
    history, _ = run_steps(ctx, [product], state, layer.step, nothing=nothing)
    assert history is not None
    return [history if time_major else transpose(ctx, history, (1, 0, 2))]
