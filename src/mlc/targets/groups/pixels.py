"""Convolutions whose windows are single pixels: matrix products over those pixels that a stride leaves."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads
from mlc.ir.index import as_index
from mlc.targets.groups.group import Group, replace_anchor


def is_single_pixel(anchor: te.Compute) -> bool:
    """Whether every window is one pixel."""
    return all(a.hi == 0 for a in anchor.reduce_axes[1:])


def skips_pixels(anchor: te.Compute) -> bool:
    """Whether every window is one pixel, and not all pixels are read."""
    return is_single_pixel(anchor) and any(k > 1 for k in anchor.attrs["strides"])


def copy_of_pixels(g: Group) -> Group:
    """Give a convolution with windows of one pixel a copy of the pixels that it reads, and nothing else, as input."""
    assert g.anchor is not None
    anchor = g.anchor
    data = anchor.inputs[0]
    space = anchor.shape[2:]
    strides = anchor.attrs["strides"]
    copy = te.compute(
        (*data.shape[:2], *space),
        lambda n, c, *at: data[(n, c, *(i * k for i, k in zip(at, strides, strict=True)))],
        "pixels", tag="copy", axis_names=("n", "c", *[a.name for a in anchor.axes[2:]]),
    )  # fmt: skip

    def swap(ld: Load) -> Expr:
        return Load(copy, (*ld.indices[:2], *map(as_index, anchor.axes[2:]))) if ld.source is data else ld

    bodies = tuple(replace_loads(b, swap) for b in anchor.bodies)
    attrs = {**anchor.attrs, "strides": (1,) * len(space)}
    axes, reduce_axes = anchor.axes, anchor.reduce_axes
    return replace_anchor(g, te.Compute(anchor.name, axes, reduce_axes, bodies, anchor.combiner, anchor.tag, attrs))
