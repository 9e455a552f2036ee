"""Margins of a group's tensors: no part of its workload, but kept with what was measured."""

from __future__ import annotations

from typing import Any

from mlc.errors import WorkloadError
from mlc.fields import as_list, as_whole, wrong
from mlc.ir.graph import Node, Value
from mlc.ir.types import TensorType
from mlc.rewrite.workload import MAX_EXTENT, MAX_OPERANDS, MAX_RANK

Margins = tuple[tuple[int, int], ...]


def margins_of(node: Node) -> tuple[Margins, ...]:
    """Zeros before and after each physical dimension of every input and then every result of a compiled group.

    They are what its neighbours in its model want, and loops are other ones where a padded copy can be spared: none
    for a value without any, and nothing at all where no value has any.
    """
    found = tuple(_margins(v.type) for v in (*node.inputs, *node.outputs))
    return found if any(found) else ()


def _margins(type_: TensorType) -> Margins:
    return type_.layout.margins if type_.layout is not None and type_.layout.has_margins else ()


def margins_from_json(value: Any, where: str) -> tuple[Margins, ...]:
    """Margins as JSON tells them, from what may be anything.

    Raises:
        DocumentError: they are no lists of pairs of whole numbers.
    """
    return as_list(value, where, lambda item, at: as_list(item, at, _pair, 2 * MAX_RANK), 2 * MAX_OPERANDS)


def _pair(value: Any, where: str) -> tuple[int, int]:
    found = as_list(value, where, as_whole(0, MAX_EXTENT))
    if len(found) != 2:
        raise wrong(where, "two whole numbers", value)
    return found[0], found[1]


def surrounded(node: Node, margins: tuple[Margins, ...]) -> Node:
    """A group of which some values have margins.

    Raises:
        WorkloadError: it has other values, or they have other dimensions in memory.
    """
    if not margins:
        return node
    values = (*node.inputs, *node.outputs)
    if len(margins) != len(values):
        raise WorkloadError(f"margins of {len(margins)} values, a workload has {len(values)}")
    new = tuple(Value(v.name, _with_margins(v.type, m)) for v, m in zip(values, margins, strict=True))
    count = len(node.inputs)
    return Node(node.op, new[:count], node.attrs, new[count:], node.sources)


def _with_margins(type_: TensorType, margins: Margins) -> TensorType:
    if not margins:
        return type_
    layout = type_.layout
    if layout is None or len(margins) != len(layout.physical_shape):
        raise WorkloadError(f"margins of {len(margins)} dimensions around {type_}")
    for d, (before, after) in enumerate(margins):
        layout = layout.margin(d, before, after)
    return type_.with_layout(layout)
