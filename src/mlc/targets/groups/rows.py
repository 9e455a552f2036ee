"""Reductions over what lies in one row in memory."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.expr import loads, substitute_vars
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.layout import Layout
from mlc.targets.groups.group import Group, inner_layouts, replace_compute, size_of

_ROW = "row"  # name of an axis that is several


def along_memory(op: te.Compute) -> Var | None:
    """The reduction axis that walks the innermost dimension of what is read; ``None`` when a data axis does."""
    for body in op.bodies:
        for ld in loads(body):
            if ld.indices:
                for axis in op.reduce_axes:
                    if ld.indices[-1].terms.get(axis) == 1 and axis.hi > 0:
                        return axis
    return None


def rows_in_memory(g: Group) -> Group:
    """The group over physical shapes, with one reduction axis where the last ones fold rows in memory.

    ``sum(x[n, c, h, w] for h, w)`` becomes ``sum(x[n, c, hw] for hw)``, over the same memory, and
    ``sum(x[n, c, h, w] for n, h, w)`` becomes ``sum(x[n, c, hw] for n, hw)``.
    """
    spaces = {_trailing_space(op) for op in g.reductions}
    if g.layouts or len(spaces) != 1 or None in spaces:
        return g.apply({**_operand_layouts(g), **inner_layouts(g)})
    (space,) = spaces
    assert space is not None
    rank = len(space)
    layouts = {
        t: Layout(t.shape).fuse(len(t.shape) - rank, rank)
        for t in (*g.inputs, *(t for op in g.computes for t in op.outputs))
        if t.shape[-rank:] == space
    }
    p = g.apply(layouts)
    while True:
        op = next((op for op in p.reductions if op.reduce_axes[-1].name != _ROW), None)
        if op is None:
            return p
        row = te.reduce_axis(size_of(space), _ROW)
        rest = as_index(row)
        env: dict[Var, Linear] = {}
        for a in reversed(op.reduce_axes[-rank:]):
            env[a], rest = rest % (a.hi + 1), rest // (a.hi + 1)
        bodies = tuple(substitute_vars(b, env) for b in op.bodies)
        fresh = te.Compute(op.name, op.axes, (*op.reduce_axes[:-rank], row), bodies, op.combiner, op.tag, op.attrs)
        p = replace_compute(p, op, fresh)


def _operand_layouts(g: Group) -> dict[te.Tensor, Layout]:
    """What is computed element by element from an operand, before it is folded, lies as that operand does.

    It is inlined; with other dimensions than the operand's, a reduction would not see which of its axes walks memory.
    """
    found: dict[te.Tensor, Layout] = {}
    for op in g.computes:
        t = op.outputs[0]
        if op.combiner is not None or t in g.layouts:
            continue
        for read in op.inputs:
            layout = g.layouts.get(read) or found.get(read)
            if layout is not None and read.shape == t.shape:
                found[t] = layout.core
    return found


def _trailing_space(op: te.Compute) -> tuple[int, ...] | None:
    """Extents of the most reduction axes that are the last dimensions, in order, of all that is read over them."""
    axes = op.reduce_axes
    if any(a.hi < 0 for a in axes):
        return None
    ranks = range(len(axes), 1, -1)
    return next((tuple(a.hi + 1 for a in axes[-k:]) for k in ranks if _are_trailing(op, axes[-k:])), None)


def _are_trailing(op: te.Compute, axes: Sequence[Var]) -> bool:
    """Whether some are, and whatever is read over any of them is read over all of them."""
    extents = tuple(a.hi + 1 for a in axes)
    inner = set(axes)
    reading = [ld for body in op.bodies for ld in loads(body) if any(inner & ix.vars() for ix in ld.indices)]
    return bool(reading) and all(
        ld.source.shape[-len(axes) :] == extents
        and not any(
            ix.const or ix.terms != {a: 1} for ix, a in zip(ld.indices[-len(axes) :], axes, strict=True) if a.hi > 0
        )
        for ld in reading
    )
