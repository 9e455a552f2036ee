"""Lists of integers: an attribute, or in new opsets an input."""

from __future__ import annotations

from collections.abc import Sequence

from mlc.errors import ImportModelError
from mlc.frontend.common.axes import ints
from mlc.frontend.common.context import Context
from mlc.frontend.onnx.registry import OnnxNode
from mlc.ir.graph import Value


def ints_of(
    ctx: Context, node: OnnxNode, inputs: Sequence[Value | None], name: str, position: int
) -> tuple[int, ...] | None:
    """The integers given as attribute ``name`` or as input ``position``; ``None`` when they are left out."""
    values = node.attr(name)
    if values is not None:
        return tuple(values)
    value = inputs[position] if position < len(inputs) else None
    return None if value is None else ints(ctx, value, name)


def int_list(node: OnnxNode, name: str, count: int, default: int) -> tuple[int, ...]:
    """An attribute of ``count`` integers, ``default`` for each when it is absent.

    Raises:
        ImportModelError: it has another number of them.
    """
    values = node.attr(name)
    if not values:
        return (default,) * count
    if len(values) != count:
        raise ImportModelError(f"attribute {name!r} has {len(values)} numbers, {count} are needed")
    return tuple(int(v) for v in values)
