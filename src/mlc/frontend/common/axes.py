"""Axes and shapes that operands give, known at compile time."""

from __future__ import annotations

from collections.abc import Iterable

from mlc.errors import ImportModelError
from mlc.frontend.common.context import Context
from mlc.frontend.common.emit import normal_axis
from mlc.ir.graph import Value


def ints(ctx: Context, value: Value, what: str) -> tuple[int, ...]:
    """The integers of a vector (or a single one) known at compile time.

    Raises:
        UnknownValueError: it depends on the model's inputs.
        ImportModelError: it has two axes or more.
    """
    array = ctx.require_const(value, what)
    if array.ndim > 1:
        raise ImportModelError(f"{what} has rank {array.ndim}, a vector is needed")
    return tuple(int(n) for n in array.reshape(-1))


def one_int(ctx: Context, value: Value, what: str) -> int:
    """One integer known at compile time, as a scalar or a vector of one.

    Raises:
        UnknownValueError: it depends on the model's inputs.
        ImportModelError: there is not exactly one.
    """
    array = ctx.require_const(value, what)
    if array.size != 1:
        raise ImportModelError(f"{what} has {array.size} elements, one is needed")
    return int(array.reshape(-1)[0])


def normal_axes(axes: Iterable[int], rank: int) -> tuple[int, ...]:
    """Axes counted from the front, in the order given.

    Raises:
        ImportModelError: one is out of range or occurs twice.
    """
    found = tuple(normal_axis(a, rank) for a in axes)
    if len(set(found)) < len(found):
        raise ImportModelError(f"axes {list(found)} repeat")
    return found
