"""Recurrent layers as ONNX describes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, concat, reshape, split, take, transpose, zeros
from mlc.frontend.common.recurrent import (
    Cell,
    Direction,
    Function,
    Product,
    State,
    gru_cell,
    lstm_cell,
    rnn_cell,
    run_direction,
    running_steps,
)
from mlc.frontend.onnx.quantized import DOMAIN, dynamic_quantized, quantised_product
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value
from mlc.ir.types import DType


@converter("RNN", since=7)
def rnn(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    return _recurrent(ctx, node, inputs, gates=1, activations=("Tanh",), cell=rnn_cell, states=1)


@converter("GRU", since=7)
def gru(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    cell = partial(gru_cell, linear_before_reset=bool(node.attr("linear_before_reset", 0)))
    return _recurrent(ctx, node, inputs, gates=3, activations=("Sigmoid", "Tanh"), cell=cell, states=1)


@converter("LSTM", since=7)
def lstm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    cell = partial(lstm_cell, coupled=bool(node.attr("input_forget", 0)))
    return _recurrent(ctx, node, inputs, gates=4, activations=("Sigmoid", "Tanh", "Tanh"), cell=cell, states=2)


@converter("DynamicQuantizeLSTM", domain=DOMAIN)
def dynamic_quantize_lstm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    """An LSTM with weights of 8 bits, as onnxruntime's dynamic quantisation makes it of one.

    The whole input and the state of each step are quantised as they come. The weights lie transposed to ONNX's order.
    """
    x, w, r, b, lengths, h, c, peephole, w_scale, w_zero, r_scale, r_zero = (*inputs, *[None] * 12)[:12]
    for name, value in (("W", w), ("R", r)):
        if value.type.rank != 3:
            raise ImportModelError(f"{name} has rank {value.type.rank}, 3 is needed")
    w, r = (transpose(ctx, v, (0, 2, 1)) for v in (w, r))

    def product(scales: Value, zeros: Value, k: int) -> Product:
        scale, zero = (take(ctx, v, 0, k) for v in (scales, zeros))
        return lambda rows, weights: quantised_product(
            ctx, dynamic_quantized(ctx, rows), (transpose(ctx, weights, (1, 0)), scale, zero)
        )

    cell = partial(lstm_cell, coupled=bool(node.attr("input_forget", 0)))
    return _recurrent(
        ctx, node, [x, w, r, b, lengths, h, c, peephole], gates=4, activations=("Sigmoid", "Tanh", "Tanh"), cell=cell,
        states=2, products=lambda k: (product(w_scale, w_zero, k), product(r_scale, r_zero, k)),
    )  # fmt: skip


_REVERSED = {"forward": (False,), "reverse": (True,), "bidirectional": (False, True)}


def _recurrent(
    ctx: Context,
    node: OnnxNode,
    inputs: list[Any],
    *,
    gates: int,
    activations: Sequence[str],
    cell: Cell,
    states: int,
    products: Callable[[int], tuple[Product | None, Product | None]] = lambda direction: (None, None),
) -> list[Value | None]:
    """All directions of a layer: ``[Y, Y_h]`` and the other states' last values; ``Y`` only where it is wanted."""
    x, w, r, b, lengths, *rest = (*inputs, *[None] * 8)[: 6 + states]
    initial, peephole = rest[:states], (rest[states] if len(rest) > states else None)
    direction = node.attr("direction", "forward")
    if direction not in _REVERSED:
        raise ImportModelError(f"direction is {direction!r}, it may be {', '.join(_REVERSED)}")
    backwards = _REVERSED[direction]
    batch_first = bool(node.attr("layout", 0))
    if x.type.rank != 3:
        raise ImportModelError(f"X has rank {x.type.rank}, 3 is needed")
    if batch_first:
        x = transpose(ctx, x, (1, 0, 2))
        initial = [v if v is None else transpose(ctx, v, (1, 0, 2)) for v in initial]
    steps, batch, size = x.type.shape
    hidden = _check_shapes(node, len(backwards), gates, batch, size, (w, r, b, lengths, *initial), peephole)
    running = running_steps(ctx, lengths, steps)
    wanted = bool(node.outputs and node.outputs[0])
    functions = _activations(ctx, node, activations, len(backwards))
    outputs: list[Value] = []
    finals: list[State] = []
    for k, backward in enumerate(backwards):
        wb, rb = (
            split(ctx, take(ctx, b, 0, k), 0, [gates * hidden] * 2) if b is not None else _no_bias(ctx, w, x.type.dtype)
        )
        own = None if peephole is None else take(ctx, peephole, 0, k)
        d = Direction(ctx, hidden, take(ctx, w, 0, k), take(ctx, r, 0, k), wb, rb, own, functions[k], *products(k))
        before = [None if v is None else take(ctx, v, 0, k) for v in initial]
        history, state = run_direction(d, cell, x, before, running=running, backward=backward, wanted=wanted)
        finals.append(state)
        if history is not None:
            outputs.append(reshape(ctx, history, (steps, 1, batch, hidden)))
    y = concat(ctx, outputs, 1) if outputs else None
    last = [concat(ctx, [reshape(ctx, s[k], (1, batch, hidden)) for s in finals], 0) for k in range(states)]
    if batch_first:
        y = None if y is None else transpose(ctx, y, (2, 0, 1, 3))
        last = [transpose(ctx, v, (1, 0, 2)) for v in last]
    return [y, *last]


