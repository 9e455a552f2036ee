"""Strict reading of JSON: what is wrong is named by the path that leads to it."""

from __future__ import annotations

from typing import Any

import pytest

from mlc.errors import DocumentError, PackageError
from mlc.fields import Fields, as_flag, as_integer, as_list, as_number, as_object, as_text, as_whole, told_as


@pytest.mark.parametrize(
    ("read", "value", "message"),
    [
        (as_text, 1, r"^at: expected a string, got 1$"),
        (as_text, "\ud800", "a string of Unicode characters"),
        (as_text, ["x" * 100], r"got \['x{50,}\.\.\.$"),
        (as_integer, True, "an integer from 0"),
        (as_integer, 1 << 63, "an integer from 0"),
        (as_whole(2, 4), 5, "a whole number from 2 to 4, got 5"),
        (as_whole(2, 4), 2.0, "a whole number"),
        (as_number, float("inf"), "a finite number"),
        (as_number, 10**400, "a finite number"),
        (as_number, True, "a finite number"),
        (as_number, -1, "a finite number, 0 or more"),
        (as_flag, 1, "true or false"),
        (lambda v, at: as_list(v, at, as_flag), [True, 0], r"^at\[1\]: expected true or false, got 0$"),
        (lambda v, at: as_list(v, at, as_flag, 1), [True, True], "a list of at most 1, got 2 items"),
        (lambda v, at: as_object(v, at, as_flag), {"k": 0}, r"^at\.k: expected true or false"),
    ],
)
def test_wrong_values_are_named(read: Any, value: Any, message: str) -> None:
    with pytest.raises(DocumentError, match=message):
        read(value, "at")


def test_right_values_are_read() -> None:
    fields = Fields({"a": 1, "b": None, "c": [0.5, 2]}, "top")
    assert fields.has("a")
    assert fields.take("a", as_integer) == 1
    assert not fields.has("a")
    assert fields.maybe("b", as_text) is None
    assert fields.take("c", lambda v, at: as_list(v, at, as_number)) == (0.5, 2.0)
    fields.end()


def test_missing_and_unknown_fields_are_named() -> None:
    fields = Fields({"a": 1}, "top")
    with pytest.raises(DocumentError, match=r"^top\.b: is missing$"):
        fields.take("b", as_integer)
    with pytest.raises(DocumentError, match=r"^top\.a: is not a field that this version knows$"):
        fields.end()
    with pytest.raises(DocumentError, match=r"^the whole: expected an object"):
        Fields([], "")


def test_whose_file_it_is_says_what_the_complaint_is() -> None:
    with pytest.raises(PackageError, match=r"^a: is missing$") as told, told_as(PackageError, "compile it again"):
        Fields({}, "").take("a", as_text)
    assert told.value.hint == "compile it again"
