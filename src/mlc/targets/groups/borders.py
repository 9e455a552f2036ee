"""Terms of convolutions that lie in the border around their input: they add zeros, and can be passed over."""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from mlc.ir import te
from mlc.ir.expr import Const, Expr, Load, Select, all_of, const, loads, replace_loads, select, within
from mlc.ir.index import Linear, as_index, substitute
from mlc.lower.relayout import padded_load
from mlc.targets.groups.group import Group, replace_anchor
from mlc.targets.groups.roles import Convolution, PhasedConvolution, is_border


def without_border(g: Group, *, columns: bool) -> Group:
    """The group whose anchor's terms are conditional on being inside of the input.

    ``sum(pad[n, c, h + r, w + s] * k[o, c, r, s])`` becomes
    ``sum(select(0 <= h + r - 1 < H, pad[n, c, h + r - 1, w + s] * k[o, c, r, s], 0))``, where ``pad`` is left without a
    border above and below; with ``columns`` it is left without any, and its input is read in its place. Rows are all
    spatial axes but the last, which schedules make vectors or tiles of. Weights that are not finite lose the NaN that
    they make of a zero.

    Args:
        g: the group; its input may have margins.
        columns: whether places along the last axis are conditional, too. These conditions cut loops, where those of
            rows are tested.
    """
    cut = _axes_with_border(g, columns=columns)
    if not cut:
        return g
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution | PhasedConvolution)
    data = _bordered_elsewhere(role.data, {d for d, _, _ in cut})
    at = {d: ix for d, ix, _ in cut}

    def swap(ld: Load) -> Expr:
        if ld.source is not role.data:
            return ld
        return Load(data, tuple(at.get(d, ix) for d, ix in enumerate(ld.indices)))

    last = len(role.data.shape) - 1
    guard = all_of([within(ix, 0, n, tested=d < last) for d, ix, n in cut])
    body = replace_loads(anchor.bodies[0], swap)
    if type(body) is Select and type(body.b) is Const and body.b.value == 0:  # phases that meet no such tap
        guard, body = all_of([guard, body.cond]), body.a
    return replace_anchor(g, te.with_bodies(anchor, [select(guard, body, const(0, body.dtype))]))


def _bordered_elsewhere(data: te.Tensor, bare: Collection[int]) -> te.Tensor:
    """A tensor with a border as it is without the border along some axes; what is inside where none is left."""
    found = surrounded(data)
    assert found is not None
    op, inside = found
    x: te.Tensor = inside.source
    if all(d in bare or ix == as_index(a) for d, (ix, a) in enumerate(zip(inside.indices, op.axes, strict=True))):
        return x
    shape = tuple(x.shape[d] if d in bare else n for d, n in enumerate(data.shape))
    in_margins = op.bodies[0] is inside

    def element(*at: Linear) -> Expr:
        env = dict(zip(op.axes, at, strict=True))
        places = [
            i if d in bare else substitute(ix, env) for d, (i, ix) in enumerate(zip(at, inside.indices, strict=True))
        ]
        if in_margins:
            return x[tuple(places)]
        guards = [within(ix, 0, n) for ix, n in zip(places, x.shape, strict=True)]
        return select(all_of(guards), x[tuple(places)], const(0, x.dtype))

    return te.compute(shape, element, op.name, tag=op.tag, axis_names=[a.name for a in op.axes])


def share_inside(g: Group, *, columns: bool) -> float:
    """The share of a convolution's terms that are inside of its input; 1 where nothing is padded.

    Args:
        g: the group; its input may have margins.
        columns: whether places along the last axis count; only rows otherwise.
    """
    shares = []
    for _, ix, n in _axes_with_border(g, columns=columns):
        places = [ix.const]
        for v, step in ix.terms.items():
            places = [p + step * k for p in places for k in range(v.hi + 1)]
        shares.append(sum(0 <= p < n for p in places) / len(places))
    return prod(shares)


def columns_inside(g: Group) -> tuple[tuple[int, int], ...]:
    """For every tap along the last axis: the first place whose term is inside of the input, the one after the last."""
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    width, taps, last = anchor.shape[-1], role.taps[-1], len(anchor.shape) - 1
    found = next(((ix, n) for d, ix, n in _axes_with_border(g, columns=True) if d == last), None)
    if found is None:
        return ((0, width),) * taps
    ix, n = found
    step, apart = ix.terms.get(anchor.axes[-1], 0), ix.terms.get(anchor.reduce_axes[-1], 0)
    inside = [[w for w in range(width) if 0 <= ix.const + step * w + apart * k < n] for k in range(taps)]
    return tuple((some[0], some[-1] + 1) if some else (0, 0) for some in inside)


def _axes_with_border(g: Group, *, columns: bool) -> list[tuple[int, Linear, int]]:
    """For every spatial axis with a border: which it is, where in the input a term reads, and the input's extent."""
    role = g.role
    if g.anchor is None or not isinstance(role, Convolution | PhasedConvolution):
        return []
    found = surrounded(role.data)
    read = [ld for ld in loads(g.anchor.bodies[0]) if ld.source is role.data]
    if found is None or len(read) != 1:
        return []
    op, inside = found
    env = dict(zip(op.axes, read[0].indices, strict=True))
    axes = range(2, len(role.data.shape) - (0 if columns else 1))
    places = [(d, substitute(inside.indices[d], env), inside.source.shape[d]) for d in axes]
    return [(d, ix, n) for d, ix, n in places if ix.bounds()[0] < 0 or ix.bounds()[1] >= n]


def surrounded(t: te.Tensor) -> tuple[te.Compute, Load] | None:
    """The compute that surrounds a tensor by zeros, its own or those of margins, and what it reads inside."""
    op = t.op
    if op is None or op.combiner is not None or len(op.bodies) != 1:
        return None
    body = op.bodies[0]
    inside = body if type(body) is Load else padded_load(body) if is_border(op) else None
    if inside is None or len(inside.indices) != len(op.axes):
        return None
    own = all(ix.vars() <= {a} for ix, a in zip(inside.indices, op.axes, strict=True))
    return (op, inside) if own else None
