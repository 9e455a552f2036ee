"""Vector reads whose lanes lie in a few pieces of memory: which these are, told when the code is made.

``y[0:16] = x[lane % 4, i + lane // 4]``, a copy of rows as blocks of channels, reads four neighbours in each of four
rows: four loads and some shuffles in place of a gather, which takes about as long as sixteen loads.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mlc.ir.expr import Binary, Call, Expr, Within
from mlc.ir.index import Linear, Var, as_index, substitute
from mlc.ir.loop import Buffer

MOST_PIECES = 4  # that are read rather than gathered
GATHERED = 4  # bytes of the narrowest elements that processors gather


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


def pieces_of(buffer: Buffer, offset: Linear, lane: Var, read: Iterable[int]) -> list[Piece] | None:
    """The pieces that a vector is read from.

    Args:
        buffer: that holds them.
        offset: of every lane, in elements.
        lane: counts lanes.
        read: lanes that are read; also those of other vectors, before this one and behind it.
    Returns:
        in ascending order; ``None`` where lanes lie in too many places, or in others from one vector to the next.
    """
    places: list[tuple[int, int]] = []
    first: Linear | None = None
    for k in read:
        at = substitute(offset, {lane: as_index(k)})
        first = at if first is None else first
        distance = at - first
        if not distance.is_const:
            return None
        places.append((distance.const, k))
    places.sort()
    most = MOST_PIECES if buffer.dtype.itemsize >= GATHERED else max(MOST_PIECES, len(places) // 2)
    pieces: list[Piece] = []
    while places:
        assert first is not None
        begin = places[0][0]
        here = [(k, at - begin) for at, k in places if at - begin <= lane.hi]
        piece = _read_whole(buffer, first + begin, here)
        if piece is None or len(pieces) == most:
            return None
        pieces.append(piece)
        places = places[len(here) :]
    return pieces


def _read_whole(buffer: Buffer, begin: Linear, lanes: Sequence[tuple[int, int]]) -> Piece | None:
    """A piece of some lanes, with more before or behind them up to a power of two where these are in the buffer."""
    count = lanes[-1][1] + 1
    size = 1 << (count - 1).bit_length()
    for shift in dict.fromkeys((0, size - count)):
        least, most = (begin - shift).bounds()
        if size == count or (least >= 0 and most + size <= buffer.size):
            return Piece(begin - shift, size, tuple((k, at + shift) for k, at in lanes))
    return None


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
