"""Optimisers of ONNX's preview domain for training: one step of each, spelt out in arithmetic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import arith, cast, scalar
from mlc.frontend.onnx.registry import OnnxNode, converter
from mlc.ir.graph import Value

DOMAIN = "ai.onnx.preview.training"

# rate, count of updates, then a tensor of each kind -> their new values, the gradient's left out
Step = Callable[[Value, Value, list[Value]], list[Value]]


def _each(node: OnnxNode, inputs: list[Any], kinds: int, step: Step) -> list[Value]:
    """A step for every tensor: operands and results lie kind by kind, gradients being the second kind of operand."""
    rate, count, *tensors = inputs
    if not tensors or len(tensors) % kinds:
        raise ImportModelError(f"{len(tensors)} tensors, {kinds} for each that is optimised are needed")
    many = len(tensors) // kinds
    stepped = [step(rate, count, tensors[k::many]) for k in range(many)]
    return [new[kind] for kind in range(kinds - 1) for new in stepped]


def _regularised(ctx: Context, node: OnnxNode, x: Value, gradient: Value) -> Value:
    """``norm_coefficient * x + gradient``."""
    return ctx.add("add", [arith(ctx, "mul", x, node.attr("norm_coefficient", 0.0)), gradient])


def _scaled(ctx: Context, rate: Value, x: Value) -> Value:
    """``rate * x``, for a rate of rank 0, or of one number."""
    return ctx.add("mul", [cast(ctx, ctx.add("reshape", [rate], shape=()), x.type.dtype), x])


@converter("Momentum", domain=DOMAIN)
def momentum(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    alpha, beta, mode = node.attr("alpha"), node.attr("beta"), node.attr("mode")
    if alpha is None or beta is None or mode not in ("standard", "nesterov"):
        raise ImportModelError(f"alpha {alpha}, beta {beta} and mode {mode!r}; the mode is 'standard' or 'nesterov'")

    def step(rate: Value, count: Value, tensors: list[Value]) -> list[Value]:
        x, gradient, velocity = tensors
        slope = _regularised(ctx, node, x, gradient)
        first = ctx.add("le", [ctx.add("reshape", [count], shape=()), scalar(ctx, 0, count.type.dtype)])
        dtype = x.type.dtype
        weight = ctx.add("where", [first, scalar(ctx, 1, dtype), scalar(ctx, beta, dtype)])
        fresh = ctx.add("add", [arith(ctx, "mul", velocity, alpha), ctx.add("mul", [weight, slope])])
        move = fresh if mode == "standard" else ctx.add("add", [slope, arith(ctx, "mul", fresh, alpha)])
        return [ctx.add("sub", [x, _scaled(ctx, rate, move)]), fresh]

    return _each(node, inputs, 3, step)


@converter("Adagrad", domain=DOMAIN)
def adagrad(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    epsilon, decay = node.attr("epsilon", 1e-6), node.attr("decay_factor", 0.0)

    def step(rate: Value, count: Value, tensors: list[Value]) -> list[Value]:
        x, gradient, squares = tensors
        slope = _regularised(ctx, node, x, gradient)
        fresh = ctx.add("add", [squares, ctx.add("mul", [slope, slope])])
        updates = cast(ctx, ctx.add("reshape", [count], shape=()), rate.type.dtype)
        slowed = ctx.add("div", [rate, arith(ctx, "add", arith(ctx, "mul", updates, decay), 1)])
        root = arith(ctx, "add", ctx.add("sqrt", [fresh]), epsilon)
        return [ctx.add("sub", [x, ctx.add("div", [_scaled(ctx, slowed, slope), root])]), fresh]

    return _each(node, inputs, 3, step)


@converter("Adam", domain=DOMAIN)
def adam(ctx: Context, node: OnnxNode, inputs: list[Any]) -> list[Value]:
    alpha, beta, epsilon = node.attr("alpha", 0.9), node.attr("beta", 0.999), node.attr("epsilon", 1e-6)
    shrink = 1.0 - node.attr("norm_coefficient_post", 0.0)

    def step(rate: Value, count: Value, tensors: list[Value]) -> list[Value]:
        x, gradient, mean, squares = tensors
        slope = _regularised(ctx, node, x, gradient)
        first = ctx.add("add", [arith(ctx, "mul", mean, alpha), arith(ctx, "mul", slope, 1 - alpha)])
        second = arith(ctx, "mul", ctx.add("mul", [slope, slope]), 1 - beta)
        second = ctx.add("add", [arith(ctx, "mul", squares, beta), second])
        root = arith(ctx, "add", ctx.add("sqrt", [second]), epsilon)
        move = ctx.add("div", [first, root])
        moved = ctx.add("sub", [x, _scaled(ctx, _unbiased(ctx, rate, count, alpha, beta), move)])
        return [arith(ctx, "mul", moved, shrink) if shrink != 1 else moved, first, second]

    return _each(node, inputs, 4, step)


def _unbiased(ctx: Context, rate: Value, count: Value, alpha: float, beta: float) -> Value:
    """``rate * sqrt(1 - beta**count) / (1 - alpha**count)``; ``rate`` itself before the first update."""
    dtype = rate.type.dtype
    updates = cast(ctx, ctx.add("reshape", [count], shape=()), dtype)

    def left(decay: float) -> Value:
        return arith(ctx, "sub", 1, ctx.add("pow", [scalar(ctx, decay, dtype), updates]))

    flat = ctx.add("reshape", [rate], shape=())
    scaled = ctx.add("div", [ctx.add("mul", [flat, ctx.add("sqrt", [left(beta)])]), left(alpha)])
    return ctx.add("where", [ctx.add("gt", [updates, scalar(ctx, 0, dtype)]), scaled, flat])
