"""The random generator against its authors' known answers, in the interpreter and as vector code."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import VerifyError
from mlc.ir.expr import call, const
from mlc.ir.interp.scalar import threefry
from mlc.ir.types import i32, u32

# key and counter, and the first word of the result: the file kat_vectors of Random123 1.14
KNOWN = [
    ((0, 0, 0, 0), 0x6B200159),
    ((0xFFFFFFFF,) * 4, 0x1CB996FC),
    ((0x13198A2E, 0x03707344, 0x243F6A88, 0x85A308D3), 0xC4923A9C),
]


@pytest.mark.parametrize("words, first", KNOWN)
def test_known_answers(words: tuple[int, ...], first: int) -> None:
    result = threefry(*(np.uint32(w) for w in words))
    assert result.dtype == np.uint32
    assert int(result) == first


def test_operands_are_four_words() -> None:
    with pytest.raises(VerifyError, match="threefry"):
        call("threefry", *[const(0, u32)] * 3)
    with pytest.raises(VerifyError, match="threefry"):
        call("threefry", const(0, u32), const(0, u32), const(0, i32), const(0, u32))
