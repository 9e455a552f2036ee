"""Tiles and weights of convolutions in row-major layout."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.ir import te
from mlc.ir.types import f32
from mlc.ops import get
from mlc.targets.cpu.schedules.conv_plain import plain_tile, plain_weight_layout
from mlc.targets.groups.group import Group
from mlc.targets.x86.record import record_for

TARGETS = [record_for(cpu) for cpu in ("skylake-avx512", "haswell", "x86-64")]


def convolution(channels: int, filters: int, groups: int, space: tuple[int, ...], kernel: int = 1) -> Group:
    rank = len(space)
    x = te.placeholder((1, channels, *space), f32, "x")
    w = te.placeholder((filters, channels // groups, *(kernel,) * rank), f32, "w")
    attrs = {"strides": (1,) * rank, "pads": (0,) * 2 * rank, "dilations": (1,) * rank, "groups": groups}
    (y,) = get("conv").express([x, w], attrs)  # type: ignore[misc]
    return Group((x, w), (y,), y.op, {})


@pytest.mark.parametrize("target", TARGETS, ids=lambda t: t.cpu)
@pytest.mark.parametrize("filters, groups", [(60, 3), (7, 1), (240, 3), (26, 2), (512, 1)])
@pytest.mark.parametrize("space", [(7, 7), (28, 28), (5,), (1, 1)])
def test_tiles_fit_the_registers_and_the_channels_of_a_group(target, filters, groups, space) -> None:  # type: ignore[no-untyped-def]
    tile = plain_tile(convolution(4 * groups, filters, groups, space), target)
    assert filters // groups % tile.rows == 0
    assert tile.rows * tile.vectors + tile.vectors <= target.registers


def test_weights_lie_in_the_order_of_use() -> None:
    group = convolution(12, 60, 3, (28, 28), 3)
    layout = plain_weight_layout(group, TARGETS[1])
    rows = plain_tile(group, TARGETS[1]).rows
    assert layout.physical_shape == (60 // rows, 4, 3, 3, rows)
    array = np.arange(60 * 4 * 9, dtype=np.float32).reshape(60, 4, 3, 3)
    np.testing.assert_array_equal(layout.pack(array)[1, 2, 0, 1], array[rows : 2 * rows, 2, 0, 1])
