"""Activations that layers have fused in, by the names that formats share."""

from __future__ import annotations

from typing import Any

from mlc.errors import UnsupportedError
from mlc.frontend.common.context import Context
from mlc.ir.graph import Value

# name -> core operator with its attributes
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("relu", {}),
    "relu6": ("clip", {"lo": 0.0, "hi": 6.0}),
    "relu_n1_to_1": ("clip", {"lo": -1.0, "hi": 1.0}),
    **{name: (name, {}) for name in ("elu", "gelu", "mish", "selu", "sigmoid", "softplus", "softsign", "tanh")},
    "leaky_relu": ("leaky_relu", {}),
    "clip": ("clip", {}),
    "hard_sigmoid": ("hard_sigmoid", {}),
    "hard_swish": ("hard_swish", {}),
    "swish": ("swish", {}),
}


def activate(ctx: Context, x: Value, name: str, **attrs: Any) -> Value:
    """``x`` through an activation; ``""`` and ``linear`` leave it as it is.

    Args:
        ctx: whose graph grows.
        x: data of a float type.
        name: a name of :data:`ACTIVATIONS`.
        attrs: parameters, by the core operator's names.
    Raises:
        UnsupportedError: there is no such activation.
    """
    if name in ("", "linear"):
        return x
    if name not in ACTIVATIONS:
        raise UnsupportedError(f"activation {name!r}", hint=f"known: {', '.join(sorted(ACTIVATIONS))}")
    op, fixed = ACTIVATIONS[name]
    return ctx.add(op, [x], **{**fixed, **attrs})
