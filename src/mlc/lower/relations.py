"""What a stage notes: how its loops come from each other, and what they fetch ahead."""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.index import Var


@dataclass(slots=True, eq=False)
class Split:
    """``parent == outer * (extent of inner) + inner``; ``inner`` has ``factor`` iterations or the whole parent's."""

    parent: Var
    outer: Var
    inner: Var
    factor: int


@dataclass(slots=True, eq=False)
class Fuse:
    """``fused == outer * (extent of inner) + inner``."""

    outer: Var
    inner: Var
    fused: Var


Relation = Split | Fuse


@dataclass(slots=True, eq=False)
class Fetch:
    """Iterations of ``at`` fetch what ``ahead`` reads of a tensor ``distance`` iterations later, piece by piece."""

    tensor: te.Tensor
    ahead: Var
    at: Var
    distance: int
    level: int
    pieces: Var  # the loop from ``ahead`` to ``at`` each of whose iterations reads a contiguous part
