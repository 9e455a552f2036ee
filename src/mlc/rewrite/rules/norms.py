"""Normalisations that exporters spell out in primitives: layer_norm, rms_norm, group_norm, softmax."""

from __future__ import annotations

import numpy as np

from mlc.ir.graph import Node, Value
from mlc.ops import get
from mlc.rewrite.pattern import Match, all_equal, rule, scalar_of
from mlc.rewrite.rewriter import Rewriter
from mlc.rewrite.rules.batch_norm import of_channels


def _trailing_axis(*reductions: Node | None) -> int | None:
    """The axis from which all the reductions fold everything, keeping dimensions; ``None`` if they differ."""
    axes = set()
    for node in reductions:
        assert node is not None
        rank = node.inputs[0].type.rank
        folded = sorted(a % rank for a in node.attrs["axes"])
        if not node.attrs["keepdims"] or not folded or folded != list(range(folded[0], rank)):
            return None
        axes.add(folded[0])
    return axes.pop() if len(axes) == 1 else None


def _filled(rw: Rewriter, like: Value, axis: int, number: float) -> Value:
    return rw.new_constant(np.full(like.type.shape[axis:], number, like.type.dtype.numpy))


def _fits_rows(value: Value, node: Node) -> bool:
    """Whether an operand repeats to the rows that a norm works on, whatever the row."""
    rank = node.inputs[0].type.rank
    shape, inner = value.type.shape, node.outputs[0].type.shape[node.attrs["axis"] % rank :]
    outer, own = shape[: max(0, len(shape) - len(inner))], shape[-len(inner) :]
    tail = inner[len(inner) - len(own) :]
    return (
        len(shape) <= rank and all(n == 1 for n in outer) and all(a in (1, b) for a, b in zip(own, tail, strict=True))
    )


_SQUARES = ("pow(d, 2)", "mul(d, d)")
_VARIANCE = tuple(f"add(v=reduce_mean({square}), #epsilon)" for square in _SQUARES)


def _over_root(value: str, squared: str) -> tuple[str, ...]:
    """``value / sqrt(squared)`` in its common forms."""
    return (
        f"div({value}, sqrt({squared}))",
        f"mul({value}, rsqrt({squared}))",
        f"mul({value}, reciprocal(sqrt({squared})))",
        f"mul({value}, div(1, sqrt({squared})))",
    )


@rule("layer_norm", *(p for v in _VARIANCE for p in _over_root("d=sub(x, mean=reduce_mean(x))", v)))
def layer_norm(rw: Rewriter, m: Match) -> Value | None:
    """``(x - mean(x)) / sqrt(mean((x - mean(x)) ** 2) + epsilon)``, without scale and bias yet."""
    x, epsilon = m["x"], scalar_of(rw, m["epsilon"])
    axis = _trailing_axis(rw.maker(m["mean"]), rw.maker(m["v"]))
    if axis is None or epsilon is None or x.type.shape != m.root.outputs[0].type.shape:
        return None
    operands = (x, _filled(rw, x, axis, 1), _filled(rw, x, axis, 0))
    return rw.emit(get("layer_norm"), operands, {"axis": axis, "epsilon": epsilon})


@rule("layer_norm_scale", "mul(n=layer_norm!(x, #one, #zero), g)")
def layer_norm_scale(rw: Rewriter, m: Match) -> Value | None:
    """A layer norm without scale and bias takes in the scale after it."""
    norm, one, zero = rw.maker(m["n"]), rw.constant(m["one"]), rw.constant(m["zero"])
    assert norm is not None
    if one is None or zero is None or not (all_equal(one, 1) and all_equal(zero, 0) and _fits_rows(m["g"], norm)):
        return None
    return rw.emit(norm.op, (m["x"], m["g"], m["zero"]), norm.attrs)


@rule("layer_norm_bias", "add(n=layer_norm!(x, g, #zero), b)")
def layer_norm_bias(rw: Rewriter, m: Match) -> Value | None:
    """A layer norm without bias takes in the bias after it."""
    norm, zero = rw.maker(m["n"]), rw.constant(m["zero"])
    assert norm is not None
    if zero is None or m["zero"] is not norm.inputs[2] or not (all_equal(zero, 0) and _fits_rows(m["b"], norm)):
        return None
    return rw.emit(norm.op, (m["x"], m["g"], m["b"]), norm.attrs)


_MEAN_SQUARES = ("add(v=reduce_mean(pow(x, 2)), #epsilon)", "add(v=reduce_mean(mul(x, x)), #epsilon)")


