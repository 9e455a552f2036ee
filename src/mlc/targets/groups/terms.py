"""Sums of products in whole instructions: more terms than there are, which padding makes zeros."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import Expr, Load, Select, all_of, const, replace_loads, select, substitute_vars, within
from mlc.ir.index import Linear, Var, as_index, substitute
from mlc.targets.groups.group import Group, replace_anchor, size_of
from mlc.targets.groups.roles import Contraction, Convolution, Window, is_border


def over_channels(g: Group, data: te.Tensor, weights: te.Tensor, channels: int, *, copied: bool) -> Group:
    """A convolution that sums over more input channels of a group than it has.

    Right for integers whose weights are a packed constant: their padding holds zeros (``Layout.pack``), and whatever
    the padding of the data holds, it counts for nothing. Both have to be padded to ``channels`` at least.

    Args:
        g: a convolution, which may pass over rows in the border; what comes back has no role any more.
        data, weights: its operands.
        channels: to sum over.
        copied: whether the data are a copy of an input, not that itself seen from elsewhere.
    """
    anchor = g.anchor
    assert anchor is not None
    old = anchor.reduce_axes[0]
    if channels == old.hi + 1:
        return g
    c = te.reduce_axis(channels, old.name)

    def swap(ld: Load) -> Expr:
        if ld.source not in (data, weights):
            return ld
        own = ld.indices[1] - as_index(old) if old in ld.indices[1].vars() else ld.indices[1]
        moved = Load(ld.source, (ld.indices[0], own + as_index(c), *ld.indices[2:]))
        return moved if copied else _read(moved)

    return _summed(g, anchor, (c, *anchor.reduce_axes[1:]), [replace_loads(b, swap) for b in anchor.bodies])


def over_runs(g: Group, terms: int) -> Group:
    """A convolution whose windows are runs of neighbours in memory, and which sums over all terms of one at once.

    ``sum(x[n, c, h + r, w + s] * k[o, c, r, s] for c, r, s)`` becomes
    ``sum(rows[n, h, w + t // RC, t % RC] * k[o, t % C, t // C % R, t // RC] for t)``, where
    ``rows[n, h, w, r * C + c] = x[n, c, h + r, w]``: what a row of results reads, side by side. So ``t`` counts
    elements of ``rows`` from the first of a window on, and what it reads beyond the last meets zeros, see
    :func:`over_channels`. Data expand by the rows of a window over its stride.

    Args:
        g: a convolution without groups whose taps are neighbours; what comes back has no role any more.
        terms: to sum over: those of a window, or some more.
    Source: Cho and Brand, MEC: Memory-efficient Convolution for Deep Neural Network (ICML 2017).
    """
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    data, channels, above = role.data, role.data.shape[1], role.taps[:-1]
    column = channels * size_of(above)

    def term(t: Linear) -> tuple[Linear, ...]:
        """The channel of a term of a column, and its row along all axes but the last."""
        rows: list[Linear] = []
        rest = t // channels
        for extent in reversed(above):
            rows.insert(0, rest % extent)
            rest = rest // extent
        return t % channels, *rows

    def element(n: Linear, *at: Linear) -> Expr:
        *space, w, t = at
        c, *taps = term(t)
        rows = [i * k + r for i, k, r in zip(space, role.strides, taps, strict=False)]
        return select(within(w, 0, data.shape[-1]), data[(n, c, *rows, w)], const(0, data.dtype))

    width = (anchor.shape[-1] - 1) * role.strides[-1] - (-terms // column)
    names = ("n", *[a.name for a in anchor.axes[2:]], "t")
    rows = te.compute((data.shape[0], *anchor.shape[2:-1], width, column), element, "rows", tag="pad", axis_names=names)
    over = te.reduce_axis(terms, "t")
    t = as_index(over)
    n, o, *space, w = map(as_index, anchor.axes)
    read = {
        data: rows[(n, *space, w * role.strides[-1] + t // column, t % column)],
        role.weights: role.weights[(o, *term(t % column), t // column)],
    }
    bodies = [replace_loads(b, lambda ld: read.get(ld.source, ld)) for b in anchor.bodies]
    return _summed(g, anchor, (over,), bodies)


def over_taps(g: Group, taps: int) -> Group:
    """A depthwise window that sums over more taps of a row than it has; see :func:`over_channels`.

    What it slides over gets as many columns as those taps reach: of zeros, or whatever its border holds.

    Args:
        g: a window with weights; what comes back has no role any more.
        taps: to sum over along the last axis.
    """
    role, anchor = g.role, g.anchor
    assert isinstance(role, Window)
    assert anchor is not None
    old = anchor.reduce_axes[-1]
    k = te.reduce_axis(taps, old.name)
    wide = _wider(role.data, (anchor.shape[-1] - 1) * role.strides[-1] + taps)

    def swap(ld: Load) -> Expr:
        return Load(wide, ld.indices) if ld.source is role.data else ld

    bodies = [replace_loads(substitute_vars(b, {old: as_index(k)}), swap) for b in anchor.bodies]
    return _summed(g, anchor, (*anchor.reduce_axes[:-1], k), bodies)


def _wider(data: te.Tensor, columns: int) -> te.Tensor:
    """A tensor with so many columns at least; a border and what only moves elements are wider themselves."""
    *others, width = data.shape
    if columns <= width:
        return data
    op = data.op
    inside: Load | None = None
    around: Expr = const(0, data.dtype)
    if op is not None and op.combiner is None and len(op.bodies) == 1:
        body = op.bodies[0]
        if type(body) is Select and is_border(op):  # any other condition says which elements there are, and stays
            around, body = body.b, body.a
        inside = body if type(body) is Load else None

    def element(*at: Linear) -> Expr:
        source, places = data, at
        if inside is not None and op is not None:
            env = dict(zip(op.axes, at, strict=True))
            source, places = inside.source, tuple(substitute(ix, env) for ix in inside.indices)
        guards = [within(ix, 0, n) for ix, n in zip(places, source.shape, strict=True)]
        return select(all_of(guards), source[tuple(places)], around)

    return te.compute((*others, columns), element, "pad", tag="pad")


def over_depth(g: Group, depth: int) -> Group:
    """A matrix product that sums over more terms than it has; see :func:`over_channels`."""
    role, anchor = g.role, g.anchor
    assert isinstance(role, Contraction)
    assert anchor is not None
    (old,) = anchor.reduce_axes
    if depth == old.hi + 1:
        return g
    k = te.reduce_axis(depth, old.name)
    right = len(role.right.shape) - (1 if role.transposed else 2)

    def swap(ld: Load) -> Expr:
        if ld.source not in (role.left, role.right):
            return ld
        at = right if ld.source is role.right else len(ld.indices) - 1
        return Load(ld.source, tuple(as_index(k) if d == at else ix for d, ix in enumerate(ld.indices)))

    return _summed(g, anchor, (k,), [replace_loads(b, swap) for b in anchor.bodies])


def _read(ld: Load) -> Expr:
    """What a load reads where its tensor is nothing but another one moved: that has no padding of its own."""
    op = ld.source.op
    if op is None or op.combiner is not None or len(op.bodies) != 1 or type(op.bodies[0]) is not Load:
        return ld
    return substitute_vars(op.bodies[0], dict(zip(op.axes, ld.indices, strict=True)))


def _summed(g: Group, anchor: te.Compute, over: tuple[Var, ...], bodies: list[Expr]) -> Group:
    fresh = te.Compute(anchor.name, anchor.axes, over, tuple(bodies), anchor.combiner, anchor.tag, anchor.attrs)
    return replace_anchor(g, fresh)
