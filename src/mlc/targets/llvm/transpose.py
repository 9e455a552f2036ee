"""Strided reads of neighbouring vectors as contiguous reads and a transposition in registers.

``for j in unrolled(8): y[j, 0:8] = x[0:8, j]`` would gather eight times. Its reads are the columns of a block of eight
by eight whose rows are contiguous: eight vectors are read and transposed by shuffles.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.ir import loop
from mlc.ir.expr import Select, walk
from mlc.ir.index import Linear
from mlc.targets.llvm.registers import Accesses

Key = tuple[int, Linear]  # (id of the buffer, offset in elements without the lane)


@dataclass(frozen=True, eq=False)
class Block:
    """A square of elements.

    Args:
        buffer: that holds it.
        origin: offset of the first element.
        stride: elements between rows.
        size: rows, and elements of a row.
    """

    buffer: loop.Buffer
    origin: Linear
    stride: int
    size: int


def find_blocks(stmts: Sequence[loop.Stmt], places: Accesses) -> dict[Key, tuple[Block, int]]:
    """Blocks whose columns are all read by consecutive stores, by column.

    Args:
        stmts: in order.
        places: of the statements' function.
    Returns:
        for the offset of each column: its block, and which column it is.
    """
    found: dict[Key, tuple[Block, int]] = {}
    columns = [_column(s, places) for s in stmts]
    begin = 0
    while begin < len(stmts):
        first = columns[begin]
        if first is None:
            begin += 1
            continue
        buffer, origin, stride, lanes = first
        count = 1
        while count < lanes and columns[begin + count : begin + count + 1] == [(buffer, origin + count, stride, lanes)]:
            count += 1
        # a few columns more than are needed may be read where that stays inside the buffer
        starts = [origin - shift for shift in range(lanes - count + 1)] if count >= lanes // 2 else []
        start = next((s for s in starts if count == lanes or _inside(buffer, s, stride, lanes)), None)
        if start is not None:
            block = Block(buffer, start, stride, lanes)
            shift = (origin - start).const
            found |= {(id(buffer), origin + j): (block, j + shift) for j in range(count)}
        begin += count
    return found


def _inside(buffer: loop.Buffer, origin: Linear, stride: int, lanes: int) -> bool:
    """Whether a whole block lies in its buffer, wherever the loops are."""
    lo, hi = origin.bounds()
    return lo >= 0 and hi + (lanes - 1) * (stride + 1) < buffer.size


def _column(s: loop.Stmt, places: Accesses) -> tuple[loop.Buffer, Linear, int, int] | None:
    """The one strided read of a vector store: buffer, offset of its first lane, stride, lanes; ``None`` for others."""
    if type(s) is not loop.Store or s.lane is None or s.lane.hi + 1 not in (4, 8, 16) or s.buffer.dtype.bits != 32:
        return None
    found: tuple[loop.Buffer, Linear, int] | None = None
    for buffer, indices, _ in places.of(s)[:-1]:
        if buffer.dtype.bits != 32:
            continue
        offset = places.offset(buffer, indices)
        step = offset.coefficient(s.lane)
        if step is None or step in (0, 1):
            continue
        if found is not None or buffer is s.buffer:
            return None
        found = buffer, offset, step
    if found is None or any(type(e) is Select for e in walk(s.value)):
        return None
    buffer, offset, step = found
    return buffer, offset.without(s.lane), step, s.lane.hi + 1


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
