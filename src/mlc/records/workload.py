"""What a record is found by: a group as its schedule sees it, apart from any model."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mlc.ir.graph import Node, Value
from mlc.ir.types import TensorType
from mlc.rewrite.group import body_of
from mlc.targets.base import LayoutChoice


def laid_out(node: Node, types: Sequence[TensorType], choice: LayoutChoice) -> Node:
    """A group with layouts: what its schedule is made for.

    Args:
        node: a fused group.
        types: of its inputs, with layouts; constants are row-major.
        choice: what the machine wants.
    """
    wanted = {**choice.packed, **choice.asked}
    inputs = tuple(
        Value(v.name, t.with_layout(wanted[k]) if k in wanted else t)
        for k, (v, t) in enumerate(zip(node.inputs, types, strict=True))
    )
    outputs = tuple(
        v if layout is None else Value(v.name, TensorType(v.type.shape, v.type.dtype).with_layout(layout))
        for v, layout in zip(node.outputs, choice.outputs, strict=True)
    )
    return Node(node.op, inputs, node.attrs, outputs, node.sources)


def name_of(node: Node) -> str:
    """Operators and the shape of the result, such as ``conv_add_relu_64x56x56``."""
    words = "_".join(dict.fromkeys(n.op.name for n in body_of(node).nodes))
    shape = "x".join(map(str, node.outputs[0].type.shape[1:] or node.outputs[0].type.shape))
    return re.sub(r"[^a-z0-9_]", "_", words.lower())[:40] + "_" + shape
