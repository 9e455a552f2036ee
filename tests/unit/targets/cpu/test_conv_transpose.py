"""Register tiles of transposed convolutions in blocks of channels."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.alt import in_network
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.targets.base import get_target
from mlc.tuning.task import Task, candidate

TARGET = get_target("x86 -mcpu=znver5")


def transposed(channels: int, filters: int, size: int, taps: int) -> Task:
    """A transposed convolution that doubles an image, with a rectifier behind it, on a Zen 5."""
    g = Builder("transposed")
    x = g.input("x", TensorType((1, channels, size, size), f32))
    w = g.constant(np.ones((channels, filters, taps, taps), np.float32), "w")
    pads = (taps // 2 - 1,) * 4
    attrs = {"strides": (2, 2), "pads": pads, "dilations": (1, 1), "groups": 1, "output_shape": (2 * size,) * 2}
    (y,) = g.add(get("conv_transpose"), [x, w], attrs)
    (r,) = g.add(get("relu"), [y])
    task = in_network(g.finish([r]), TARGET)
    assert task is not None
    return task


@pytest.mark.parametrize("channels, tile", [(88, (14, 2)), (96, (3, 7))])
def test_weights_that_stream_are_read_for_many_pixels_at_once(channels: int, tile: tuple[int, int]) -> None:
    """Whole blocks of channels are summed chunk by chunk, whose weights stay in a cache (ALT's figure 9)."""
    default = transposed(channels, 104, 14, 6).space.default
    assert (default["rows"], default["vectors"]) == tile


@pytest.mark.parametrize("channels", [64, 1024])
def test_few_pixels_take_enough_sums_however_deep_a_panel_is(channels: int) -> None:
    """Chunk by chunk, weights come from afar once for all tiles, not for each (a generator's first layer)."""
    default = transposed(channels, 512, 4, 4).space.default
    assert (default["rows"], default["vectors"]) == (4, 4)


@pytest.mark.parametrize("size, rows", [(4, 4), (64, 66)])
def test_rows_above_and_below_are_passed_over_where_they_count(size: int, rows: int) -> None:
    """The copy of the input has a border at the sides only."""
    task = transposed(16, 16, size, 4)
    text = str(TARGET.kernel(candidate(task, TARGET, task.space.default), "k"))
    assert f"pad: f32[1,1,{rows},{size + 2},16]" in text
