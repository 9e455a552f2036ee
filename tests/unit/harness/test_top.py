"""The highest entries of an output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from mlc.errors import UsageError
from mlc.harness.top import read_labels, top_entries


def listed(array: np.ndarray, count: int, labels: list[str] | None = None) -> list[tuple]:
    return [(e.row, e.rank, e.index, e.value, e.label) for e in top_entries(array, count, labels) or []]


def test_rows_of_a_batch() -> None:
    array = np.array([[1, 3, 2], [9, 8, 9]], np.int8)
    assert listed(array, 2) == [(0, 1, 1, 3, ""), (0, 2, 2, 2, ""), (1, 1, 0, 9, ""), (1, 2, 2, 9, "")]


def test_one_row_with_labels_and_nan_last() -> None:
    array = np.array([np.nan, 1, 2], np.float32).reshape(3, 1, 1)
    assert [e[2:] for e in listed(array, 5, ["a", "b"])][:2] == [(2, 2.0, ""), (1, 1.0, "b")]
    assert listed(array, 5)[2][2] == 0


def test_extents_of_one_at_the_end_do_not_count() -> None:
    assert listed(np.arange(4).reshape(1, 4, 1, 1), 1) == [(0, 1, 3, 3, "")]


def test_an_image_has_no_classes() -> None:
    assert top_entries(np.zeros((1, 3, 4, 4)), 1) is None


def test_labels(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("cat\ndog\n")
    assert read_labels(tmp_path / "l.txt") == ["cat", "dog"]
    (tmp_path / "bad").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="bad: cannot be read as text"):
        read_labels(tmp_path / "bad")
    with pytest.raises(UsageError, match="none: there is no such file"):
        read_labels(tmp_path / "none")
    with open(tmp_path / "big", "wb") as file:
        file.truncate((16 << 20) + 1)
    with pytest.raises(UsageError, match="big: is larger than"):
        read_labels(tmp_path / "big")
