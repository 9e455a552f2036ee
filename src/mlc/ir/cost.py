"""What computing a tensor expression takes, whatever the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlc.ir import te
from mlc.ir.expr import Binary, Call, walk


def operations(outputs: Sequence[te.Tensor]) -> int:
    """Arithmetic operations of everything that ``outputs`` need: each operator and intrinsic counts one a point.

    A sum of products counts two a term, as is usual. Comparisons and index arithmetic count nothing.
    """
    total = 0
    for op in te.topological(outputs):
        points = prod(op.shape) * prod(a.hi + 1 for a in op.reduce_axes)
        each = sum(
            1
            for body in op.bodies
            for node in walk(body)
            if type(node) is Call or (type(node) is Binary and node.dtype.kind != "b")
        )
        total += points * (each + (len(op.bodies) if op.combiner is not None else 0))
    return total
