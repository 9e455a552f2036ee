"""Activations that exporters spell out in primitives: gelu, swish, hard_swish, mish."""

from __future__ import annotations

from math import sqrt

from mlc.ir.graph import Value
from mlc.ops import get
from mlc.rewrite.pattern import LITERAL_TOLERANCE, Match, rule, scalar_of
from mlc.rewrite.rewriter import Rewriter


def _halved(gate: str) -> tuple[str, ...]:
    """``0.5 * x * gate`` in every association; operands commute by themselves."""
    return (
        f"mul(mul(x, {gate}), 0.5)",
        f"mul(mul(x, 0.5), {gate})",
        f"mul(x, mul({gate}, 0.5))",
        f"div(mul(x, {gate}), 2)",
        f"mul(x, div({gate}, 2))",
        f"mul(div(x, 2), {gate})",
    )


_ERF = tuple(f"add(erf({inner}), 1)" for inner in (f"div(x, {sqrt(2)})", f"mul(x, {sqrt(0.5)})"))
_SQRT_2_PI = sqrt(2 / 3.141592653589793)
_CUBES = ("pow(x, 3)", "mul(mul(x, x), x)")
_TANH = (
    *(f"add(tanh(mul(add(x, mul({cube}, 0.044715)), {_SQRT_2_PI})), 1)" for cube in _CUBES),
    f"add(tanh(mul(mul(x, {_SQRT_2_PI}), add(mul(mul(x, 0.044715), x), 1))), 1)",
    f"add(tanh(mul(mul(x, {_SQRT_2_PI}), add(mul(mul(x, x), 0.044715), 1))), 1)",
)


def _float_only(x: Value) -> bool:
    return x.type.dtype.is_float


@rule("gelu", *(p for gate in _ERF for p in _halved(gate)))
def gelu(rw: Rewriter, m: Match) -> Value | None:
    """``0.5 * x * (1 + erf(x / sqrt(2)))``."""
    return rw.emit(get("gelu"), (m["x"],)) if _same_shape(m) else None


@rule("gelu_tanh", *(p for gate in _TANH for p in _halved(gate)))
def gelu_tanh(rw: Rewriter, m: Match) -> Value | None:
    """``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``."""
    return rw.emit(get("gelu"), (m["x"],), {"approximate": "tanh"}) if _same_shape(m) else None


@rule("swish", "mul(x, sigmoid(x))")
def swish(rw: Rewriter, m: Match) -> Value:
    """``x * sigmoid(x)``."""
    return rw.emit(get("swish"), (m["x"],))


@rule("swish_alpha", "mul(x, sigmoid(mul(x, #alpha)))")
def swish_alpha(rw: Rewriter, m: Match) -> Value | None:
    """``x * sigmoid(alpha * x)``."""
    alpha = scalar_of(rw, m["alpha"])
    return None if alpha is None or not _same_shape(m) else rw.emit(get("swish"), (m["x"],), {"alpha": alpha})


@rule("mish", "mul(x, tanh(softplus(x)))")
def mish(rw: Rewriter, m: Match) -> Value:
    """``x * tanh(softplus(x))``."""
    return rw.emit(get("mish"), (m["x"],))


@rule("hard_swish", "mul(x, g=hard_sigmoid(x))")
def hard_swish(rw: Rewriter, m: Match) -> Value | None:
    """``x * hard_sigmoid(x)`` with slope 1/6."""
    gate = rw.maker(m["g"])
    assert gate is not None
    fits = abs(gate.attrs["alpha"] - 1 / 6) < LITERAL_TOLERANCE / 6 and gate.attrs["beta"] == 0.5
    return rw.emit(get("hard_swish"), (m["x"],)) if fits else None


_RELU6 = "c=clip(add(x, 3))"
_SIXTH = 1 / 6


@rule(
    "hard_swish_spelled",
    f"div(mul(x, {_RELU6}), 6)", f"mul(x, div({_RELU6}, 6))", f"mul(div(x, 6), {_RELU6})",
    f"mul(mul(x, {_RELU6}), {_SIXTH})", f"mul(x, mul({_RELU6}, {_SIXTH}))", f"mul(mul(x, {_SIXTH}), {_RELU6})",
)  # fmt: skip
def hard_swish_spelled(rw: Rewriter, m: Match) -> Value | None:
    """``x * clip(x + 3, 0, 6) / 6``."""
    clip = rw.maker(m["c"])
    assert clip is not None
    fits = clip.attrs["lo"] == 0 and clip.attrs["hi"] == 6 and _same_shape(m) and _float_only(m["x"])
    return rw.emit(get("hard_swish"), (m["x"],)) if fits else None


def _same_shape(m: Match) -> bool:
    # a constant of shape (1, 1, 1) may raise the rank
    return m["x"].type.shape == m.root.outputs[0].type.shape


RULES = (gelu, gelu_tanh, swish, swish_alpha, mish, hard_swish, hard_swish_spelled)