def _no_bias(ctx: Context, w: Value, dtype: DType) -> list[Value]:
    return [zeros(ctx, w.type.shape[1:2], dtype)] * 2


def _check_shapes(
    node: OnnxNode,
    directions: int,
    gates: int,
    batch: int,
    size: int,
    operands: Sequence[Value | None],
    peephole: Value | None,
) -> int:
    """The hidden size.

    Raises:
        ImportModelError: an operand has the wrong shape.
    """
    w, r, b, lengths, *initial = operands
    assert w is not None
    assert r is not None
    hidden = r.type.shape[-1] if r.type.shape else 0
    if node.attr("hidden_size", hidden) != hidden:
        raise ImportModelError(f"hidden_size is {node.attr('hidden_size')}, R has {hidden} columns")
    wanted: list[tuple[str, Value | None, tuple[int, ...]]] = [
        ("W", w, (directions, gates * hidden, size)),
        ("R", r, (directions, gates * hidden, hidden)),
        ("B", b, (directions, 2 * gates * hidden)),
        ("sequence_lens", lengths, (batch,)),
        ("P", peephole, (directions, 3 * hidden)),
        *((f"initial_{'hc'[k]}", v, (directions, batch, hidden)) for k, v in enumerate(initial)),
    ]
    for name, value, shape in wanted:
        if value is not None and value.type.shape != shape:
            raise ImportModelError(f"{name} has shape {value.type.shape}, {shape} is needed")
    return hidden


# -- activations --------------------------------------------------------------------------------------------------
_PLAIN = ("relu", "tanh", "sigmoid", "softsign", "softplus")
_ALPHA = {"leakyrelu": ("leaky_relu", 0.01), "thresholdedrelu": ("thresholded_relu", 1.0), "elu": ("elu", 1.0)}
_ALPHA_BETA = {"affine": (1.0, 0.0), "scaledtanh": (1.0, 1.0), "hardsigmoid": (0.2, 0.5)}


def _activations(ctx: Context, node: OnnxNode, defaults: Sequence[str], directions: int) -> list[list[Function]]:
    """The activation functions of every direction; those of gates clip their argument first.

    Raises:
        ImportModelError: too few of them, or an unknown one.
    """
    names = [*(node.attr("activations") or [*defaults] * directions)]
    count = len(defaults)
    if len(names) < count * directions:
        raise ImportModelError(f"{len(names)} activations, {count * directions} are needed")
    alphas, betas = iter(node.attr("activation_alpha") or ()), iter(node.attr("activation_beta") or ())
    made = [_activation(ctx, name, alphas, betas) for name in names[: count * directions]]
    clip = node.attr("clip", 0.0)
    if clip > 0:
        # not the third one, which takes the cell: so does onnxruntime, though the definition says "of activations"
        made = [partial(_clipped, ctx, clip, f) if k % count < 2 else f for k, f in enumerate(made)]
    return [made[d * count : (d + 1) * count] for d in range(directions)]


def _clipped(ctx: Context, bound: float, function: Function, x: Value) -> Value:
    return function(ctx.add("clip", [x], lo=-bound, hi=bound))


def _activation(ctx: Context, name: str, alphas: Iterator[float], betas: Iterator[float]) -> Function:
    """One function by its ONNX name in any case; takes its parameters, where it has some, off the lists."""
    kind = name.lower()
    if kind in _PLAIN:
        return partial(_apply, ctx, kind)
    if kind in _ALPHA:
        op, default = _ALPHA[kind]
        return partial(_apply, ctx, op, alpha=next(alphas, default))
    if kind not in _ALPHA_BETA:
        raise ImportModelError(f"unknown activation {name!r}")
    alpha, beta = (next(given, default) for given, default in zip((alphas, betas), _ALPHA_BETA[kind], strict=True))
    if kind == "hardsigmoid":
        return partial(_apply, ctx, "hard_sigmoid", alpha=alpha, beta=beta)
    return partial(_affine if kind == "affine" else _scaled_tanh, ctx, alpha, beta)


def _apply(ctx: Context, op: str, x: Value, **attrs: float) -> Value:
    return ctx.add(op, [x], **attrs)


def _affine(ctx: Context, alpha: float, beta: float, x: Value) -> Value:
    return arith(ctx, "add", arith(ctx, "mul", x, alpha), beta)


def _scaled_tanh(ctx: Context, alpha: float, beta: float, x: Value) -> Value:
    return arith(ctx, "mul", ctx.add("tanh", [arith(ctx, "mul", x, beta)]), alpha)
