"""Reductions: several axes that are rows in memory become one."""

from __future__ import annotations

from mlc.ir.graph import Builder, Node
from mlc.ir.types import TensorType, f32
from mlc.lower.knobs import Knobs
from mlc.ops import get
from mlc.rewrite.fuse import fuse
from mlc.targets.groups.group import group_of
from mlc.targets.groups.rows import rows_in_memory


def reduced(axes: tuple[int, ...], shape: tuple[int, ...] = (2, 12, 7, 5)) -> Node:
    b = Builder()
    x = b.input("x", TensorType(shape, f32))
    (r,) = b.add(get("relu"), [x])
    (out,) = b.add(get("reduce_mean"), [r], {"axes": axes, "keepdims": True})
    (node,) = [n for n in fuse(b.finish([out])).nodes if "reduce_mean" in str(n)]
    return node


def axes_of(node: Node) -> list[int]:
    (op,) = rows_in_memory(group_of(node, Knobs())).reductions
    return [a.hi + 1 for a in op.reduce_axes]


def test_last_axes_become_one() -> None:
    assert axes_of(reduced((2, 3))) == [35]
    assert axes_of(reduced((1, 2, 3))) == [12 * 35]
    assert axes_of(reduced((0, 1, 2, 3))) == [2 * 12 * 35]


def test_other_axes_stay() -> None:
    assert axes_of(reduced((1, 3))) == [12, 5]
    assert axes_of(reduced((0, 2))) == [2, 7]
    assert axes_of(reduced((3,))) == [5]
