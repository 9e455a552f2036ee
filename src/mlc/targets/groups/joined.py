"""Windows over images whose rows follow one another, with a border that neighbours share.

A row of results that is no whole number of vectors leaves lanes empty, and a row of seven pixels most of them. In a
copy of the input whose rows are all as long as a row of results and what windows reach beyond it, the windows of a
pixel are at the same distances wherever it is: results are one run over all rows, of which those between the end of a
row and the beginning of the next are computed for nothing. Zeros beyond the end of a row serve the beginning of the
next as well. The rows of several images follow one another likewise.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.expr import Expr, Load, all_of, const, replace_loads, select, within
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.types import f32
from mlc.targets.groups.borders import surrounded
from mlc.targets.groups.group import Group, replace_anchor
from mlc.targets.groups.roles import Convolution


@dataclass(frozen=True)
class Rows:
    """How rows of results and of the copy follow one another.

    Args:
        width: from one row to the next, in results.
        height: from one image to the next, in rows; those of results where images are apart.
        images: that are joined; 1 where they are apart.
        reach: results from a window's first tap to its last, along rows and along columns, in whole strides.
    """

    width: int
    height: int
    images: int
    reach: tuple[int, int]

    @property
    def beyond(self) -> int:
        """Results from a window's first tap to its last."""
        return self.reach[0] * self.width + self.reach[1]

    def extent(self, rows: int, columns: int) -> int:
        """Results from the first to the last of some rows, those for nothing included."""
        return (rows - 1) * self.width + columns


def may_be_joined(g: Group) -> bool:
    """Whether a group is a convolution of floats over images, its windows several pixels, with zeros around if any."""
    role, anchor = g.role, g.anchor
    if not isinstance(role, Convolution) or anchor is None or len(anchor.shape) != 4 or role.single_pixels:
        return False
    floats = all(t.dtype is f32 for t in (role.data, role.weights, *anchor.outputs))
    return floats and 0 not in anchor.shape and _inside(role) is not None


def rows_of(g: Group, *, images: bool) -> Rows:
    """How the rows of a convolution that :func:`may_be_joined` follow one another.

    Args:
        g: the group.
        images: whether those of all images do.
    """
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    found = _inside(role)
    assert found is not None
    data, before = found
    n, _, *space = anchor.shape
    reach = tuple((k - 1) * d // s for k, d, s in zip(role.taps, role.dilations, role.strides, strict=True))
    height, width = (_shared(role, d, space[d], data.shape[2 + d], before[d]) for d in range(2))
    return Rows(width, height if images else space[0], n if images else 1, (reach[0], reach[1]))


def _inside(role: Convolution) -> tuple[te.Tensor, tuple[int, int]] | None:
    """What windows slide over without its border, and the zeros above and to the left; nothing if it has no such."""
    data = role.data
    if data.op is None:
        return data, (0, 0)
    found = surrounded(data)
    if found is None:
        return None
    op, inside = found
    if any(ix.terms != {a: 1} for a, ix in zip(op.axes, inside.indices, strict=True) if a.hi > 0):
        return None
    n, c, h, w = (ix.const for ix in inside.indices)
    return (inside.source, (-h, -w)) if n == c == 0 else None


def _shared(role: Convolution, d: int, extent: int, size: int, before: int) -> int:
    """The least distance of rows (or images) at which nothing but zeros is read of the next one.

    Args:
        role: the convolution.
        d: the spatial axis.
        extent: of its results.
        size: of the input without its border.
        before: zeros before it.
    """
    stride = role.strides[d]
    beyond = [
        (i + k * role.dilations[d] // stride, k * role.dilations[d] % stride)
        for i in range(extent) for k in range(role.taps[d])
    ]  # fmt: skip

    def is_zero(at: int, phase: int) -> bool:
        return not 0 <= at * stride + phase - before < size

    last = max(at for at, _ in beyond)
    return next(
        n for n in range(extent, last + 2)
        if all(is_zero(at, phase) and is_zero(at - n, phase) for at, phase in beyond if at >= n)
    )  # fmt: skip


def joined(g: Group, rows: Rows, excess: int) -> tuple[Group, te.Tensor]:
    """The group with its anchor over a run of results, and a stage behind it that takes rows out of that.

    The copy is ``[n, c, row % stride, column % stride, row, column]``, and the anchor ``[n, o, run]``, where there is
    one ``n`` if images are joined.

    Args:
        g: a group that :func:`may_be_joined`.
        rows: how these follow one another.
        excess: results that may be computed beyond the last.
    Returns:
        the group, and the copy.
    """
    role, anchor = g.role, g.anchor
    assert isinstance(role, Convolution)
    assert anchor is not None
    found = _inside(role)
    assert found is not None
    data, before = found
    count, channels, *space = data.shape
    (n, o, h, w), apart = anchor.axes, rows.images == 1
    run = rows.extent((rows.images - 1) * rows.height + h.hi + 1, w.hi + 1) + excess

    def element(m: Linear, c: Linear, a: Linear, b: Linear, row: Linear, column: Linear) -> Expr:
        image, above = (m, row) if apart else (row // rows.height, row % rows.height)
        y, x = above * role.strides[0] + a - before[0], column * role.strides[1] + b - before[1]
        inside = [within(image, 0, count), within(y, 0, space[0]), within(x, 0, space[1])]
        return select(all_of(inside), data[(image, c, y, x)], const(0, data.dtype))

    shape = (count if apart else 1, channels, *role.strides, -(-(run + rows.beyond) // rows.width), rows.width)
    copy = te.compute(shape, element, "rows", tag="pad", axis_names=("n", "c", "a", "b", "h", "w"))
    image, at = (n if apart else Var("n", 0, 0)), Var("q", 0, run - 1)

    def swap(ld: Load) -> Expr:
        if ld.source is not role.data:
            return ld
        taps = [as_index(r) * k for r, k in zip(anchor.reduce_axes[1:], role.dilations, strict=True)]
        phases = [t % s for t, s in zip(taps, role.strides, strict=True)]
        moved = as_index(at) + taps[0] // role.strides[0] * rows.width + taps[1] // role.strides[1]
        return Load(copy, (as_index(image), ld.indices[1], *phases, moved // rows.width, moved % rows.width))

    bodies = tuple(replace_loads(b, swap) for b in anchor.bodies)
    axes = (image, o, at)
    sums = te.Compute(anchor.name, axes, anchor.reduce_axes, bodies, anchor.combiner, anchor.tag, anchor.attrs)
    (total,) = te.finish(sums)
    place = as_index(h) * rows.width + w + (0 if apart else as_index(n) * (rows.height * rows.width))
    taken = total[(as_index(n) if apart else 0, o, place)]
    g = replace_anchor(g, te.Compute("rows", anchor.axes, (), (taken,), None, "copy", {}))
    return Group(g.inputs, g.outputs, total.op, g.layouts, g.knobs), copy
