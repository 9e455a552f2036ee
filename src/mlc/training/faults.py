"""Where numbers end: the first operator of a step whose results are none, and that reaches what is wrong.

The step is gone through operator by operator in the interpreter. What is no number may be meant so (a mask of ``-inf``)
or not be chosen, so the search goes back from what is wrong: an operator is to blame if its results are worse than its
operands, not numbers where they were infinite, or infinite where they were finite.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.ir.interp.graph import run_node
from mlc.training.step import TrainingStep

_FINE, _INFINITE, _NAN = 0, 1, 2


def is_sound(array: np.ndarray) -> bool:
    """Whether all elements are numbers, and finite."""
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())


def first_fault(step: TrainingStep, feeds: Mapping[str, np.ndarray]) -> str:
    """What is to blame that a result of a step is no number.

    Args:
        feeds: all inputs of the step as it began.
    Returns:
        the end of a sentence; an input that was finite when training began is blamed before any operator.
    """
    graph = step.graph
    states: dict[Value, int] = {}
    values: dict[Any, np.ndarray] = {**graph.constants, **{v: feeds[v.name] for v in graph.inputs}}
    states |= {v: _state(a) for v, a in values.items()}
    for node in graph.nodes:
        with np.errstate(all="ignore"):
            results = run_node(node, [values[v] for v in node.inputs])
        values.update(zip(node.outputs, results, strict=True))
        states |= {v: _state(a) for v, a in zip(node.outputs, results, strict=True)}
    reached = _reached(graph, states)
    begun = {**step.parameters, **step.statistics}
    for v in graph.inputs:
        if v in reached and is_sound(begun.get(v.name, np.zeros(0))):
            return f"{v.name!r} holds what is no number"
    for node in graph.nodes:
        if any(v in reached for v in node.outputs) and _worsens(node, states):
            where = f" ({', '.join(node.sources)})" if node.sources else ""
            return f"the first results that are none are those of {node.op.name}{where}"
    return "though one operator after the other gives numbers only"


def _state(array: np.ndarray) -> int:
    if is_sound(array):
        return _FINE
    return _NAN if np.isnan(array).any() else _INFINITE


def _worsens(node: Node, states: Mapping[Value, int]) -> bool:
    return max(states[v] for v in node.outputs) > max((states[v] for v in node.inputs), default=_FINE)


def _reached(graph: Graph, states: Mapping[Value, int]) -> set[Value]:
    """What is not finite and goes into results that are not."""
    makers = graph.producers()
    found: set[Value] = set()
    stack = [v for v in graph.outputs if states[v] != _FINE]
    while stack:
        v = stack.pop()
        if v in found:
            continue
        found.add(v)
        if v in makers:
            stack += [operand for operand in makers[v].inputs if states[operand] != _FINE]
    return found


__all__ = ["first_fault", "is_sound"]
