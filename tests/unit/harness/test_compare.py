"""Comparing outputs."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.harness.compare import TOLERANCES, Comparison, compare, compare_outputs, tolerance_for
from mlc.runtime.tensor_spec import PRECISIONS

NAN, INF = np.nan, np.inf


def check(got: Any, expected: Any, dtype: Any = np.float32, **tolerances: float) -> Comparison:
    a, b = np.asarray(got, dtype), np.asarray(expected, dtype)
    return compare("y", a, b, tolerance_for(a.dtype, **tolerances))


@pytest.mark.parametrize(
    "dtype, error, ok",
    [
        (np.float32, 0.9e-4, True),
        (np.float32, 1.2e-4, False),
        (np.float16, 0.9e-2, True),
        (np.float16, 1.2e-2, False),
        (ml_dtypes.bfloat16, 0.03, True),
        (ml_dtypes.bfloat16, 0.06, False),
        (np.float64, 0.9e-9, True),
        (np.float64, 1.2e-9, False),
    ],
)
def test_floats_may_differ_by_a_share_of_the_largest_magnitude(dtype: Any, error: float, ok: bool) -> None:
    assert check([0.0, error, 1.0], [0.0, 0.0, 1.0], dtype).ok is ok
    assert check([0.0, 1000 * error, 1000.0], [0.0, 0.0, 1000.0], dtype).ok is ok


@pytest.mark.parametrize("dtype", [np.int8, np.uint64, np.int64, bool])
def test_integers_and_booleans_are_exact(dtype: Any) -> None:
    assert check([0, 1], [0, 1], dtype).ok
    assert not check([0, 1], [1, 1], dtype).ok
    assert check([0, 1], [1, 1], dtype, absolute=1).ok


def test_a_difference_beyond_float64_is_seen() -> None:
    assert check([2**53], [2**53 + 1], np.int64).max_error == 1


@pytest.mark.parametrize(
    "got, expected, reason",
    [
        ([NAN, 1], [NAN, 1], ""),
        ([INF, -INF], [INF, -INF], ""),
        ([NAN, 1], [0, 1], "NaN only in the output, at [0] and 0 other places"),
        ([0, 1], [0, NAN], "NaN only in the reference, at [1] and 0 other places"),
        ([INF, INF], [INF, -INF], "+inf only in the output, at [1] and 0 other places"),
        ([1, 1], [-INF, -INF], "-inf only in the reference, at [0] and 1 other places"),
    ],
)
def test_special_values_stand_in_the_same_places(got: Any, expected: Any, reason: str) -> None:
    found = check(got, expected)
    assert found.reason == reason
    assert found.summary() == reason


def test_the_worst_place_is_named() -> None:
    found = check([[1, 2], [3, 5]], [[1, 2], [3, 4]])
    assert (found.worst, found.max_error, found.relative_error, found.scale) == ((1, 1), 1.0, 0.25, 4.0)
    assert found.reason == "beyond the tolerance"
    assert found.summary() == "1 at [1, 1], allowed are 0.0004"
    assert found.to_json()["worst"] == [1, 1]


def test_empty_and_zero_outputs() -> None:
    assert check([], []).ok
    assert check([0.0], [0.0]).relative_error == 0
    assert check([1e-9], [0.0]).ok
    assert check([1.0], [0.0]).relative_error == INF


def test_types_must_agree() -> None:
    found = compare("y", np.zeros((1, 2), np.float32), np.zeros((2, 1), np.float32), tolerance_for(np.dtype("f4")))
    assert (found.ok, found.reason) == (False, "the reference is f32[2,1]")
    found = compare("y", np.zeros(2, np.float32), np.zeros(2), tolerance_for(np.dtype("f4")))
    assert found.reason == "the reference is f64[2]"


def test_outputs_by_name() -> None:
    got = {"a": np.ones(2, np.float32), "b": np.ones(2, ml_dtypes.bfloat16)}
    expected = {"a": np.ones(2, np.float32), "b": np.ones(2, np.float32), "c": np.zeros(1)}
    assert [c.ok for c in compare_outputs(got, expected)] == [True, True]
    with pytest.raises(UsageError, match="the reference has no output 'b'"):
        compare_outputs(got, {"a": expected["a"]})


def test_the_tolerance_follows_the_precision_and_says_so() -> None:
    got, expected = {"y": np.float32([1.0, 2.0])}, {"y": np.float32([1.001, 2.001])}

    def found(precision: str | None = None, **given: float) -> tuple[bool, str]:
        (c,) = compare_outputs(got, expected, precision={} if precision is None else {"y": precision}, **given)
        assert c.to_json()["tolerance"] == c.basis
        return c.ok, c.basis

    assert found() == (False, "float32")
    assert found("float16") == (True, "computed in float16")
    assert found("int8") == (True, "computed in 8-bit steps")
    assert found("quantised") == (True, "quantised from floats")
    assert found("quantised", relative=1e-5) == (False, "as asked for")
    assert tolerance_for(np.dtype(np.int8)).basis == "exact"
    assert not check([100, 1], [100, 2], np.int8).ok  # and not as what was computed in such steps
    assert set(PRECISIONS) <= set(TOLERANCES)
