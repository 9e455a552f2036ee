"""Strict reading of JSON: every field present, of the right kind, and nothing left over.

A wrong field is reported with the path that leads to it, e.g. ``steps[3].results[0].dtype``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from mlc.errors import PackageError

T = TypeVar("T")

_MAX_INT = (1 << 63) - 1

MAX_RANK = 32
"""Of any tensor: numpy takes no more before version 2."""


def wrong(where: str, expected: str, got: object) -> PackageError:
    """The error for one wrong value; long values are cut."""
    shown = repr(got)
    return PackageError(f"{where}: expected {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


def as_text(value: object, where: str) -> str:
    """A string that can be encoded as UTF-8 (JSON can smuggle in half of a surrogate pair)."""
    if not isinstance(value, str):
        raise wrong(where, "a string", value)
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise wrong(where, "a string of Unicode characters", value) from None
    return value


def as_integer(value: object, where: str) -> int:
    """An integer in 0 .. 2^63 - 1; ``true`` is not one."""
    if type(value) is not int or not 0 <= value <= _MAX_INT:
        raise wrong(where, "an integer from 0 to 2^63 - 1", value)
    return value


def as_list(value: object, where: str, build: Callable[[Any, str], T]) -> tuple[T, ...]:
    """A list whose items are each read by ``build(item, where)``."""
    if not isinstance(value, list):
        raise wrong(where, "a list", value)
    return tuple(build(item, f"{where}[{i}]") for i, item in enumerate(value))


def as_integers(value: object, where: str) -> tuple[int, ...]:
    """A list of integers, one an axis, such as a shape."""
    found = as_list(value, where, as_integer)
    if len(found) > MAX_RANK:
        raise PackageError(f"{where}: expected {MAX_RANK} integers at most, got {len(found)}")
    return found


def as_object(value: object, where: str, build: Callable[[Any, str], T]) -> dict[str, T]:
    """An object whose keys are free, and whose values are each read by ``build(value, where)``."""
    if not isinstance(value, dict):
        raise wrong(where, "an object", value)
    return {as_text(key, where): build(item, f"{where}.{key}") for key, item in value.items()}


class Fields:
    """The fields of one JSON object, taken one by one; ``end`` complains of what nobody took.

    Args:
        value: the parsed JSON value.
        where: the path that leads to it; empty at the top.
    Raises:
        PackageError: it is not an object.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise wrong(where or "the whole", "an object", value)
        self._left = dict(value)
        self._where = where

    def place(self, key: str) -> str:
        """The path of a field, for messages."""
        return f"{self._where}.{key}" if self._where else key

    def take(self, key: str, build: Callable[[Any, str], T]) -> T:
        """A field that must be there, read by ``build(value, where)``."""
        if key not in self._left:
            raise PackageError(f"{self.place(key)}: is missing")
        return build(self._left.pop(key), self.place(key))

    def maybe(self, key: str, build: Callable[[Any, str], T]) -> T | None:
        """A field that may be absent or null."""
        if self._left.get(key) is None:
            self._left.pop(key, None)
            return None
        return self.take(key, build)

    def end(self) -> None:
        """Refuses fields that nobody took: they would mean something that this version does not know."""
        for key in self._left:
            raise PackageError(f"{self.place(key)}: is not a field that this version knows")
