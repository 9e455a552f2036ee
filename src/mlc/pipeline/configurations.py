"""What a compilation asks of whoever knows what was tuned."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from mlc.ir.graph import Node
from mlc.ir.site import Site
from mlc.ops.algorithms import Algorithm


class Configurations(Protocol):
    """Gives operators their algorithms, and groups their tuned configurations."""

    def algorithm(self, node: Node, known: Sequence[Algorithm]) -> Algorithm | None:
        """By which algorithm an operator is to be computed; nothing where that is left to the target.

        Args:
            node: the operator, row-major, before it is fused; it may stand for several of the graph.
            known: what the target has, two or more; what it would take comes first.
        """
        ...

    def configure(self, node: Node, site: Site) -> Node:
        """A group with its configuration, or as it is.

        Args:
            node: the group, row-major.
            site: where it stands.
        """
        ...

    def refuse(self, group: tuple[str, ...], reason: str) -> None:
        """The configuration of a group, told by its identity, cannot be built; it is not to be given again."""
        ...
