"""What the threads of a block fetch into shared memory together: ahead of its use, and how much at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mlc.ir import te
from mlc.ir.expr import Const, Expr, Load, Select, index_vars, loads, replace_loads, substitute_vars, walk
from mlc.ir.index import Var, as_index, dynamics, weighted
from mlc.ir.loop import dense_strides
from mlc.lower.knobs import Knobs
from mlc.lower.overlap import COPIED
from mlc.lower.stage import Stage
from mlc.lower.vectorize import on_first_lane
from mlc.targets.gpu.cost import VERSIONS
from mlc.targets.gpu.record import Gpu


def ask_versions(knobs: Knobs, best: int) -> int:
    """How many versions of the operands' parts there are in shared memory, filled in turns; one where none is ahead."""
    return knobs.discrete("versions", VERSIONS, default=best)


def ask_asynchronous(knobs: Knobs, target: Gpu) -> bool:
    """Whether threads copy what is fetched ahead asynchronously, where the device can."""
    return target.asynchronous and knobs.category("asynchronous", (True, False), default=True)


def fetch_ahead(
    parts: Sequence[tuple[Stage, int]], versions: int, *, asynchronous: bool, memory: Collection[te.Tensor] = ()
) -> None:
    """Let parts be fetched some steps ahead of what reads them.

    Args:
        parts: stages in shared memory, attached to one loop, and how many elements a thread fetches at once.
        versions: of each, in turns.
        asynchronous: whether they are copied asynchronously, if they are copies.
        memory: tensors that an earlier launch leaves there.
    """
    if versions == 1:
        return
    for part, vector in parts:
        copied = asynchronous and is_copied(part.op, memory) and vector * part.op.outputs[0].dtype.itemsize in COPIED
        part.double_buffer(versions, asynchronous=copied)


def vector_along(op: te.Compute, axis: Var, most: int, memory: Collection[te.Tensor] = ()) -> int:
    """How many neighbours along an axis a thread can fetch at once.

    Args:
        op: the part.
        axis: of it.
        most: bytes that a thread loads at once.
        memory: tensors that an earlier launch leaves there.
    Returns:
        a power of two; with it, all of them lie next to each other in memory from a whole vector on, or are one
        element, and are there together or not at all.
    """
    e = seen_through(op.bodies[0], memory)
    size = max((op.bodies[0].dtype.itemsize, *(ld.dtype.itemsize for ld in loads(e))))
    width = max(1, most // size)
    while width > 1 and not ((axis.hi + 1) % width == 0 and _moves(e, axis, width)):
        width //= 2
    return width


def _moves(e: Expr, axis: Var, width: int) -> bool:
    outer, lane = Var("outer", 0, (axis.hi + 1) // width - 1), Var("lane", 0, width - 1)
    split = on_first_lane(substitute_vars(e, {axis: as_index(outer) * width + lane}), lane)
    for ld in loads(split):
        offset = weighted(ld.indices, dense_strides(ld.source.shape))
        step = offset.coefficient(lane)
        if dynamics(offset) or step not in (0, 1) or ld.dtype.kind == "b":
            return False
        if step == 1 and not offset.without(lane).multiple_of(width):
            return False
    return not any(isinstance(x, Select) and lane in index_vars(x.cond) for x in walk(split))


def is_copied(op: te.Compute, memory: Collection[te.Tensor] = ()) -> bool:
    """Whether elements are what memory holds, or zeros."""
    e = seen_through(op.bodies[0], memory)
    while isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        e = e.a
    return isinstance(e, Load)


def seen_through(e: Expr, memory: Collection[te.Tensor] = ()) -> Expr:
    """An expression over what memory holds: what is computed in between is inlined, as the schedule will.

    Args:
        e: the expression.
        memory: tensors that an earlier launch leaves there, besides sums.
    """

    def inner(ld: Load) -> Expr:
        op = ld.source.op
        if op is None or op.combiner is not None or ld.source in memory:
            return ld
        (body,) = op.bodies
        return seen_through(substitute_vars(body, dict(zip(op.axes, ld.indices, strict=True))), memory)

    return replace_loads(e, inner)
