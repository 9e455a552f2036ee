"""RoiAlign and DeformConv against the reference, with places outside of the image."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, ours

RNG = np.random.default_rng(17)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape).astype(np.float32)


REGIONS = np.array([[0, 0, 9, 5], [1.3, 2.2, 4.4, 3.1], [-6, -3, 2, 3], [5, 4, 30, 20], [3, 3, 3, 3]], np.float32)


@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("scale", [1.0, 0.5])
def test_roi_align(mode, transformation, scale):
    operands = [normal(2, 3, 6, 10), REGIONS, np.array([0, 1, 1, 0, 1])]
    compare(
        "RoiAlign", operands, opset=16, mode=mode, coordinate_transformation_mode=transformation, spatial_scale=scale,
        sampling_ratio=2, output_height=3, output_width=2, rtol=1e-4, atol=1e-5,
    )  # fmt: skip


def test_as_many_places_as_a_region_needs_are_not_known():
    with pytest.raises(UnsupportedError, match="sampling_ratio 0"):
        ours("RoiAlign", [normal(1, 1, 4, 4), REGIONS, np.zeros(5, np.int64)], opset=16)


@pytest.mark.parametrize("group, parts", [(1, 1), (2, 1), (1, 2), (2, 4)])
@pytest.mark.parametrize("masked", [False, True])
def test_deform_conv(group, parts, masked):
    offset = 2 * normal(2, parts * 2 * 6, 2, 3)
    more = [normal(6), RNG.uniform(0, 1, (2, parts * 6, 2, 3)).astype(np.float32)] if masked else []
    operands = [normal(2, 4, 5, 6), normal(6, 4 // group, 2, 3), offset, *more]
    compare(
        "DeformConv", operands, opset=19, group=group, offset_group=parts, pads=[1, 1, 0, 1], strides=[2, 2],
        dilations=[2, 1], kernel_shape=[2, 3], rtol=1e-4, atol=1e-4,
    )  # fmt: skip


def test_offsets_have_to_fit():
    for shape in ((1, 6, 3, 3), (1, 8, 3, 4)):
        with pytest.raises(ImportModelError, match=r"offset is .*, \(1, 8, 3, 3\) is needed"):
            ours("DeformConv", [normal(1, 1, 4, 4), normal(1, 1, 2, 2), normal(*shape)], opset=19)
