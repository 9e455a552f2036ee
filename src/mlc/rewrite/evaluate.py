"""Evaluation of single nodes over constants, within limits: what constant folding and the rewriting rules share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from mlc.ir import te
from mlc.ir.graph import Node, express
from mlc.ir.interp.graph import run_node
from mlc.rewrite.recurrence import body_of_scan, is_scan


@dataclass(frozen=True)
class FoldLimits:
    """What constant folding may cost.

    Args:
        constant_bytes: the greatest folded constant.
        total_bytes: all folded constants of one pass together.
        growth: a result above ``growth_floor`` bytes may be at most this many times as big as its operands.
        growth_floor: results up to this many bytes may grow freely.
        work: evaluated points (elements times reduction terms) of one node.
        routine_elements: elements read and written by one opaque routine, which is interpreted statement by statement.
    """

    constant_bytes: int = 64 << 20
    total_bytes: int = 256 << 20
    growth: int = 4
    growth_floor: int = 64 << 10
    work: int = 1 << 28
    routine_elements: int = 1 << 14


DEFAULT_LIMITS = FoldLimits()
STATEMENT_WORK = 1 << 10  # a statement of a routine, of which there is about one an element
ROUND_WORK = 1 << 14  # what an operator in a recurrence costs each round beside its points: some hundred microseconds


def output_bytes(node: Node) -> int:
    """Bytes of all results of a node."""
    return sum(v.type.nbytes for v in node.outputs)


def evaluate(node: Node, arrays: Sequence[np.ndarray], limits: FoldLimits = DEFAULT_LIMITS) -> list[np.ndarray] | None:
    """Results of a node over known operands, or ``None`` where that is not wanted, or beyond the limits.

    Reshapes and transposes are views of their operand: they take no memory and are never refused.
    """
    if not node.op.foldable:
        return None
    view = _view(node, arrays)
    if view is not None:
        return [view]
    size = output_bytes(node)
    taken = sum(a.nbytes for a in arrays)
    if size > limits.constant_bytes or (size > limits.growth_floor and size > limits.growth * taken):
        return None
    if node.op.routine is not None:
        elements = sum(a.size for a in arrays) + sum(v.type.size for v in node.outputs)
        return run_node(node, arrays) if elements <= limits.routine_elements else None
    return run_node(node, arrays) if _work(node) <= limits.work else None


def _view(node: Node, arrays: Sequence[np.ndarray]) -> np.ndarray | None:
    if node.op.name == "reshape" and arrays[0].flags.c_contiguous:
        return arrays[0].reshape(node.attrs["shape"])
    if node.op.name == "transpose":
        return arrays[0].transpose(node.attrs["perm"])
    return None


def _work(node: Node) -> int:
    """Points that the interpreter evaluates for a node."""
    if is_scan(node):
        return sum(node.attrs["rounds"] * (_work(n) + ROUND_WORK) for n in body_of_scan(node).nodes)
    if node.op.express is None:
        elements = sum(v.type.size for v in (*node.inputs, *node.outputs))
        return elements * (STATEMENT_WORK if node.op.routine is not None else 1)
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    stages = te.topological(express(node, operands))
    return sum(prod(a.hi + 1 for a in (*s.axes, *s.reduce_axes)) for s in stages)
