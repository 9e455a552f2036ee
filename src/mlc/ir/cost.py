"""What computing a tensor expression takes, whatever the schedule."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Binary, Call, Const, Expr, Load, Select, Within, loads, walk
from mlc.ir.graph import Node, express
from mlc.ir.index import Linear, Var, dynamics, evaluate

_MOST_CHECKED = 1 << 20  # values of an index that are looked at


@dataclass(frozen=True)
class Peaks:
    """The most that a machine does, and what beginning costs: P_d, P_c and L of NeoFlow's equation (4).

    Args:
        transfer: bytes between memory and caches in a unit of time.
        compute: operations on f32 in a unit of time.
        launch: units of time that a step takes beside its work.
        caches: from the nearest on that a step's operands may stay in, bytes that can be counted on and the bytes from
            there in a unit of time.
    """

    transfer: float
    compute: float
    launch: float
    caches: tuple[tuple[float, float], ...] = ()

    def time(self, nbytes: float, operations: float, steps: float = 1) -> float:
        """Units of time; of differences, the reward R: what is saved is positive.

        >>> Peaks(transfer=4, compute=64, launch=100).time(nbytes=4000, operations=6400)
        1200.0
        """
        return nbytes / self.transfer + operations / self.compute + steps * self.launch


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


def gathered(outputs: Sequence[te.Tensor]) -> dict[te.Tensor, int]:
    """Placeholders that ``outputs`` read only where data say (tables of embeddings), and how many elements at most.

    >>> from mlc.ir.types import f32, i64
    >>> from mlc.ir.index import dynamic
    >>> table, words = te.placeholder((1000, 8), f32), te.placeholder((3,), i64)
    >>> rows = te.compute((3, 8), lambda i, j: table[dynamic(words[i], 0, 999), j])
    >>> gathered([rows])[table]
    24
    """
    found: dict[te.Tensor, int] = {}
    whole: set[te.Tensor] = set()
    for op in te.topological(outputs):
        points = prod(op.shape) * prod(a.hi + 1 for a in op.reduce_axes)
        for ld in (ld for body in op.bodies for ld in loads(body) if ld.source.op is None):
            if any(dynamics(ix) for ix in ld.indices):
                found[ld.source] = found.get(ld.source, 0) + points
            else:
                whole.add(ld.source)
    return {t: n for t, n in found.items() if t not in whole}


def traffic(node: Node) -> int:
    """Bytes that a node must read and write at least once; of a table, what is looked up."""
    nbytes = {v: v.type.nbytes for v in (*node.inputs, *node.outputs)}
    if node.op.express is not None:
        inputs = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        found = gathered(list(express(node, inputs)))
        for v, t in zip(node.inputs, inputs, strict=True):
            if t in found:
                nbytes[v] = min(nbytes[v], found[t] * v.type.dtype.itemsize)
    return sum(nbytes.values())


def products(outputs: Sequence[te.Tensor]) -> float:
    """Products that sums of ``outputs`` add up, whatever the schedule; a multiply-add each, and nothing else.

    Those that a border leaves out do not count, whether the sum or a stage that it reads has the border, nor those of
    elements that nobody reads, as there are at the ends of a transposed convolution's phases. Nothing does where it
    cannot be told, for variables that are met in the same conditions, how many a border leaves.
    """
    total = 0.0
    order = te.topological(outputs)
    for op in order:
        factors = [n for body in op.bodies for n in walk(body) if type(n) is Binary and n.op == "mul"]
        if op.combiner is not te.SUM or not factors:
            continue
        checks = {(n.index, n.lo, n.hi) for body in op.bodies for n in walk(body) if type(n) is Within}
        checks |= {check for body in op.bodies for n in loads(body) for check in _borders(n)}
        terms = prod(a.hi + 1 for a in op.reduce_axes)
        inside = prod(op.shape) * terms * prod(_share(together) for together in _apart(checks))
        total += max(0.0, inside - _unread(op, order, outputs) * terms)
    return total


def _unread(op: te.Compute, order: Sequence[te.Compute], outputs: Sequence[te.Tensor]) -> int:
    """How many elements of a sum at least are read by nobody."""
    if any(t in outputs for t in op.outputs):
        return 0
    reads = sum(
        prod(reader.shape) * prod(a.hi + 1 for a in reader.reduce_axes)
        for reader in order for body in reader.bodies for n in loads(body) if n.source in op.outputs
    )  # fmt: skip
    return max(0, prod(op.shape) - reads)


_Check = tuple[Linear, int, int]  # an index, and that it is not below the first and below the second


def _apart(checks: Iterable[_Check]) -> list[list[_Check]]:
    """Conditions, those together that have variables in common."""
    found: list[tuple[set[Var], list[_Check]]] = []
    for check in checks:
        variables, together = check[0].vars(), [check]
        for group in [g for g in found if g[0] & variables]:
            variables |= group[0]
            together += group[1]
            found.remove(group)
        found.append((variables, together))
    return [together for _, together in found]


def _borders(load: Load) -> Iterator[_Check]:
    """Where an index is inside of the border of zeros that another stage has put there: ``lo <= index < hi``."""
    made = load.source.op if isinstance(load.source, te.Tensor) else None
    if not isinstance(made, te.Compute) or made.combiner is not None or len(made.bodies) != 1:
        return
    (body,) = made.bodies
    if type(body) is not Select or type(body.b) is not Const or body.b.value != 0:
        return
    conditions = walk(body.cond)
    if not all(type(n) is Within or (type(n) is Binary and n.op == "and") for n in conditions):
        return
    for check in conditions:
        if type(check) is Within:
            ((axis, times),) = check.index.terms.items() if len(check.index.terms) == 1 else ((None, 0),)
            if times == 1 and axis in made.axes:
                yield load.indices[made.axes.index(axis)] + check.index.const, check.lo, check.hi


def _share(checks: Sequence[_Check]) -> float:
    """For how much of what their variables range over some conditions hold; 0 where that is not known."""
    variables = sorted({a for index, _, _ in checks for a in index.vars()}, key=lambda a: a.name)
    extents = [a.hi - a.lo + 1 for a in variables]
    if prod(extents) > _MOST_CHECKED or any(dynamics(index) for index, _, _ in checks):
        return 0.0
    grid = np.indices(extents, sparse=True)
    values: dict[Var, Any] = {a: at + a.lo for a, at in zip(variables, grid, strict=True)}
    inside = np.ones(extents, bool)
    for index, lo, hi in checks:
        at = np.asarray(evaluate(index, values))
        inside &= (at >= lo) & (at < hi)
    return float(inside.mean()) if inside.size else 0.0


def _of_element(e: Expr) -> int:
    """Operations of an expression, of several to choose from the most."""
    most = 0
    while type(e) is Select:
        most = max(most, _arithmetic(e.cond) + _arithmetic(e.a))
        e = e.b
    return max(most, _arithmetic(e))


def _arithmetic(e: Expr) -> int:
    return sum(1 for n in walk(e) if type(n) is Call or (type(n) is Binary and n.dtype.kind != "b"))
