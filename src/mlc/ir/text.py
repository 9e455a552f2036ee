"""What ``repr`` of a node prints, without the nodes knowing who prints them.

:mod:`mlc.ir.printer` knows all three languages and says here which function writes which class; the room's
``__init__`` imports it, so whoever has a node has its text.
"""

from __future__ import annotations

from functools import singledispatch


@singledispatch
def printed(node: object) -> str:
    """The Python-like text of a node of any of the languages."""
    return object.__repr__(node)


class Printable:
    """Base of nodes that print as text."""

    __slots__ = ()

    def __repr__(self) -> str:
        return printed(self)