@rule("rms_norm", *(p for v in _MEAN_SQUARES for p in _over_root("x", v)))
def rms_norm(rw: Rewriter, m: Match) -> Value | None:
    """``x / sqrt(mean(x ** 2) + epsilon)``, without scale yet."""
    x, epsilon = m["x"], scalar_of(rw, m["epsilon"])
    axis = _trailing_axis(rw.maker(m["v"]))
    if axis is None or epsilon is None or x.type.shape != m.root.outputs[0].type.shape:
        return None
    return rw.emit(get("rms_norm"), (x, _filled(rw, x, axis, 1)), {"axis": axis, "epsilon": epsilon})


@rule("rms_norm_scale", "mul(n=rms_norm!(x, #one), g)")
def rms_norm_scale(rw: Rewriter, m: Match) -> Value | None:
    """An rms norm without scale takes in the scale after it."""
    norm, one = rw.maker(m["n"]), rw.constant(m["one"])
    assert norm is not None
    if one is None or not (all_equal(one, 1) and _fits_rows(m["g"], norm)):
        return None
    return rw.emit(norm.op, (m["x"], m["g"]), norm.attrs)


@rule("softmax", "div(e=exp(sub(x, top=reduce_max(x))), sum=reduce_sum(e))")
def softmax(rw: Rewriter, m: Match) -> Value | None:
    """``exp(x - max(x)) / sum(exp(x - max(x)))`` along one axis."""
    x, top, total = m["x"], rw.maker(m["top"]), rw.maker(m["sum"])
    assert top is not None
    assert total is not None
    axes = tuple(top.attrs["axes"])
    if tuple(total.attrs["axes"]) != axes or len(axes) != 1 or not (top.attrs["keepdims"] and total.attrs["keepdims"]):
        return None
    return rw.emit(get("softmax"), (x,), {"axis": axes[0] % x.type.rank})


@rule("group_norm", "reshape(n=instance_norm!(reshape(x), #scale, #bias))")
def group_norm(rw: Rewriter, m: Match) -> Value | None:
    """An instance norm of channels that a reshape has put together, and it undone: how PyTorch exports group norms."""
    x, norm = m["x"], rw.maker(m["n"])
    assert norm is not None
    scale, bias = rw.constant(m["scale"]), rw.constant(m["bias"])
    shape, grouped = x.type.shape, norm.outputs[0].type.shape
    if scale is None or bias is None or len(shape) < 3 or shape != m.root.outputs[0].type.shape:
        return None
    groups = grouped[1]
    if grouped[0] != shape[0] or not groups or shape[1] % groups:
        return None
    operands = (rw.new_constant(np.repeat(a, shape[1] // groups)) for a in (scale, bias))
    return rw.emit(get("group_norm"), (x, *operands), {"groups": groups, "epsilon": norm.attrs["epsilon"]})


def _by_channel(rw: Rewriter, value: Value, like: Value) -> np.ndarray | None:
    """As :func:`of_channels`, in the type of ``like``."""
    array = of_channels(rw, value, like)
    return None if array is None else array.astype(like.type.dtype.numpy)


_CHANNEL_NORMS = ("group_norm", "instance_norm")


@rule("channel_norm_scale", *(f"mul(n={norm}!(x, #one, #zero), #g)" for norm in _CHANNEL_NORMS))
def channel_norm_scale(rw: Rewriter, m: Match) -> Value | None:
    """A group or instance norm without scale and bias takes in the scale after it."""
    norm, one, zero = rw.maker(m["n"]), rw.constant(m["one"]), rw.constant(m["zero"])
    assert norm is not None
    scale = _by_channel(rw, m["g"], m["x"])
    if scale is None or one is None or zero is None or not (all_equal(one, 1) and all_equal(zero, 0)):
        return None
    return rw.emit(norm.op, (m["x"], rw.new_constant(scale), m["zero"]), norm.attrs)


@rule("channel_norm_bias", *(f"add(n={norm}!(x, g, #zero), #b)" for norm in _CHANNEL_NORMS))
def channel_norm_bias(rw: Rewriter, m: Match) -> Value | None:
    """A group or instance norm without bias takes in the bias after it."""
    norm, zero = rw.maker(m["n"]), rw.constant(m["zero"])
    assert norm is not None
    bias = _by_channel(rw, m["b"], m["x"])
    if bias is None or zero is None or m["zero"] is not norm.inputs[2] or not all_equal(zero, 0):
        return None
    return rw.emit(norm.op, (m["x"], m["g"], rw.new_constant(bias)), norm.attrs)


RULES = (
    layer_norm,
    layer_norm_scale,
    layer_norm_bias,
    rms_norm,
    rms_norm_scale,
    group_norm,
    channel_norm_scale,
    channel_norm_bias,
    softmax,
)
