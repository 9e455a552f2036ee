"""What a workload's text leaves open, kept beside it in records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from mlc.errors import WorkloadError
from mlc.ir.graph import Node
from mlc.ir.types import TensorType
from mlc.rewrite.group import literals_of
from mlc.rewrite.workload import MAX_EXTENT, MAX_NODES

Margins = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Beside:
    """What the text of a group's workload does not tell.

    Args:
        literals: bytes of the constants of one element inside the group, which the text names by digests.
        margins: zeros before and after each physical dimension of every input and then every result, as the group's
            neighbours in its model want them: none for a value without any, and nothing at all where no value has any.
            They are no part of a workload, but loops are other ones where a padded copy can be spared.
    """

    literals: tuple[bytes, ...] = ()
    margins: tuple[Margins, ...] = ()

    @classmethod
    def of(cls, node: Node) -> Self:
        """That of a compiled group."""
        margins = tuple(_margins(v.type) for v in (*node.inputs, *node.outputs))
        return cls(literals_of(node), margins if any(margins) else ())

    def to_json(self) -> dict[str, Any]:
        """Its fields, without those that are empty."""
        found: dict[str, Any] = {}
        if self.literals:
            found["literals"] = [data.hex() for data in self.literals]
        if self.margins:
            found["margins"] = [[list(pair) for pair in value] for value in self.margins]
        return found

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> Self:
        """The inverse of :meth:`to_json`, from an object that may hold anything.

        Raises:
            WorkloadError: a field is of a wrong type.
        """
        try:
            literals = tuple(bytes.fromhex(text) for text in _list(body, "literals"))
        except (TypeError, ValueError):
            raise WorkloadError("literals are no hexadecimal digits") from None
        return cls(literals, tuple(_pairs(value) for value in _list(body, "margins")))


NOTHING = Beside()


def _margins(type_: TensorType) -> Margins:
    return type_.layout.margins if type_.layout is not None and type_.layout.has_margins else ()


def _list(body: Mapping[str, Any], name: str) -> list[Any]:
    found = body.get(name, [])
    if type(found) is not list or len(found) > MAX_NODES:
        raise WorkloadError(f"{name} are no list")
    return found


def _pairs(value: Any) -> Margins:
    if type(value) is list and all(type(pair) is list and len(pair) == 2 for pair in value):
        found = tuple((before, after) for before, after in value)
        if all(type(n) is int and 0 <= n <= MAX_EXTENT for pair in found for n in pair):
            return found
    raise WorkloadError("margins are no pairs of whole numbers")


def with_margins(type_: TensorType, margins: Margins) -> TensorType:
    """A type with zeros around what it has in memory.

    Raises:
        WorkloadError: the value has other dimensions in memory.
    """
    if not margins:
        return type_
    layout = type_.layout
    if layout is None or len(margins) != len(layout.physical_shape):
        raise WorkloadError(f"margins of {len(margins)} dimensions around {type_}")
    for d, (before, after) in enumerate(margins):
        layout = layout.margin(d, before, after)
    return type_.with_layout(layout)
