"""Strided reads of neighbouring vectors as contiguous reads and a transposition in registers.

``for j in unrolled(8): y[j, 0:8] = x[0:8, j]`` would gather eight times. Its reads are the columns of a block of eight
by eight whose rows are contiguous: eight vectors are read and transposed by shuffles. Rows that no lane chooses, as
``y[j, 0:8] = select(0 <= l - 1, x[l - 1, j], 0)`` has one for lanes ``l``, are not read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.ir import loop
from mlc.ir.expr import Const, Select, Within, conjuncts, walk
from mlc.ir.index import Linear, Var
from mlc.targets.llvm.bounds import may_leave
from mlc.targets.llvm.registers import Accesses

Column = tuple["Block", int]  # of a block, counted from its first
LANES = range(4, 17)  # of the vectors that are read


@dataclass(frozen=True, eq=False)
class Block:
    """A part of a square of elements.

    Args:
        buffer: that holds it.
        origin: offset of the first element.
        stride: elements between rows.
        rows: how many there are, and
        width: elements that are read of each.
        size: of the square, a power of two.
        chosen: the rows that are read.
    """

    buffer: loop.Buffer
    origin: Linear
    stride: int
    rows: int
    width: int
    size: int
    chosen: range


@dataclass(frozen=True)
class _Column:
    """The strided read of a vector store.

    Args:
        buffer: that is read.
        origin: offset of the first lane.
        stride: between lanes.
        lanes: of the vector.
        chosen: those that are read.
    """

    buffer: loop.Buffer
    origin: Linear
    stride: int
    lanes: int
    chosen: range

    def beside(self, other: _Column) -> int | None:
        """How many elements this column lies after another one of the same rows, whatever the loops."""
        alike = (self.stride, self.lanes, self.chosen) == (other.stride, other.lanes, other.chosen)
        if self.buffer is not other.buffer or not alike:
            return None
        apart = self.origin - other.origin
        return apart.const if apart.is_const else None


def find_blocks(stmts: Sequence[loop.Stmt], places: Accesses, *, masks: bool) -> dict[int, Column]:
    """Blocks whose columns are all read by consecutive stores.

    Args:
        stmts: in order.
        places: of the statements' function.
        masks: whether parts of vectors are read at no cost.
    Returns:
        for the position of each such store: the block of its one strided read, and which column that is. Others may
        read from the same place on, but of other rows.
    """
    found: dict[int, Column] = {}
    columns = [_column(s, places) for s in stmts]
    begin = 0
    while begin < len(stmts):
        first, start = columns[begin], begin
        begin += 1
        if first is None:
            continue
        size = 1 << (first.lanes - 1).bit_length()
        low = high = 0
        while begin < len(stmts) and (column := columns[begin]) is not None:
            apart = column.beside(first)
            # in any direction, and several times where a loop has several results
            if apart is None or not low - 1 <= apart <= high + 1 or max(apart, high) - min(apart, low) >= size:
                break
            low, high = min(apart, low), max(apart, high)
            begin += 1
        block = _block(first, low, high - low + 1, size, masks=masks)
        if block is not None:
            for k in range(start, begin):
                column = columns[k]
                assert column is not None
                found[k] = block, (column.origin - block.origin).const
    return found


def _block(first: _Column, low: int, count: int, size: int, *, masks: bool) -> Block | None:
    """The block that holds ``count`` columns from ``low`` on, if it is worth reading."""
    if 2 * count < first.lanes or (first.lanes < size and not masks):
        return None
    origin, width = first.origin + low, count
    # a few columns more than are needed may be read where that stays inside the buffer
    starts = [origin - shift for shift in range(size - count + 1)]
    start = next((s for s in starts if count < size == first.lanes and _inside(first, s, size)), None)
    if start is not None:
        origin, width = start, size
    elif count < size and not masks:
        return None
    return Block(first.buffer, origin, first.stride, first.lanes, width, size, first.chosen)


def _inside(column: _Column, origin: Linear, size: int) -> bool:
    """Whether all that is read of a whole block lies in its buffer, wherever the loops are."""
    lo, hi = origin.bounds()
    first, last = column.chosen[0], column.chosen[-1]
    return lo + first * column.stride >= 0 and hi + last * column.stride + size - 1 < column.buffer.size


def _column(s: loop.Stmt, places: Accesses) -> _Column | None:
    """The one strided read of a vector store; ``None`` for others."""
    if type(s) is not loop.Store or s.lane is None or s.lane.hi + 1 not in LANES or s.buffer.dtype.bits != 32:
        return None
    found: tuple[loop.Buffer, Linear, int] | None = None
    for buffer, indices, _ in places.of(s)[:-1]:
        if buffer.dtype.bits != 32:
            continue
        offset = places.offset(buffer, indices)
        if offset.terms.get(s.lane, 0) in (0, 1):  # nearly all are
            continue
        step = offset.coefficient(s.lane)
        if step is None:
            continue
        if buffer is s.buffer or (found is not None and found != (buffer, offset, step)):
            return None
        found = buffer, offset, step
    if found is None or found[2] < 0:
        return None
    chosen = range(s.lane.hi + 1)
    for e in walk(s.value):
        if type(e) is Select and may_leave(e):
            chosen = _chosen(e, s.lane, chosen)
    if not chosen:
        return None
    buffer, offset, step = found
    return _Column(buffer, offset.without(s.lane), step, s.lane.hi + 1, chosen)


def _chosen(e: Select, lane: Var, lanes: range) -> range:
    """Those of some lanes for which a number is chosen and no constant, whatever the loops; none if that is unknown."""
    if type(e.b) is not Const:
        return range(0)
    for guard in conjuncts(e.cond):
        if type(guard) is not Within or set(guard.index.terms) != {lane} or guard.index.terms[lane] < 0:
            return range(0)
        step, shift = guard.index.terms[lane], guard.index.const
        first, end = -(-(guard.lo - shift) // step), -(-(guard.hi - shift) // step)
        lanes = range(max(lanes.start, first), min(lanes.stop, end))
    return lanes


def shuffles(size: int) -> list[tuple[int, str, str]]:
    """The stages of a transposition of ``size`` vectors: distance of the pairs, and the masks of both their results."""
    stages = []
    distance = 1
    while distance < size:
        low = [k - distance + size if k & distance else k for k in range(size)]
        high = [k + size if k & distance else k + distance for k in range(size)]
        stages.append((distance, _mask(low), _mask(high)))
        distance *= 2
    return stages


def _mask(indices: Sequence[int]) -> str:
    return f"<{len(indices)} x i32> <" + ", ".join(f"i32 {k}" for k in indices) + ">"
