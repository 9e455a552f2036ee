"""The generator behind the intrinsic ``threefry``: a function of a key and a counter, without any state.

Source: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3" (SC 2011), section 3.2. Additions,
rotations and exclusive ors of 32-bit words are all it takes, where Philox wants products of 64 bits.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

ROUNDS = 20
_ROTATIONS = (13, 15, 26, 6, 17, 29, 16, 24)
_PARITY = 0x1BD11BDA


def threefry(word: Callable[[int], Any], k0: Any, k1: Any, c0: Any, c1: Any) -> Any:
    """The first word of Threefry-2x32-20, a bijection of the counter ``c`` for every key ``k``.

    Args:
        word: makes a word of a number.
        k0, k1, c0, c1: words of 32 bits of anything that adds modulo 2^32, shifts logically, and has ``|`` and ``^``.
    """
    keys = (k0, k1, k0 ^ k1 ^ word(_PARITY))
    x, y = c0 + k0, c1 + k1
    for i in range(ROUNDS):
        turn = _ROTATIONS[i % len(_ROTATIONS)]
        x = x + y
        y = ((y << word(turn)) | (y >> word(32 - turn))) ^ x
        if i % 4 == 3:
            group = i // 4 + 1
            x, y = x + keys[group % 3], y + keys[(group + 1) % 3] + word(group)
    return x
