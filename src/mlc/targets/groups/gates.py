"""Products whose columns are gates: what combines them reads the same unit of every gate."""

from __future__ import annotations

from mlc.targets.groups.group import Group
from mlc.targets.groups.roles import Contraction


def gates_of(g: Group) -> int:
    """How many gates the columns of a group's product are; 0 when it is no such group."""
    role = g.role
    if g.anchor is None or not isinstance(role, Contraction) or role.transposed or len(g.anchor.shape) != 2:
        return 0
    shape = g.outputs[0].shape
    rows, columns = g.anchor.shape
    if any(t.shape != shape for t in g.outputs) or len(shape) != 2 or shape[0] != rows or not shape[1]:
        return 0
    return columns // shape[1] if columns > shape[1] and columns % shape[1] == 0 else 0
