"""Recursion over expressions without Python's stack, which a long chain of operators would overrun."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

Query = TypeVar("Query")
Answer = TypeVar("Answer")

Steps = Generator[Query, Answer, Answer]
"""A computation that yields what it wants computed, gets the answer, and returns its own."""


def unwind(first: Query, answer: Callable[[Query], Answer | Steps[Query, Answer]]) -> Answer:
    """The answer to a query, where finding it may take further queries, as deep as memory goes.

    Args:
        first: the query.
        answer: of a query; or the computation that finds it, in which ``x = yield q`` stands for a recursive call.
    """
    stack: list[Steps[Query, Answer]] = []
    found = answer(first)
    while True:
        if isinstance(found, Generator):
            stack.append(found)
            send = None
        elif stack:
            send = found
        else:
            return found
        try:
            found = answer(stack[-1].send(send))  # type: ignore[arg-type]  # None starts a computation
        except StopIteration as done:
            stack.pop()
            found = done.value
