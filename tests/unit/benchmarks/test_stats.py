"""Medians, ratios, means and errors."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks.stats import Spread, geometric_mean, largest_error, paired_ratio


def test_spread_is_median_and_median_deviation() -> None:
    assert Spread.of([1.0, 2.0, 10.0]) == Spread(median=2.0, mad=1.0, count=3)


def test_ratio_pairs_blocks_of_one_round() -> None:
    # The machine becomes three times slower between the rounds; the ratio does not care.
    ratio = paired_ratio([[1.0, 1.0], [3.0, 3.0]], [[2.0, 2.0], [6.0, 6.0]])
    assert ratio is not None
    assert (ratio.median, ratio.mad) == (0.5, 0.0)


def test_ratio_skips_rounds_that_one_sat_out() -> None:
    ratio = paired_ratio([[1.0], [], []], [[2.0], [4.0], [8.0]])
    assert ratio is not None
    assert (ratio.median, ratio.count) == (0.5, 1)
    assert paired_ratio([[]], [[1.0]]) is None


def test_geometric_mean() -> None:
    assert geometric_mean([1.0, 4.0]) == pytest.approx(2.0)
    assert math.isnan(geometric_mean([]))


def test_error_is_relative_to_the_largest_magnitude() -> None:
    expected = {"y": np.array([4.0, -8.0], np.float32)}
    assert largest_error({"y": np.array([4.0, -7.0], np.float32)}, expected) == pytest.approx(0.125)


@pytest.mark.parametrize(
    "ours",
    [
        {"y": np.array([np.nan, 1.0])},
        {"y": np.array([1.0])},
        {"z": np.array([1.0, 1.0])},
        {"y": np.array([np.inf, 1.0])},
    ],
)
def test_error_is_infinite_when_outputs_cannot_be_compared(ours: dict[str, np.ndarray]) -> None:
    assert largest_error(ours, {"y": np.array([1.0, 1.0])}) == math.inf
