"""Suppression of overlapping boxes against LiteRT."""

from __future__ import annotations

import contextlib

import numpy as np
import pytest
from flatbuffers import flexbuffers

from mlc.errors import ImportModelError, MlcError, UnsupportedError
from tests.unit.frontend.tflite.writer import T, const, imported, litert, one, ours, same


@pytest.fixture
def rng():
    return np.random.default_rng(9)


def number(value):
    return const(np.float32(value))


@pytest.mark.parametrize("count", [3, 20])
@pytest.mark.parametrize("sigma", [0.0, 0.4])
def test_the_best_of_overlapping_boxes(rng, count, sigma):
    corners = rng.uniform(0, 1, (12, 4)).astype(np.float32)
    boxes = np.concatenate([corners, corners + np.float32(0.02)])
    scores = rng.uniform(0, 1, 24).astype(np.float32)
    operands = [boxes, scores, const(np.int32(count)), number(0.3), number(0.25)]
    hard = [T((count,), "int32"), T((), "int32")]
    same(one("NON_MAX_SUPPRESSION_V4", operands, hard))
    soft = [T((count,), "int32"), T((count,)), T((), "int32")]
    same(one("NON_MAX_SUPPRESSION_V5", [*operands, number(sigma)], soft), rtol=1e-5)


def test_no_box_at_all(rng):
    operands = [
        rng.uniform(0, 1, (4, 4)).astype(np.float32),
        np.zeros(4, np.float32),
        const(np.int32(3)),
        number(0.3),
        number(0.5),
    ]
    same(one("NON_MAX_SUPPRESSION_V4", operands, [T((3,), "int32"), T((), "int32")]))


def options_of(**changes):
    builder = flexbuffers.Builder()
    values = {
        "max_detections": 5, "max_classes_per_detection": 2, "num_classes": 3, "use_regular_nms": False,
        "nms_score_threshold": 0.3, "nms_iou_threshold": 0.4, "y_scale": 10.0, "x_scale": 10.0, "h_scale": 5.0,
        "w_scale": 5.0, **changes,
    }  # fmt: skip
    with builder.Map():
        for key, value in values.items():
            builder.Key(key)
            {bool: builder.Bool, int: builder.Int, float: builder.Float}[type(value)](value)
    return bytes(builder.Finish())


def postprocess(rng, options, *, quantised=False):
    n = 12
    anchors = const(rng.uniform(0.2, 0.8, (n, 4)).astype(np.float32))
    boxes, scores = rng.standard_normal((1, n, 4)).astype(np.float32), rng.uniform(0, 1, (1, n, 4)).astype(np.float32)
    operands = [boxes, scores, anchors]
    if quantised:
        operands[0] = T((1, n, 4), "uint8", scale=0.05, zero=100), rng.integers(0, 256, (1, n, 4)).astype(np.uint8)
        operands[1] = T((1, n, 4), "uint8", scale=1 / 256), rng.integers(0, 256, (1, n, 4)).astype(np.uint8)
        operands[2] = const(rng.integers(50, 200, (n, 4)), np.uint8, scale=0.005)
    results = [T((1, 10, 4)), T((1, 10)), T((1, 10)), T((1,))]
    return one("TFLite_Detection_PostProcess", operands, results, custom=True, raw=options)


@pytest.mark.parametrize("quantised", [False, True])
def test_the_end_of_a_detector(rng, quantised):
    model, feeds = postprocess(rng, options_of(), quantised=quantised)
    got, want = ours(model, feeds), litert(model, feeds)
    count = int(want[3][0]) * 2  # what is behind the last is not defined
    assert count > 0
    for a, b in zip(got[:3], want[:3], strict=True):
        np.testing.assert_allclose(a[0, :count], b[0, :count], rtol=1e-5, atol=1e-6)
        assert not a[0, count:].any()
    np.testing.assert_array_equal(got[3], want[3])


def test_options_that_do_not_fit_are_refused(rng):
    with pytest.raises(UnsupportedError, match="suppression class by class"):
        imported(postprocess(rng, options_of(use_regular_nms=True))[0])
    with pytest.raises(ImportModelError, match="9 classes"):
        imported(postprocess(rng, options_of(num_classes=9))[0])
    for raw in (b"", b"\x01", b"\xff" * 9, options_of()[:-5], bytes(40)):
        with pytest.raises(ImportModelError, match=r"its options are damaged|it lacks the options"):
            imported(postprocess(rng, raw)[0])


def test_options_with_bytes_changed_are_one_error_or_none(rng):
    for _ in range(300):
        raw = bytearray(options_of())
        raw[int(rng.integers(len(raw)))] ^= int(rng.integers(1, 256))
        with contextlib.suppress(MlcError):
            imported(postprocess(rng, bytes(raw))[0])
