"""Operands of an operator whose gradients are looked at."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlc.ir.graph import Builder, Value
from mlc.ir.types import TensorType, f64


def operands_of(
    g: Builder, given: Sequence[Any], draw: Callable[[Sequence[int]], np.ndarray]
) -> tuple[list[Value], list[Value], dict[str, np.ndarray]]:
    """All operands, those of them that are inputs, and feeds for these.

    Args:
        g: gets them.
        given: an array for each constant, a shape for each input of float64.
        draw: numbers of a shape.
    """
    feeds: dict[str, np.ndarray] = {}
    operands, variables = [], []
    for k, what in enumerate(given):
        if isinstance(what, np.ndarray):
            operands.append(g.constant(what))
            continue
        operands.append(g.input(f"x{k}", TensorType(tuple(what), f64)))
        variables.append(operands[-1])
        feeds[f"x{k}"] = draw(what)
    return operands, variables, feeds
