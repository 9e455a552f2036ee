"""Recurrent layers: LSTM, GRU, RNN.

The products with the input are one matrix product over all time steps (two for a GRU, whose candidate is apart). What
remains of a step is a product with the state, for all gates at once, and element-by-element work: the body of a
``scan``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.frontend.common.body import Body, Rows
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, concat, reshape, slice_axis, split, take, zeros
from mlc.ir.graph import Value

State = tuple[Value, ...]  # the hidden state, then the cell's, each [batch, hidden]
Function = Callable[[Value], Value]
Product = Callable[[Value, Value], Value]  # of rows and weights ``[gates * hidden, columns]``: ``rows @ weights.T``
Step = Callable[[Sequence[Value], State], State]  # what comes from the input in parts, and the state before


@dataclass(frozen=True)
class Direction:
    """Parameters of one direction.

    Args:
        ctx: whose graph grows.
        hidden: units.
        w: weights of the input ``[gates * hidden, size]``.
        r: recurrence weights ``[gates * hidden, hidden]``.
        wb: input bias ``[gates * hidden]``.
        rb: recurrence bias of the same shape.
        peephole: ``[3 * hidden]``, for the gates ``i``, ``o``, ``f``; ``None`` when there is none.
        functions: activations in the order of the cell's equations.
        of_input: multiplies by ``w``; a matrix product unless given.
        of_state: multiplies by ``r``; the same.
    """

    ctx: Context
    hidden: int
    w: Value
    r: Value
    wb: Value
    rb: Value
    peephole: Value | None
    functions: list[Function]
    of_input: Product | None = None
    of_state: Product | None = None

    def gates(self, x: Value, axis: int) -> list[Value]:
        """``x`` cut into one piece of ``hidden`` elements a gate."""
        return split(self.ctx, x, axis, [self.hidden] * (x.type.shape[axis] // self.hidden))

    def add(self, a: Value, b: Value) -> Value:
        return self.ctx.add("add", [a, b])

    def mul(self, a: Value, b: Value) -> Value:
        return self.ctx.add("mul", [a, b])

    def enter(self, x: Value, w: Value) -> Value:
        """``x @ w.T``."""
        return self.of_input(x, w) if self.of_input else self.ctx.add("matmul", [x, w], transpose_b=True)

    def recur(self, h: Value, r: Value) -> Value:
        """``h @ r.T``."""
        return self.of_state(h, r) if self.of_state else self.ctx.add("matmul", [h, r], transpose_b=True)

    def complement(self, x: Value) -> Value:
        """``1 - x``."""
        return arith(self.ctx, "sub", 1, x)


# what a kind of layer makes of a direction: the bias that joins the input products, how many gates go in each part of
# these, and its step
Cell = Callable[[Direction], tuple[Value, Sequence[int], Step]]


def rnn_cell(d: Direction) -> tuple[Value, Sequence[int], Step]:
    """``H = f(X W + H R + b)``."""
    (f,) = d.functions

    def step(parts: Sequence[Value], state: State) -> State:
        (x,) = parts
        return (f(d.add(x, d.recur(state[0], d.r))),)

    return d.add(d.wb, d.rb), (1,), step


def gru_cell(d: Direction, *, linear_before_reset: bool = False) -> tuple[Value, Sequence[int], Step]:
    """Gates ``z`` (update), ``r`` (reset), ``h`` (hidden), in this order; functions ``f``, ``g``.

    ``linear_before_reset`` applies the reset gate to the product with the state rather than to the state.
    """
    f, g = d.functions
    n = d.hidden
    early = slice_axis(d.ctx, d.rb, 0, 0, 2 * n)
    late = slice_axis(d.ctx, d.rb, 0, 2 * n, 3 * n)
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


def lstm_cell(d: Direction, *, coupled: bool = False) -> tuple[Value, Sequence[int], Step]:
    """Gates ``i`` (input), ``o`` (output), ``f`` (forget), ``c`` (cell), in this order; functions ``f``, ``g``, ``h``.

    ``coupled`` makes the forget gate ``1 - i``.
    """
    f, g, h_of = d.functions
    peepholes = d.gates(d.peephole, 0) if d.peephole is not None else None

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


# -- what all layers have in common ---------------------------------------------------------------------------------
def run_direction(
    d: Direction,
    cell: Cell,
    x: Value,
    initial: Sequence[Value | None],
    *,
    running: Value | None = None,
    hold: bool = False,
    backward: bool = False,
    wanted: bool = True,
) -> tuple[Value | None, State]:
    """One direction of a layer over ``x``, ``[steps, batch, size]``.

    Args:
        d: its parameters.
        cell: the kind of layer.
        x: the input, time first.
        initial: states before the first step, each ``[batch, hidden]``; ``None`` for zeros.
        running: see :func:`running_steps`.
        hold: see :func:`run_steps`.
        backward: whether time runs from the last step to the first.
        wanted: whether the hidden states of all steps are.
    Returns:
        hidden states ``[steps, batch, hidden]`` in the order of time (``None`` unless wanted), and the last states.
    """
    ctx, (steps, batch, size) = d.ctx, x.type.shape
    nothing = zeros(ctx, (batch, d.hidden), x.type.dtype)
    rows = reshape(ctx, x, (steps * batch, size))
    bias, parts, step = cell(d)
    # parts of their own, so that what a step takes of them is rows in memory
    widths = [d.hidden * count for count in parts]
    products: list[Value] = []
    for weights, offset in zip(split(ctx, d.w, 0, widths), split(ctx, bias, 0, widths), strict=True):
        product = ctx.add("add", [d.enter(rows, weights), offset])
        products.append(reshape(ctx, product, (steps, batch, product.type.shape[1])))
    state = tuple(nothing if v is None else v for v in initial)
    return run_steps(
        ctx, products, state, step, running=running, nothing=nothing, hold=hold, backward=backward, wanted=wanted
    )


def running_steps(ctx: Context, lengths: Value | None, steps: int) -> Value | None:
    """Which sequences of the batch have which steps, as ``[steps, batch, 1]``; nothing where all have all of them."""
    if lengths is None:
        return None
    known = ctx.const(lengths)
    if known is not None and np.all(known >= steps):
        return None
    times = ctx.constant(np.arange(steps), lengths.type.dtype.numpy)
    shape = (steps, lengths.type.size, 1)
    return reshape(ctx, ctx.add("gt", [lengths, reshape(ctx, times, (steps, 1))]), shape)


def run_steps(
    ctx: Context,
    products: Sequence[Value],
    state: State,
    step: Step,
    *,
    nothing: Value,
    running: Value | None = None,
    hold: bool = False,
    backward: bool = False,
    wanted: bool = True,
) -> tuple[Value | None, State]:
    """A cell's step applied to one time after the other.

    Args:
        ctx: whose graph grows.
        products: what steps take from the input, each ``[steps, batch, …]``.
        state: before the first step.
        step: of the cell.
        nothing: the hidden state where a sequence has ended, ``[batch, hidden]``.
        running: see :func:`running_steps`.
        hold: whether the hidden state of a step that a sequence does not have is that of the step before, and not
            ``nothing``.
        backward: whether time runs from the last step to the first.
        wanted: whether the hidden states of all steps are.
    Returns:
        hidden states in the order of time, and the last state of each sequence.
    """
    (steps, batch, _), (_, hidden) = products[0].type.shape, nothing.type.shape
    stacked = [*products, *([] if running is None else [running])]

    def advance(rows: Sequence[Value], before: State) -> tuple[Value, State]:
        after = step(rows[: len(products)], before)
        if running is None:
            return after[0], after
        (mask,) = rows[len(products) :]
        kept = tuple(ctx.add("where", [mask, a, b]) for a, b in zip(after, before, strict=True))
        if hold:
            return kept[0], kept
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
