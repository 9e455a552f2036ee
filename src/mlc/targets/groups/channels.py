"""Reductions that fold channels as well as space: over blocked tensors they are better summed up channel by channel."""

from __future__ import annotations

from collections.abc import Collection

from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, substitute_vars
from mlc.ir.index import Linear, Var, as_index
from mlc.targets.groups.group import Group, replace_compute


def sums_by_channel(g: Group, blocked: Collection[te.Tensor]) -> Group:
    """The group with every reduction over channels and space of a blocked tensor in two steps.

    ``sum(x[n, size*g + r, h, w] for r, h, w)`` becomes ``sum(part[n, size*g + r] for r)`` of
    ``part[n, c] = sum(x[n, c, h, w] for h, w)``, and each channel
    is a lane of a block however they are grouped.

    Args:
        g: a group, with logical shapes.
        blocked: its inputs whose channels (dimension 1) lie in blocks.
    """
    while True:
        found = next(((op, fresh) for op in g.reductions if (fresh := _in_two_steps(op, blocked)) is not None), None)
        if found is None:
            return g
        g = replace_compute(g, *found)


def _in_two_steps(op: te.Compute, blocked: Collection[te.Tensor]) -> te.Compute | None:
    """A reduction's second step, which reads the first; ``None`` where it is not over channels and space."""
    if len(op.bodies) != 1 or not 1 <= len(op.axes) <= 2 or len(op.reduce_axes) < 2:
        return None
    (body,) = op.bodies
    batch, space = op.axes[0], op.reduce_axes[1:]
    group, member = op.axes[1] if len(op.axes) == 2 else None, op.reduce_axes[0]
    if member.hi < 1 or any(a.hi < 0 for a in (*op.axes, *op.reduce_axes)):
        return None
    size = member.hi + 1
    channel = as_index(member) if group is None else as_index(group) * size + member
    read = [ld for ld in loads(body) if ld.source in blocked]
    if not read or not all(_reads_channel(ld, batch, channel, space) for ld in read):
        return None
    if any(member in ix.terms for ld in loads(body) if ld.source not in blocked for ix in ld.indices):
        return None
    n, c = Var(batch.name, 0, batch.hi), Var("c", 0, size * (1 if group is None else group.hi + 1) - 1)
    rest = [Var(a.name, 0, a.hi) for a in space]
    env: dict[Var, Linear | Var] = {batch: n, member: as_index(c) % size, **dict(zip(space, rest, strict=True))}
    if group is not None:
        env[group] = as_index(c) // size
    term: Expr = substitute_vars(body, env)
    first = te.Compute(f"{op.name}.channel", (n, c), tuple(rest), (term,), op.combiner, op.tag, op.attrs)
    (part,) = te.finish(first)
    second = Load(part, (as_index(batch), channel))
    return te.Compute(op.name, op.axes, (member,), (second,), op.combiner, op.tag, op.attrs)


def _reads_channel(ld: Load, batch: Var, channel: Linear, space: tuple[Var, ...]) -> bool:
    """Whether a load is ``x[batch, channel, …]`` with nothing but ``space`` behind."""
    if len(ld.indices) != 2 + len(space):
        return False
    expected = (as_index(batch), channel, *(as_index(a) for a in space))
    return all((ix - at).is_const and (ix - at).const == 0 for ix, at in zip(ld.indices, expected, strict=True))
