"""The accelerator's external memory: bytes with an allocator, and views of them as the elements that transfers move."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError
from mlc.vdla.program import ALIGNMENT, DRAM_BYTES

_FIRST = 1 << 20
_CLEARED = 1 << 20  # bytes looked at, and cleared, at a time

Bytes = npt.NDArray[np.uint8]


class Dram:
    """Byte-addressed memory that grows on demand, zero where nothing was written.

    Places are handed out first fit, 256-byte aligned. Everything that reaches beyond the memory is refused, never
    wrapped around.

    Args:
        limit: the most bytes it may grow to; the 32-bit element addresses of instructions reach further.
    """

    def __init__(self, limit: int = DRAM_BYTES) -> None:
        self.limit = limit
        self.data: Bytes = np.zeros(_FIRST, np.uint8)
        self._top = 0
        self._clear = 0  # nothing was ever written from here on
        self._sizes: dict[int, int] = {}
        self._holes: list[tuple[int, int]] = []  # (address, bytes), by address, never adjacent

    def alloc(self, nbytes: int, alignment: int = ALIGNMENT) -> int:
        """The address of ``nbytes`` zeroed bytes.

        Raises:
            DeviceError: the memory is full, or the size or alignment is none.
        """
        if nbytes < 0 or alignment < 1:
            raise DeviceError(f"cannot allocate {nbytes} bytes aligned to {alignment}")
        step = max(alignment, ALIGNMENT)
        if step % ALIGNMENT:
            raise DeviceError(f"cannot align to {alignment} bytes; alignments are multiples of {ALIGNMENT}")
        size = max(_round_up(nbytes, ALIGNMENT), ALIGNMENT)
        for number, (at, room) in enumerate(self._holes):
            address = _round_up(at, step)
            if address + size <= at + room:
                rest = [(at, address - at), (address + size, at + room - address - size)]
                self._holes[number : number + 1] = [hole for hole in rest if hole[1]]
                return self._take(address, size)
        address = _round_up(self._top, step)
        if address > self._top:
            self._holes.append((self._top, address - self._top))
        self._reserve(address + size)
        self._top = address + size
        return self._take(address, size)

    def free(self, address: int) -> None:
        """Gives a place back.

        Raises:
            DeviceError: nothing was allocated there.
        """
        size = self._sizes.pop(address, None)
        if size is None:
            raise DeviceError(f"nothing was allocated at address {address}")
        holes = sorted([*self._holes, (address, size)])
        merged: list[tuple[int, int]] = []
        for at, room in holes:
            if merged and merged[-1][0] + merged[-1][1] == at:
                merged[-1] = (merged[-1][0], merged[-1][1] + room)
            else:
                merged.append((at, room))
        if merged[-1][0] + merged[-1][1] == self._top:
            self._top = merged.pop()[0]
        self._holes = merged

    def room(self, address: int) -> int:
        """Bytes from an address to the end of the place that it lies in, whose size is rounded up to 256; else 0."""
        begin = max((at for at in self._sizes if at <= address), default=address)
        return max(begin + self._sizes.get(begin, 0) - address, 0)

    def write(self, address: int, content: bytes | memoryview | npt.NDArray[np.generic]) -> None:
        """Copies bytes in; the array's own bytes, in row-major order, if it is one."""
        if isinstance(content, np.ndarray):
            new = np.ascontiguousarray(content).reshape(-1).view(np.uint8)
        else:
            new = np.frombuffer(content, np.uint8)
        self._inside(address, len(new), "a write")
        self.data[address : address + len(new)] = new
        self._clear = max(self._clear, address + len(new))

    def read(self, address: int, nbytes: int) -> Bytes:
        """A copy of ``nbytes`` bytes."""
        self._inside(address, nbytes, "a read")
        return self.data[address : address + nbytes].copy()

    def rows(
        self, base: int, rows: int, columns: int, stride: int, element: tuple[int, ...], dtype: npt.DTypeLike
    ) -> npt.NDArray[np.generic]:
        """A view ``[rows, columns, *element]`` of the memory: what a transfer reads or writes.

        Args:
            base: the first element's address, counted in elements.
            rows, columns: elements moved; none gives an empty view.
            stride: elements between the starts of rows.
            element: the shape of one element.
            dtype: the type of its parts.
        Raises:
            DeviceError: it reaches beyond the memory.
        """
        kind = np.dtype(dtype)
        strides = [kind.itemsize]
        for extent in reversed(element):
            strides.insert(0, strides[0] * extent)
        size = strides[0]
        last = base + (rows - 1) * stride + columns
        if rows > 0 and columns > 0 and last * size > len(self.data):
            raise DeviceError(
                f"DRAM bytes {base * size} to {last * size} lie outside the {len(self.data)} of the memory"
            )
        empty = rows <= 0 or columns <= 0
        if not empty:
            self._clear = max(self._clear, last * size)
        return np.ndarray(
            (rows, columns, *element),
            kind,
            buffer=self.data,
            offset=0 if empty else base * size,
            strides=(stride * size, *strides),
        )

    def _take(self, address: int, size: int) -> int:
        self._sizes[address] = size
        # Most of a large place was never written: what is only read takes no memory.
        end = min(address + size, self._clear)
        for at in range(address, end, _CLEARED):
            part = self.data[at : min(at + _CLEARED, end)]
            if part.any():
                part[:] = 0
        return address

    def _reserve(self, end: int) -> None:
        if end > self.limit:
            raise DeviceError(
                f"the device's memory of {self.limit} bytes is full",
                hint="free buffers that are no longer needed",
            )
        if end > len(self.data):
            grown = np.zeros(min(max(end, 2 * len(self.data)), self.limit), np.uint8)
            grown[: self._clear] = self.data[: self._clear]
            self.data = grown

    def _inside(self, address: int, nbytes: int, what: str) -> None:
        if address < 0 or nbytes < 0 or address + nbytes > len(self.data):
            raise DeviceError(
                f"{what} of bytes {address} to {address + nbytes} lies outside the {len(self.data)} of the memory"
            )


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
