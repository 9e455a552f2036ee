"""Constants in the order in which they are loaded, so that each load of them is one run of DRAM."""

from __future__ import annotations

import numpy as np

from mlc.vdla.codegen.dma import Block, Dim, blocks


class Constants:
    """Repacked constants; what is loaded twice is stored once.

    Attributes:
        parts: by the buffer that each replaces, what it holds so far.
    """

    def __init__(self) -> None:
        self.parts: dict[int, list[np.ndarray]] = {}
        self._sizes: dict[int, int] = {}
        self._known: dict[tuple[object, ...], tuple[int, tuple[Block, ...]]] = {}

    def pack(
        self, buffer: int, array: np.ndarray, dims: tuple[Dim, ...], split: int, begin: int, offsets: np.ndarray
    ) -> tuple[int, tuple[Block, ...]]:
        """Store what a nest loads, in its order.

        Args:
            buffer: whose contents are ``array``.
            array: the constant, any shape.
            dims: the nest's loops over elements, their steps in DRAM counted in numbers.
            split: how many of its outermost loops are transfers of their own, see ``dma.blocks``.
            begin: the number that the nest begins with.
            offsets: of the numbers of one element, int64 ``[lanes]``.
        Returns:
            the element of the packed buffer where it begins now, and its transfers.
        """
        key = (buffer, dims, split, begin, offsets.tobytes())
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._store(buffer, array, dims, split, begin, offsets)
        return found

    def contents(self, buffer: int) -> bytes:
        """The bytes of a packed buffer."""
        return b"".join(p.tobytes() for p in self.parts.get(buffer, ()))

    def _store(
        self, buffer: int, array: np.ndarray, dims: tuple[Dim, ...], split: int, begin: int, offsets: np.ndarray
    ) -> tuple[int, tuple[Block, ...]]:
        loops = [d for d in dims if d.extent > 1]
        ordered = [*loops[:split], *sorted(loops[split:], key=lambda d: -d.sram)]
        numbers, copied = np.full(1, begin), np.full(1, all(d.lo < d.hi for d in dims))
        for d in ordered:
            k = np.arange(d.extent)
            numbers = (numbers[:, None] + k * d.dram).reshape(-1)
            copied = (copied[:, None] & (k >= d.lo) & (k < d.hi)).reshape(-1)
        numbers = numbers[:, None] + offsets
        values = np.where(copied[:, None], array.reshape(-1)[np.where(copied[:, None], numbers, 0)], 0)
        at = self._sizes.get(buffer, 0)
        self._sizes[buffer] = at + len(values)
        self.parts.setdefault(buffer, []).append(values.astype(array.dtype))
        step, packed = 1, []
        for d in reversed(ordered):
            packed.append(Dim(d.extent, d.sram, step, 0, d.extent))
            step *= d.extent
        return at, blocks(tuple(reversed(packed)), split)
