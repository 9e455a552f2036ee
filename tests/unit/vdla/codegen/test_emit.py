from __future__ import annotations

import numpy as np
import pytest

from mlc.ir.types import i32
from mlc.vdla.config import PROFILES
from tests.unit.vdla.codegen.layers import Conv, executed, plain, program_of

CONVOLUTIONS = {
    "1x1": Conv(),
    "1x1, several tiles": Conv(c=4, o=6, tile=(2, 4, 8, 2)),
    "3x3": Conv(c=2, o=2, window=3, pad=1, tile=(1, 4, 8, 1)),
}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_sums_of_convolutions(name: str, profile: str) -> None:
    conv, config = CONVOLUTIONS[name], PROFILES[profile]
    x, w = conv.arrays()
    program = program_of(plain(conv, config), config, {1: w}, conv.slots)
    result, _ = executed(program, {"data": x}, (conv.o, *conv.space, 16), i32, "sums")
    np.testing.assert_array_equal(result, conv.sums())
