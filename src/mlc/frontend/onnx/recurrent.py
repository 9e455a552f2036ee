"""Recurrent layers: LSTM, GRU, RNN.

The products with the input are one matrix product over all time steps (two for a GRU, whose candidate is apart). What
remains of a step is a product with the state, for all gates at once, and element-by-element work: the body of a
``scan``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from mlc.errors import ImportModelError
from mlc.frontend.onnx.body import Body, Rows
from mlc.frontend.onnx.emit import arith, concat, reshape, slice_axis, split, take, transpose, zeros
from mlc.frontend.onnx.registry import Context, OnnxNode, converter
from mlc.ir.graph import Value

State = tuple[Value, ...]  # the hidden state, then the cell's, each [batch, hidden]
Function = Callable[[Value], Value]
Step = Callable[[Sequence[Value], State], State]  # what comes from the input in parts, and the state before


@dataclass(frozen=True)
class _Direction:
    """Parameters of one direction.

    Args:
        r: recurrence weights ``[gates * hidden, hidden]``.
        wb: input bias ``[gates * hidden]``.
        rb: recurrence bias of the same shape.
        peephole: ``[3 * hidden]``, ``None`` when there is none.
        functions: activations in the order of the operator's equations.
    """

    ctx: Context
    node: OnnxNode
    hidden: int
    r: Value
    wb: Value
    rb: Value
    peephole: Value | None
    functions: list[Function]

    def gates(self, x: Value, axis: int) -> list[Value]:
        """``x`` cut into one piece of ``hidden`` elements a gate."""
        return split(self.ctx, x, axis, [self.hidden] * (x.type.shape[axis] // self.hidden))

    def add(self, a: Value, b: Value) -> Value:
        return self.ctx.add("add", [a, b])

    def mul(self, a: Value, b: Value) -> Value:
        return self.ctx.add("mul", [a, b])

    def recur(self, h: Value, r: Value) -> Value:
        """``h @ r.T``."""
        return self.ctx.add("matmul", [h, r], transpose_b=True)

    def complement(self, x: Value) -> Value:
        """``1 - x``."""
        return arith(self.ctx, "sub", 1, x)


# what an operator makes of a direction: the bias that joins the input products, how many gates go in each part of
# these, and its step
Cell = Callable[[_Direction], tuple[Value, Sequence[int], Step]]


@converter("RNN", since=7)
def rnn(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    """``H = f(X W + H R + b)``."""
    return _recurrent(ctx, node, inputs, gates=1, activations=("Tanh",), cell=_rnn_cell, states=1)


def _rnn_cell(d: _Direction) -> tuple[Value, Sequence[int], Step]:
    (f,) = d.functions

    def step(parts: Sequence[Value], state: State) -> State:
        (x,) = parts
        return (f(d.add(x, d.recur(state[0], d.r))),)

    return d.add(d.wb, d.rb), (1,), step


@converter("GRU", since=7)
def gru(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    """Gates ``z`` (update), ``r`` (reset), ``h`` (hidden)."""
    return _recurrent(ctx, node, inputs, gates=3, activations=("Sigmoid", "Tanh"), cell=_gru_cell, states=1)


def _gru_cell(d: _Direction) -> tuple[Value, Sequence[int], Step]:
    f, g = d.functions
    n = d.hidden
    early = slice_axis(d.ctx, d.rb, 0, 0, 2 * n)
    late = slice_axis(d.ctx, d.rb, 0, 2 * n, 3 * n)
    linear_before_reset = bool(d.node.attr("linear_before_reset", 0))
    if linear_before_reset:
        bias = d.add(d.wb, concat(d.ctx, [early, zeros(d.ctx, (n,), d.rb.type.dtype)], 0))
    else:
        bias = d.add(d.wb, d.rb)
    r_gates, r_hidden = split(d.ctx, d.r, 0, [2 * n, n])

    def step(parts: Sequence[Value], state: State) -> State:
        (h,) = state
        to_gates, to_hidden = parts
        if linear_before_reset:
            from_gates, from_h = split(d.ctx, d.recur(h, d.r), 1, [2 * n, n])
        else:
            from_gates = d.recur(h, r_gates)
        z, r = d.gates(f(d.add(to_gates, from_gates)), 1)
        if linear_before_reset:
            inner = d.mul(r, d.add(from_h, late))
        else:
            inner = d.recur(d.mul(r, h), r_hidden)
        candidate = g(d.add(to_hidden, inner))
        return (d.add(d.mul(d.complement(z), candidate), d.mul(z, h)),)

    return bias, (2, 1), step


@converter("LSTM", since=7)
def lstm(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value | None]:
    """Gates ``i`` (input), ``o`` (output), ``f`` (forget), ``c`` (cell)."""
    return _recurrent(ctx, node, inputs, gates=4, activations=("Sigmoid", "Tanh", "Tanh"), cell=_lstm_cell, states=2)


def _lstm_cell(d: _Direction) -> tuple[Value, Sequence[int], Step]:
    f, g, h_of = d.functions
    peepholes = d.gates(d.peephole, 0) if d.peephole is not None else None
    coupled = bool(d.node.attr("input_forget", 0))

    def step(parts: Sequence[Value], state: State) -> State:
        (x,) = parts
        h, c = state
        i, o, forget, candidate = d.gates(d.add(x, d.recur(h, d.r)), 1)
        if peepholes is not None:
            i, forget = d.add(i, d.mul(peepholes[0], c)), d.add(forget, d.mul(peepholes[2], c))
        i = f(i)
        forget = d.complement(i) if coupled else f(forget)
        c = d.add(d.mul(forget, c), d.mul(i, g(candidate)))
        if peepholes is not None:
            o = d.add(o, d.mul(peepholes[1], c))
        return d.mul(f(o), h_of(c)), c

    return d.add(d.wb, d.rb), (4,), step


# -- what the three have in common --------------------------------------------------------------------------------
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
    dtype = x.type.dtype
    rows = reshape(ctx, x, (steps * batch, size))
    nothing = zeros(ctx, (batch, hidden), dtype)
    running = _running(ctx, lengths, steps)
    wanted = bool(node.outputs and node.outputs[0])
    functions = _activations(ctx, node, activations, len(backwards))
    outputs: list[Value] = []
    finals: list[State] = []
    for k, backward in enumerate(backwards):
        wb, rb = split(ctx, take(ctx, b, 0, k), 0, [gates * hidden] * 2) if b is not None else _no_bias(ctx, w)
        own = None if peephole is None else take(ctx, peephole, 0, k)
        bias, parts, step = cell(_Direction(ctx, node, hidden, take(ctx, r, 0, k), wb, rb, own, functions[k]))
        # parts of their own, so that what a step takes of them is rows in memory
        widths = [hidden * count for count in parts]
        products: list[Value] = []
        for weights, offset in zip(split(ctx, take(ctx, w, 0, k), 0, widths), split(ctx, bias, 0, widths), strict=True):
            product = ctx.add("add", [ctx.add("matmul", [rows, weights], transpose_b=True), offset])
            products.append(reshape(ctx, product, (steps, batch, product.type.shape[1])))
        state = tuple(nothing if v is None else take(ctx, v, 0, k) for v in initial)
        history, state = _steps(ctx, products, state, step, running, nothing, backward, wanted)
        finals.append(state)
        if history is not None:
            outputs.append(reshape(ctx, history, (steps, 1, batch, hidden)))
    y = concat(ctx, outputs, 1) if outputs else None
    last = [concat(ctx, [reshape(ctx, s[k], (1, batch, hidden)) for s in finals], 0) for k in range(states)]
    if batch_first:
        y = None if y is None else transpose(ctx, y, (2, 0, 1, 3))
        last = [transpose(ctx, v, (1, 0, 2)) for v in last]
    return [y, *last]


def _no_bias(ctx: Context, w: Value) -> list[Value]:
    return [zeros(ctx, w.type.shape[1:2], w.type.dtype)] * 2


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


def _running(ctx: Context, lengths: Value | None, steps: int) -> Value | None:
    """Which sequences of the batch have which steps, as ``[steps, batch, 1]``; nothing where all have all of them."""
    if lengths is None:
        return None
    known = ctx.const(lengths)
    if known is not None and np.all(known >= steps):
        return None
    times = ctx.constant(np.arange(steps), lengths.type.dtype.numpy)
    shape = (steps, lengths.type.size, 1)
    return reshape(ctx, ctx.add("gt", [lengths, reshape(ctx, times, (steps, 1))]), shape)


def _steps(
    ctx: Context,
    products: Sequence[Value],
    state: State,
    step: Step,
    running: Value | None,
    nothing: Value,
    backward: bool,
    wanted: bool,
) -> tuple[Value | None, State]:
    """Hidden states in the order of time, zero where a sequence has ended, and the last state of each sequence."""
    (steps, batch, _), (_, hidden) = products[0].type.shape, nothing.type.shape
    stacked = [*products, *([] if running is None else [running])]

    def advance(rows: Sequence[Value], before: State) -> tuple[Value, State]:
        after = step(rows[: len(products)], before)
        if running is None:
            return after[0], after
        (mask,) = rows[len(products) :]
        kept = tuple(ctx.add("where", [mask, a, b]) for a, b in zip(after, before, strict=True))
        return (ctx.add("where", [mask, after[0], nothing]) if wanted else nothing), kept

    if steps == 0:
        return (zeros(ctx, (0, batch, hidden), nothing.type.dtype) if wanted else None), state
    if steps == 1:
        row, last = advance([take(ctx, v, 0, 0) for v in stacked], state)
        return (row if wanted else None), last
    body = Body(ctx, state, [Rows(v, backward) for v in stacked])
    row, after = advance(body.rows, tuple(body.state))
    (*results,) = body.close(steps, after, [Rows(row, backward)] if wanted else [])
    return (results.pop() if wanted else None), tuple(results)


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
