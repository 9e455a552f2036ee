"""Strict reading of JSON: every field present, of the right kind, and nothing left over.

A wrong field is reported with the path that leads to it, e.g. ``steps[3].results[0].dtype``. What is read may be
anything: manifests of packages, saved models, tuning records. Whose file it is says what the complaint is told as
(:func:`told_as`).
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from mlc.errors import DocumentError, MlcError

T = TypeVar("T")

MAX_INT = (1 << 63) - 1
"""Of integers in documents."""

MAX_RANK = 32
"""Of any tensor: numpy takes no more before version 2."""


@contextlib.contextmanager
def told_as(kind: type[MlcError], hint: str = "") -> Iterator[None]:
    """What is wrong with fields, as an error of another kind.

    Raises:
        MlcError: of that kind, with the same message.
    """
    try:
        yield
    except DocumentError as error:
        raise kind(error.message, hint=hint) from error


def wrong(where: str, expected: str, got: object) -> DocumentError:
    """The error for one wrong value; long values are cut."""
    shown = repr(got)
    return DocumentError(f"{where}: expected {expected}, got {shown if len(shown) <= 60 else shown[:57] + '...'}")


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
    if type(value) is not int or not 0 <= value <= MAX_INT:
        raise wrong(where, "an integer from 0 to 2^63 - 1", value)
    return value


def as_whole(least: int, most: int = MAX_INT) -> Callable[[object, str], int]:
    """Reads an integer in a range, its ends included; ``true`` is not one."""

    def read(value: object, where: str) -> int:
        if type(value) is not int or not least <= value <= most:
            raise wrong(where, f"a whole number from {least} to {most}", value)
        return value

    return read


def as_number(value: object, where: str) -> float:
    """A finite number, 0 or more."""
    try:
        found = float(value) if type(value) in (int, float) else -1.0  # type: ignore[arg-type]
    except OverflowError:
        found = math.inf
    if not 0 <= found < math.inf:
        raise wrong(where, "a finite number, 0 or more", value)
    return found


def as_flag(value: object, where: str) -> bool:
    """True or false."""
    if not isinstance(value, bool):
        raise wrong(where, "true or false", value)
    return value


def as_list(value: object, where: str, build: Callable[[Any, str], T], most: int | None = None) -> tuple[T, ...]:
    """A list, of at most ``most`` items, which are each read by ``build(item, where)``.

    Raises:
        DocumentError: it is something else.
    """
    if not isinstance(value, list):
        raise wrong(where, "a list", value)
    if most is not None and len(value) > most:
        raise DocumentError(f"{where}: expected a list of at most {most}, got {len(value)} items")
    return tuple(build(item, f"{where}[{i}]") for i, item in enumerate(value))


def as_integers(value: object, where: str) -> tuple[int, ...]:
    """A list of integers, one an axis, such as a shape.

    Raises:
        DocumentError: it is something else, or longer than any shape.
    """
    found = as_list(value, where, as_integer)
    if len(found) > MAX_RANK:
        raise DocumentError(f"{where}: expected {MAX_RANK} integers at most, got {len(found)}")
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
        DocumentError: it is not an object.
    """

    def __init__(self, value: object, where: str) -> None:
        if not isinstance(value, dict):
            raise wrong(where or "the whole", "an object", value)
        self._left = dict(value)
        self.where = where

    def place(self, key: str) -> str:
        """The path of a field, for messages."""
        return f"{self.where}.{key}" if self.where else key

    def take(self, key: str, build: Callable[[Any, str], T]) -> T:
        """A field that must be there, read by ``build(value, where)``.

        Raises:
            DocumentError: it is missing, or ``build`` refuses its value.
        """
        if key not in self._left:
            raise DocumentError(f"{self.place(key)}: is missing")
        return build(self._left.pop(key), self.place(key))

    def has(self, key: str) -> bool:
        """Whether a field is there and was not taken yet."""
        return key in self._left

    def maybe(self, key: str, build: Callable[[Any, str], T]) -> T | None:
        """A field that may be absent or null."""
        if self._left.get(key) is None:
            self._left.pop(key, None)
            return None
        return self.take(key, build)

    def end(self) -> None:
        """Refuses fields that nobody took: they would mean something that this version does not know.

        Raises:
            DocumentError: there are some.
        """
        for key in self._left:
            raise DocumentError(f"{self.place(key)}: is not a field that this version knows")
