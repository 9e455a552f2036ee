"""Constant folding.

Replaces every node whose operands are all known by its results, computed by the interpreter within :class:`FoldLimits`.

Stage in: any graph before fusion. Stage out: the same; folded nodes are gone, and constants that nothing reads now.

Example: with a constant ``w``, ``add(x, exp(w))`` becomes ``add(x, c)``.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.ir.graph import Graph, Node, Value
from mlc.rewrite.evaluate import DEFAULT_LIMITS, FoldLimits, evaluate
from mlc.rewrite.rewriter import Rewriter, replay


def fold_constants(graph: Graph, limits: FoldLimits = DEFAULT_LIMITS) -> Graph:
    """Fold what depends on constants alone; what would cost more than ``limits`` stays as it is."""
    room = limits.total_bytes

    def visit(rw: Rewriter, node: Node) -> Sequence[Value] | None:
        nonlocal room
        known = [rw.constant(v) for v in node.inputs]
        arrays = [a for a in known if a is not None]
        if not arrays or len(arrays) < len(known):
            return None
        results = evaluate(node, arrays, limits)
        if results is None:
            return None
        size = sum(a.nbytes for a in results if not _shares(a, arrays))
        if size > room:
            return None
        room -= size
        return [rw.new_constant(a, v.name) for a, v in zip(results, node.outputs, strict=True)]

    return replay(graph, visit)


def _shares(array: np.ndarray, others: Sequence[np.ndarray]) -> bool:
    """Whether an array is a view of one of ``others``."""
    return any(np.may_share_memory(array, a) for a in others)
