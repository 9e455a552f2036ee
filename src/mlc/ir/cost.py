"""What computing a tensor expression takes, whatever the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlc.ir import te
from mlc.ir.expr import Binary, Call, Expr, Select, walk


def operations(outputs: Sequence[te.Tensor]) -> int:
    """Arithmetic operations of everything that ``outputs`` need: each operator and intrinsic counts one a point.

    A sum of products counts two a term, as is usual. Comparisons and index arithmetic count nothing; of several
    ways to compute an element, the one of most operations counts.
    """
    total = 0
    for op in te.topological(outputs):
        points = prod(op.shape) * prod(a.hi + 1 for a in op.reduce_axes)
        each = sum(map(_of_element, op.bodies))
        total += points * (each + (len(op.bodies) if op.combiner is not None else 0))
    return total


def _of_element(e: Expr) -> int:
    """Operations of an expression, of several to choose from the most."""
    most = 0
    while type(e) is Select:
        most = max(most, _arithmetic(e.cond) + _arithmetic(e.a))
        e = e.b
    return max(most, _arithmetic(e))


def _arithmetic(e: Expr) -> int:
    return sum(1 for n in walk(e) if type(n) is Call or (type(n) is Binary and n.dtype.kind != "b"))
