from __future__ import annotations

import pytest

from mlc.targets.cpu.bench.memory import ALIGNMENT, GuardedBuffers


def test_buffers_are_aligned_apart_and_writable() -> None:
    memory = GuardedBuffers([5, 0, 4096, 64])
    assert [len(b) for b in memory.buffers] == [5, 0, 4096, 64]
    assert all(a % ALIGNMENT == 0 for a in memory.addresses)
    for buffer in memory.buffers:
        buffer.fill(1)
    assert memory.broken() == ""


@pytest.mark.parametrize(
    "zone, at, words",
    [
        (0, -1, "1 bytes before buffer 0"),
        (0, -8, "8 bytes before buffer 0"),
        (1, 0, "0 bytes past the end of buffer 0"),
        (2, 12, "12 bytes past the end of buffer 1"),
        (2, 4095, "4095 bytes past the end of buffer 1"),
    ],
)
def test_a_single_byte_outside_is_found(zone: int, at: int, words: str) -> None:
    memory = GuardedBuffers([100, 33])
    memory._zones[zone][at] ^= 1
    assert memory.broken() == words
