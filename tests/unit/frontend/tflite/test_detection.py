"""Suppression of overlapping boxes against LiteRT."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.frontend.tflite.writer import T, const, one, same


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
