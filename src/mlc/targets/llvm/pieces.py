"""Vector reads whose lanes lie in a few pieces of memory: which these are, told when the code is made.

``y[0:16] = x[lane % 4, i + lane // 4]``, a copy of rows as blocks of channels, reads four neighbours in each of four
rows: four loads and some shuffles in place of a gather, which takes about as long as sixteen loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.ir.expr import Binary, Call, Expr, Within
from mlc.ir.index import Linear, Var, as_index, substitute

MOST_PIECES = 4  # that are read rather than gathered


@dataclass(frozen=True)
class Piece:
    """Neighbours in memory.

    Args:
        begin: offset of the first.
        size: how many are read; a power of two.
        lanes: of the vector that are there, with their place in the piece.
    """

    begin: Linear
    size: int
    lanes: tuple[tuple[int, int], ...]


def pieces_of(offset: Linear, lane: Var, on: Sequence[bool]) -> list[Piece] | None:
    """The pieces that a vector is read from.

    Args:
        offset: of every lane, in elements.
        lane: counts lanes.
        on: which of them are read.
    Returns:
        in ascending order; ``None`` where lanes lie in too many places, or in others from one vector to the next.
    """
    places: list[tuple[int, int]] = []
    first: Linear | None = None
    for k in range(lane.hi + 1):
        if not on[k]:
            continue
        at = substitute(offset, {lane: as_index(k)})
        first = at if first is None else first
        distance = at - first
        if not distance.is_const:
            return None
        places.append((distance.const, k))
    places.sort()
    pieces: list[Piece] = []
    while places:
        assert first is not None
        begin = places[0][0]
        here = [(k, at - begin) for at, k in places if at - begin <= lane.hi]
        size = here[-1][1] + 1
        if size & (size - 1) or len(pieces) == MOST_PIECES:
            return None
        pieces.append(Piece(first + begin, size, tuple(here)))
        places = places[len(here) :]
    return pieces


def settled(condition: Expr, lane: Var, k: int) -> bool | None:
    """Whether a condition holds for a lane wherever the loops around are; ``None`` where that depends on them."""
    if type(condition) is Within:
        lo, hi = substitute(condition.index, {lane: as_index(k)}).bounds()
        inside = condition.lo <= lo and hi < condition.hi
        return inside if inside or hi < condition.lo or lo >= condition.hi else None
    if type(condition) is Call and condition.fn == "not":
        holds = settled(condition.args[0], lane, k)
        return None if holds is None else not holds
    if type(condition) is Binary and condition.op in ("and", "or"):
        sides = [settled(side, lane, k) for side in (condition.a, condition.b)]
        decisive = condition.op == "or"  # what one side alone decides by
        return decisive if decisive in sides else None if None in sides else not decisive
    return None
