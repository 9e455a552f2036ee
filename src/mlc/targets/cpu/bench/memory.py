"""Buffers with red zones: whoever writes past an end is found out."""

from __future__ import annotations

import mmap
import os
from collections.abc import Sequence

import numpy as np

ALIGNMENT = 64
RED_ZONE = 4096
_PATTERN = 0xA5


class GuardedBuffers:
    """Aligned buffers one after the other, with bytes of a known pattern before, between and after them.

    Args:
        sizes: bytes of each buffer.
        file: that holds them, which other processes may map; memory of this process alone unless given.

    Attributes:
        base: address of all of it.
        nbytes: its size.
    """

    def __init__(self, sizes: Sequence[int], file: int = -1) -> None:
        starts, end = [], 0
        for size in sizes:
            starts.append(-(-(end + RED_ZONE) // ALIGNMENT) * ALIGNMENT)
            end = starts[-1] + size
        self.nbytes = end + RED_ZONE
        if file < 0:
            self._map = mmap.mmap(-1, self.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        else:
            os.ftruncate(file, self.nbytes)
            self._map = mmap.mmap(file, self.nbytes)
        memory = np.frombuffer(self._map, np.uint8)
        self.buffers = [memory[a : a + n] for a, n in zip(starts, sizes, strict=True)]
        ends = [0, *(a + n for a, n in zip(starts, sizes, strict=True))]
        self._zones = [memory[a:b] for a, b in zip(ends, [*starts, len(memory)], strict=True)]
        for zone in self._zones:
            zone.fill(_PATTERN)
        self.base: int = memory.__array_interface__["data"][0]
        self.addresses = [self.base + a for a in starts]

    def broken(self) -> str:
        """Where somebody wrote outside all buffers, in words; empty if nobody did."""
        for k, zone in enumerate(self._zones):
            if (zone != _PATTERN).any():
                at = np.flatnonzero(zone != _PATTERN)
                if k and (k == len(self.buffers) or at[0] < len(zone) // 2):
                    return f"{int(at[0])} bytes past the end of buffer {k - 1}"
                return f"{len(zone) - int(at[-1])} bytes before buffer {k}"
        return ""
