"""Sets of places in a memory, in the shapes that instructions touch, and the state arrays under them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Indices = npt.NDArray[np.int64]
State = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class Block:
    """``rows`` runs of ``width`` places, ``pitch >= width`` apart."""

    start: int
    rows: int
    pitch: int
    width: int


Places = Block | Indices


def run(start: int, count: int) -> Block:
    """Places one after another."""
    return Block(start, 1, count, count)


def gathered(indices: Indices) -> Places:
    """The distinct places among indices, which is a run where they have no gap."""
    distinct = np.unique(indices)
    if len(distinct) and distinct[-1] - distinct[0] + 1 == len(distinct):
        return run(int(distinct[0]), len(distinct))
    return distinct


def granules(start: int, rows: int, pitch: int, width: int, size: int) -> Places:
    """The granules that rows of bytes touch.

    Args:
        start: first byte of the first row.
        rows: 1 or more.
        pitch: bytes from one row to the next.
        width: bytes of a row, 1 or more.
        size: bytes of a granule.
    """
    first = start // size
    if rows == 1 or pitch == 0 or pitch == width:
        end = start + (rows - 1) * pitch + width
        return run(first, -(-end // size) - first)
    if pitch % size == 0:
        count = -(-(start + width) // size) - first
        if count <= pitch // size:
            return Block(first, rows, pitch // size, count)
    begins = start + pitch * np.arange(rows, dtype=np.int64)
    most = -(-(width + size - 1) // size)
    touched = begins[:, None] // size + np.arange(most)
    return gathered(touched[touched < -(-(begins[:, None] + width) // size)])


def read(state: State, places: Places) -> State:
    """The state of the places: flat for indices, a view of rows for a block."""
    if isinstance(places, Block):
        if places.rows == 1:
            return state[places.start : places.start + places.width]
        whole = state[places.start : places.start + places.rows * places.pitch]
        return whole.reshape(places.rows, places.pitch)[:, : places.width]
    return state[places]


def write(state: State, places: Places, value: int) -> None:
    """Gives all the places one state."""
    if isinstance(places, Block):
        read(state, places)[...] = value
    else:
        state[places] = value


def nth(places: Places, position: int) -> int:
    """The place at a position of the flattened ``read``."""
    if isinstance(places, Block):
        row, column = divmod(position, places.width)
        return places.start + row * places.pitch + column
    return int(places[position])


def end_of(places: Block) -> int:
    """The first place that no view of the block covers, so how long its state must be."""
    return places.start + places.rows * places.pitch
