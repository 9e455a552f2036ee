from __future__ import annotations

from math import inf

import numpy as np
import pytest

from mlc.harness.accuracy import AccuracyMeter, decibels


def test_samples_add_up() -> None:
    meter = AccuracyMeter()
    meter.add(
        {"y": np.array([[3.0, 4.0]]), "m": np.zeros((1, 2, 2))}, {"y": np.array([[3.0, 3.0]]), "m": np.zeros((1, 2, 2))}
    )
    meter.add(
        {"y": np.array([[0.0, 5.0]]), "m": np.ones((1, 2, 2))}, {"y": np.array([[0.0, 4.0]]), "m": np.ones((1, 2, 2))}
    )
    y, m = meter.result()
    assert y.snr_db == pytest.approx(10 * np.log10(50 / 2))
    assert (y.rows, y.agree) == (2, 1)
    assert (m.snr_db, m.rows, m.agree) == (inf, 0, 0)
    assert y.to_json() == {
        "name": "y", "snr_db": y.snr_db, "rows": 2, "top1_agree": 1, "error": 0.2, "largest": 1.0, "mean": 0.5,
    }  # fmt: skip


def test_decibels() -> None:
    assert decibels(100.0, 1.0) == 20
    assert decibels(1.0, 0.0) == inf
    assert decibels(0.0, 1.0) == -inf


def test_errors_are_told_over_the_range_of_all_samples() -> None:
    meter = AccuracyMeter()
    meter.add({"y": np.array([0.0, 4.0])}, {"y": np.array([0.5, 4.0])})
    meter.add({"y": np.array([-1.0, 1.0])}, {"y": np.array([-1.0, 1.25])})
    assert meter.result()[0].error == 0.1
    flat = AccuracyMeter()
    flat.add(
        {"y": np.ones(2), "z": np.ones(2), "none": np.ones(0)}, {"y": np.ones(2), "z": np.zeros(2), "none": np.ones(0)}
    )
    assert [a.error for a in flat.result()] == [0.0, float("inf"), 0.0]
