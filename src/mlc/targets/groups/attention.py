"""Groups that are attention: which of their stages is what."""

from __future__ import annotations

from typing import NamedTuple

from mlc.ir import te
from mlc.targets.groups.group import Group
from mlc.targets.groups.roles import Contraction, is_exponential, role_of


class Stages(NamedTuple):
    """The stages of attention, in order; see :func:`mlc.ops.attention.attention`."""

    scores: te.Tensor
    masked: te.Tensor
    greatest: te.Tensor
    powers: te.Tensor
    total: te.Tensor
    sums: te.Tensor


def stages_of(g: Group) -> Stages | None:
    """The stages of a group that is attention: a product of exponentials, less a row's greatest, of another product."""
    mean = g.role
    if g.anchor is None or not isinstance(mean, Contraction) or mean.transposed or mean.left.op is None:
        return None
    powers, sums = mean.left, g.anchor.outputs[0]
    inner = mean.left.op.inputs
    if not is_exponential(mean.left.op) or len(inner) != 2 or any(t.op is None for t in inner):
        return None
    masked, greatest = inner if inner[0].shape == powers.shape else inner[::-1]
    total = [op.outputs[0] for op in g.reductions if op.combiner is te.SUM and op.inputs == [powers]]
    products = [t for t in (masked.op.inputs if masked.op is not None else ()) if t.op is not None]
    if len(total) != 1 or len(products) != 1 or products[0].op is None or greatest.op is None:
        return None
    (scores,) = products
    rows = sums.shape[:-1]
    if not isinstance(role_of(products[0].op), Contraction):
        return None
    if greatest.op.combiner is not te.MAX or greatest.op.inputs != [masked]:
        return None
    shapes = scores.shape == masked.shape == powers.shape and greatest.shape == total[0].shape == rows
    return Stages(scores, masked, greatest, powers, total[0], sums) if shapes else None
