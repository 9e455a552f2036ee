"""Register tiles of transposed convolutions in blocks of channels."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.papers.alt import in_network
from mlc.ir.graph import Builder
from mlc.ir.types import TensorType, f32
from mlc.ops import get
from mlc.targets.base import get_target
from mlc.tuning.task import candidate


@pytest.mark.parametrize("channels, tile", [(88, (14, 2)), (96, (3, 7))])
def test_weights_that_stream_are_read_for_many_pixels_at_once(channels: int, tile: tuple[int, int]) -> None:
    """Whole blocks of channels are summed chunk by chunk, whose weights stay in a cache (ALT's figure 9)."""
    g = Builder("transposed")
    x = g.input("x", TensorType((1, channels, 14, 14), f32))
    w = g.constant(np.ones((channels, 104, 6, 6), np.float32), "w")
    attrs = {"strides": (2, 2), "pads": (2,) * 4, "dilations": (1, 1), "groups": 1, "output_shape": (28, 28)}
    (y,) = g.add(get("conv_transpose"), [x, w], attrs)
    (r,) = g.add(get("relu"), [y])
    task = in_network(g.finish([r]), get_target("x86 -mcpu=znver5"))
    assert task is not None
    assert (task.space.default["rows"], task.space.default["vectors"]) == tile


@pytest.mark.parametrize("channels", [64, 1024])
def test_few_pixels_take_enough_sums_however_deep_a_panel_is(channels: int) -> None:
    """Chunk by chunk, weights come from afar once for all tiles, not for each (a generator's first layer)."""
    g = Builder("transposed")
    x = g.input("x", TensorType((1, channels, 4, 4), f32))
    w = g.constant(np.ones((channels, 512, 4, 4), np.float32), "w")
    attrs = {"strides": (2, 2), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1, "output_shape": (8, 8)}
    (y,) = g.add(get("conv_transpose"), [x, w], attrs)
    (r,) = g.add(get("relu"), [y])
    task = in_network(g.finish([r]), get_target("x86 -mcpu=znver5"))
    assert task is not None
    assert (task.space.default["rows"], task.space.default["vectors"]) == (4, 4)


@pytest.mark.parametrize("size, rows", [(4, 4), (64, 66)])
def test_rows_above_and_below_are_passed_over_where_they_count(size: int, rows: int) -> None:
    """The copy of the input has a border at the sides only."""
    g = Builder("transposed")
    x = g.input("x", TensorType((1, 16, size, size), f32))
    w = g.constant(np.ones((16, 16, 4, 4), np.float32), "w")
    attrs = {"strides": (2, 2), "pads": (1,) * 4, "dilations": (1, 1), "groups": 1, "output_shape": (2 * size,) * 2}
    (y,) = g.add(get("conv_transpose"), [x, w], attrs)
    (r,) = g.add(get("relu"), [y])
    target = get_target("x86 -mcpu=znver5")
    task = in_network(g.finish([r]), target)
    assert task is not None
    text = str(target.kernel(candidate(task, target, task.space.default), "k"))
    assert f"pad: f32[1,1,{rows},{size + 2},16]" in text
