"""What computing a tensor expression takes, whatever the schedule."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Binary, Call, Expr, Select, Within, walk
from mlc.ir.index import Var

_MOST_CHECKED = 1 << 20  # values of an index that are looked at


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


def products(outputs: Sequence[te.Tensor]) -> float:
    """Products that sums of ``outputs`` add up, whatever the schedule; a multiply-add each, and nothing else.

    Those that a border leaves out do not count, and nothing does where that cannot be told axis by axis.
    """
    total = 0.0
    for op in te.topological(outputs):
        factors = [n for body in op.bodies for n in walk(body) if type(n) is Binary and n.op == "mul"]
        if op.combiner is not te.SUM or not factors:
            continue
        checks = {(n.index, n.lo, n.hi): n for body in op.bodies for n in walk(body) if type(n) is Within}.values()
        variables = [a for n in checks for a in n.index.vars()]
        apart = len(variables) == len(set(variables))
        points = prod(op.shape) * prod(a.hi + 1 for a in op.reduce_axes)
        total += points * prod(map(_share, checks)) if apart else 0
    return total


def _share(check: Within) -> float:
    """For how much of what its variables range over a check holds; 0 where that is not known."""
    variables = check.index.terms
    if not all(type(a) is Var for a in variables) or prod(a.hi + 1 for a in check.index.vars()) > _MOST_CHECKED:
        return 0.0
    values = np.array([check.index.const])
    for a, times in variables.items():
        values = np.add.outer(values, times * np.arange(a.lo, a.hi + 1)).ravel()
    return float(((values >= check.lo) & (values < check.hi)).mean()) if len(values) else 0.0


def _of_element(e: Expr) -> int:
    """Operations of an expression, of several to choose from the most."""
    most = 0
    while type(e) is Select:
        most = max(most, _arithmetic(e.cond) + _arithmetic(e.a))
        e = e.b
    return max(most, _arithmetic(e))


def _arithmetic(e: Expr) -> int:
    return sum(1 for n in walk(e) if type(n) is Call or (type(n) is Binary and n.dtype.kind != "b"))
