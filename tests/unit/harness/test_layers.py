"""Whose tensor a step's result is."""

from __future__ import annotations

import numpy as np
import pytest

from mlc.harness.layers import _origin


@pytest.mark.parametrize(
    ("name", "origin", "axes", "plus"),
    [
        ("sum", "sum", None, 0),
        ("sum.axes021", "sum", (0, 2, 1), 0),
        ("sum.plus128", "sum", None, 128),
        ("sum.axes021.minus128", "sum", (0, 2, 1), -128),
        ("odd.axes01", "odd.axes01", None, 0),  # a name of the model's own
        ("odd.axes01.axes10", "odd.axes01", (1, 0), 0),
    ],
)
def test_names(name: str, origin: str, axes: tuple[int, ...] | None, plus: int) -> None:
    found = _origin(name, {"sum", "odd.axes01"})
    assert (found.name, found.axes, found.plus) == (origin, axes, plus)


def test_what_becomes_of_a_tensor() -> None:
    array = np.array([[-128, 0, 127], [1, 2, 3]], np.int8)
    made = _origin("x.axes10.plus128", {"x"}).applied(array, np.dtype(np.uint8))
    np.testing.assert_array_equal(made, array.T.view(np.uint8) ^ 128)
