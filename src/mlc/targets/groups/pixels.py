"""Convolutions whose windows are single pixels: matrix products over those pixels that a stride leaves."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads
from mlc.ir.index import as_index
from mlc.targets.groups.group import Group, replace_anchor
from mlc.targets.groups.roles import Convolution


def skips_pixels(g: Group) -> bool:
    """Whether every window is one pixel, and not all pixels are read."""
    role = g.role
    if not isinstance(role, Convolution) or not role.single_pixels or g.anchor is None:
        return False
    return role.data.shape[2:] != g.anchor.shape[2:]


def copy_of_pixels(g: Group) -> Group:
    """Give a convolution with windows of one pixel a copy of the pixels that it reads, and nothing else, as input."""
    anchor, role = g.anchor, g.role
    assert anchor is not None
    assert isinstance(role, Convolution)
    data = role.data
    copy = te.compute(
        (*data.shape[:2], *anchor.shape[2:]),
        lambda n, c, *at: data[(n, c, *(i * k for i, k in zip(at, role.strides, strict=True)))],
        "pixels", tag="copy", axis_names=("n", "c", *[a.name for a in anchor.axes[2:]]),
    )  # fmt: skip

    def swap(ld: Load) -> Expr:
        return Load(copy, (*ld.indices[:2], *map(as_index, anchor.axes[2:]))) if ld.source is data else ld

    bodies = tuple(replace_loads(b, swap) for b in anchor.bodies)
    axes, reduce_axes = anchor.axes, anchor.reduce_axes
    fresh = te.Compute(anchor.name, axes, reduce_axes, bodies, anchor.combiner, anchor.tag, anchor.attrs)
    return replace_anchor(g, fresh)
