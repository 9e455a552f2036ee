"""The order of everything that hangs together, whatever it is made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

T = TypeVar("T")


def post_order(roots: Sequence[T], below: Callable[[T], Sequence[T]]) -> list[T]:
    """Every distinct object that is reached from some roots, each after those below it; walked in a loop.

    Args:
        roots: where to begin, the first one first.
        below: what lies directly below an object, in order; asked once for each, and only about what stays alive.
    """
    order: list[T] = []
    seen: set[int] = set()
    stack: list[T | None] = list(roots[::-1])
    while stack:
        node = stack.pop()
        if node is None:  # everything below the next one has been seen
            order.append(stack.pop())  # type: ignore[arg-type]
            continue
        if id(node) in seen:
            continue
        seen.add(id(node))
        parts = below(node)
        if parts:
            stack += (node, None)
            stack += parts[::-1]
        else:
            order.append(node)
    return order
