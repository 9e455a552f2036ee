from __future__ import annotations

import numpy as np
import pytest

from mlc.errors import ImportModelError, UnsupportedError
from tests.unit.frontend.onnx.single import compare, imported, operators_of, ours, output_of, theirs

F = np.random.default_rng(13).normal(size=(1, 2, 4, 6)).astype(np.float32)


def floats(*values):
    return np.array(values, np.float32)


def sizes(*values):
    return np.array(values, np.int64)


def stored(name, operands, **options):
    """Compare with all operands but the first stored in the model."""
    compare(name, operands, constants=[k for k, a in enumerate(operands) if k and a is not None], **options)


@pytest.mark.parametrize("scales", [(1, 1, 2, 2), (1, 1, 2, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_upsample_and_the_first_resize(scales, mode):
    compare("Upsample", [F], opset=7, scales=[float(s) for s in scales], mode=mode)
    stored("Upsample", [F, floats(*scales)], opset=9, mode=mode)
    stored("Resize", [F, floats(*scales)], opset=10, mode=mode)


@pytest.mark.parametrize("out", [(4, 6), (8, 12), (2, 3), (7, 5), (3, 13), (1, 1)])
@pytest.mark.parametrize("nearest", ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
def test_nearest(out, nearest, coordinates):
    operands = [F, None, None, sizes(1, 2, *out)]
    stored("Resize", operands, opset=13, coordinate_transformation_mode=coordinates, nearest_mode=nearest)


def test_tensorflow_nearest():
    operands = [F, floats(), floats(), sizes(1, 2, 7, 3)]
    mode = "tf_half_pixel_for_nn"
    stored("Resize", operands, opset=11, coordinate_transformation_mode=mode, nearest_mode="floor")


@pytest.mark.parametrize("out", [(8, 12), (2, 3), (7, 5), (3, 13)])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric", "align_corners", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_weighted_modes(out, coordinates, mode):
    operands = [F, None, None, sizes(1, 2, *out)]
    stored("Resize", operands, opset=13, coordinate_transformation_mode=coordinates, mode=mode)


@pytest.mark.parametrize("attrs", [{"cubic_coeff_a": -0.5}, {"exclude_outside": 1}])
def test_cubic_options(attrs):
    stored("Resize", [F, None, floats(1, 1, 0.8, 1.7)], opset=13, mode="cubic", **attrs)


@pytest.mark.parametrize("scales", [(1, 1, 2.5, 1.3), (1, 1, 0.6, 0.4), (1, 1, 0.33333334, 0.5)])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_fractional_scales(scales, mode):
    stored("Resize", [F, None, floats(*scales)], opset=13, mode=mode, coordinate_transformation_mode="asymmetric")


@pytest.mark.parametrize("mode", ["linear", "cubic"])
def test_antialias_of_upscaling_changes_nothing(mode):
    operands = [F, None, None, sizes(1, 2, 9, 7)]
    plain = output_of("Resize", operands, opset=18, constants=[3], mode=mode)
    filtered = output_of("Resize", operands, opset=18, constants=[3], mode=mode, antialias=1)
    np.testing.assert_allclose(filtered, plain, atol=1e-6)


@pytest.mark.parametrize("mode, operator", [("linear", "resample"), ("cubic", "matmul")])
def test_antialias_averages_over_what_an_output_covers(mode, operator):
    x = np.random.default_rng(0).normal(size=(1, 1, 1, 48)).astype(np.float32)
    operands, options = (
        [x, None, None, sizes(1, 1, 1, 12)],
        {"opset": 18, "constants": [3], "mode": mode, "antialias": 1},
    )
    # away from the borders, where onnxruntime leaves out what ONNX repeats
    mine, reference = (f("Resize", operands, **options)[0][..., 2:-2] for f in (ours, theirs))
    np.testing.assert_allclose(mine, reference, rtol=1e-5, atol=1e-5)
    assert operator in operators_of(imported("Resize", operands, **options))
    np.testing.assert_allclose(output_of("Resize", [x * 0 + 3, *operands[1:]], **options), 3, rtol=1e-6)


@pytest.mark.parametrize("mode", ["nearest", "linear"])
def test_crop_and_resize(mode):
    roi = floats(0, 0, 0.2, -0.3, 1, 1, 0.9, 1.4)
    options = dict(coordinate_transformation_mode="tf_crop_and_resize", mode=mode, extrapolation_value=9.0)
    stored("Resize", [F, roi, None, sizes(1, 2, 5, 8)], opset=13, **options)


@pytest.mark.parametrize("policy", ["stretch", "not_larger", "not_smaller"])
def test_axes_and_aspect_ratio(policy):
    operands = [F, None, None, sizes(7, 8)]
    stored("Resize", operands, opset=18, axes=[2, 3], keep_aspect_ratio_policy=policy, mode="linear")


def test_half_pixel_symmetric():
    x = np.arange(4, dtype=np.float32).reshape(1, 1, 1, 4)
    out = output_of(
        "Resize",
        [x, None, floats(1, 1, 1, 0.6)],
        opset=19,
        constants=[2],
        mode="linear",
        coordinate_transformation_mode="half_pixel_symmetric",
    )
    # two outputs, as far apart as the scale says, centred on the input
    np.testing.assert_allclose(out.reshape(-1), [1.5 - 0.5 / 0.6, 1.5 + 0.5 / 0.6], rtol=1e-6)


def test_integers_are_rounded():
    x = np.array([0, 100, 255], np.uint8).reshape(1, 1, 1, 3)
    out = output_of("Resize", [x, None, None, sizes(1, 1, 1, 6)], opset=13, constants=[3], mode="linear")
    np.testing.assert_array_equal(out.reshape(-1), [0, 25, 75, 139, 216, 255])
    nearest = output_of("Resize", [x, None, None, sizes(1, 1, 1, 6)], opset=13, constants=[3])
    np.testing.assert_array_equal(nearest.reshape(-1), [0, 0, 100, 100, 255, 255])


def test_half_precision():
    operands = [F.astype(np.float16), None, None, sizes(1, 2, 8, 12)]
    out = output_of("Resize", operands, opset=13, constants=[3], mode="linear")
    assert out.dtype == np.float16


def test_whole_scales_of_nearest_are_index_arithmetic():
    graph = imported("Resize", [F, None, floats(1, 1, 2, 3)], opset=13, constants=[2])
    assert operators_of(graph) == ["resize_nearest"]
    assert operators_of(imported("Resize", [F, None, floats(1, 1, 1, 1)], opset=13, constants=[2])) == []


def test_empty_outputs():
    out = output_of("Resize", [F, None, floats(1, 1, 0.1, 2)], opset=13, constants=[2])
    assert out.shape == (1, 2, 0, 12)


@pytest.mark.parametrize(
    "operands, attrs, error, message",
    [
        ([F, None, floats(1, 1)], {}, ImportModelError, "2 scales for 4 axes"),
        ([F, None, floats(1, 1, 0, 1)], {}, ImportModelError, "scale 0.0"),
        ([F, None, floats(1, 1, np.nan, 1)], {}, ImportModelError, "scale nan"),
        ([F, None, None, sizes(1, 1)], {}, ImportModelError, r"sizes \[1, 1\] for 4 axes"),
        ([F, None, None, sizes(1, 1, -1, 1)], {}, ImportModelError, r"sizes \[1, 1, -1, 1\] for 4 axes"),
        ([F, None, floats()], {}, ImportModelError, "neither scales nor sizes"),
        (
            [F[:, :, :0], None, None, sizes(1, 2, 3, 6)],
            {},
            ImportModelError,
            "axis 2 is empty, it cannot be resized to 3",
        ),
        ([F, None, None, sizes(1, 2, 8, 8)], {"mode": "area"}, ImportModelError, "'area', known: cubic, linear"),
        ([F, None, None, sizes(1, 2, 8, 8)], {"nearest_mode": "x"}, ImportModelError, "'x', known: ceil, floor"),
        (
            [F, None, None, sizes(1, 2, 8, 8)],
            {"keep_aspect_ratio_policy": "x"},
            ImportModelError,
            "keep_aspect_ratio_policy 'x'",
        ),
        (
            [F, None, None, sizes(1, 2, 8, 8)],
            {"coordinate_transformation_mode": "tf_crop_and_resize"},
            ImportModelError,
            "roi has 0 values for 4 axes",
        ),
        ([F, None, None, sizes(1, 2, 8, 8)], {"antialias": 1}, UnsupportedError, "antialias of mode nearest"),
        ([F, None, None, sizes(1, 2, 1 << 30, 1 << 30)], {}, ImportModelError, "the limit"),
    ],
)
def test_refusals(operands, attrs, error, message):
    known = [k for k, a in enumerate(operands) if k and a is not None]
    with pytest.raises(error, match=message):
        ours("Resize", operands, opset=18, constants=known, **attrs)


def test_sizes_that_depend_on_inputs_are_refused():
    with pytest.raises(UnsupportedError, match="sizes depends on the model's inputs"):
        ours("Resize", [F, None, None, sizes(1, 2, 8, 8)], opset=13)


@pytest.mark.parametrize("rule", ["ceil", "floor"])
@pytest.mark.parametrize("extent, scale", [(3, 1.96), (5, 1.46), (7, 0.43), (9, 2.34), (11, 3.19)])
def test_the_middle_of_a_symmetric_resize_stays_in_the_middle(rule, extent, scale):
    """Rounding noise around a whole number must not decide what ``ceil`` and ``floor`` take."""
    out = int(extent * np.float64(np.float32(scale)))
    x = np.arange(extent, dtype=np.float32).reshape(1, 1, extent)
    got = output_of(
        "Resize", [x, None, np.array([1, 1, scale], np.float32)], constants=[2], opset=19, mode="nearest",
        coordinate_transformation_mode="half_pixel_symmetric", nearest_mode=rule,
    )  # fmt: skip
    assert out % 2
    assert got[0, 0, out // 2] == extent // 2
