"""The stages of a Winograd convolution, found from what they do (:mod:`mlc.ops.winograd`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from mlc.ir import te
from mlc.ops.winograd import KERNEL
from mlc.targets.groups.group import Group
from mlc.targets.groups.roles import factors_of


class Stages(NamedTuple):
    """The stages of a Winograd convolution, in order; see :func:`mlc.ops.winograd.conv_winograd`."""

    columns: te.Tensor
    points: te.Tensor
    products: te.Tensor
    rows: te.Tensor
    tiles: te.Tensor

    @property
    def tile(self) -> int:
        """Outputs of a tile along each axis."""
        return self.rows.shape[0]


def stages_of(g: Group) -> Stages | None:
    """The stages of a group that is a Winograd convolution: two transforms by rows, products, and two more."""
    anchor = g.anchor
    operands = factors_of(anchor) if anchor is not None else None
    if anchor is None or operands is None or len(anchor.shape) not in (4, 5):
        return None
    products, points = anchor.outputs[0], operands[0].source
    columns = only(points.op.inputs) if points.op is not None else None
    rows = only([op.outputs[0] for op in g.computes if products in op.inputs])
    tiles = only([op.outputs[0] for op in g.computes if rows is not None and rows in op.inputs])
    if columns is None or columns.op is None or rows is None or tiles is None:
        return None
    a, m = anchor.shape[0], rows.shape[0]
    transforms = points.shape == columns.shape and points.shape[:2] == anchor.shape[:2] == (a, a)
    back = rows.shape == (m, *anchor.shape[1:]) and a == m + KERNEL - 1
    plain = all(t.op is not None and t.op.combiner is None for t in (columns, points, rows, tiles))
    space = len(anchor.shape) == len(tiles.shape) and tiles.shape[1] == anchor.shape[-1]
    return Stages(columns, points, products, rows, tiles) if transforms and back and plain and space else None


def only(tensors: Sequence[te.Tensor]) -> te.Tensor | None:
    """The one tensor that there is, if there is just one."""
    return tensors[0] if len(tensors) == 1 else None


def weights_of(g: Group) -> te.Tensor:
    """The transformed weights that the product reads."""
    assert g.anchor is not None
    return g.anchor.inputs[1]
