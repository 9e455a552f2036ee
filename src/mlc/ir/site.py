"""Where a group stands in its graph, as far as its layouts depend on that."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.ir.types import TensorType


@dataclass(frozen=True)
class Site:
    """The surroundings of a group.

    Args:
        inputs: types of its inputs, with layouts; constants are row-major.
        constant: which inputs are constants, and so can be packed.
        row_major: whether every reader of the results takes them in row-major layout only.
        askable: positions of inputs that can be made in whatever layout the group asks for, see
            :mod:`mlc.rewrite.layout`.
    """

    inputs: Sequence[TensorType]
    constant: Sequence[bool]
    row_major: bool = False
    askable: frozenset[int] = frozenset()
