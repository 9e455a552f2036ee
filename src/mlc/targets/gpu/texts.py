"""Small questions about expressions and their texts."""

from __future__ import annotations

from mlc.ir.expr import Select, loads

LONGEST = 160  # characters of an expression before a part of it gets a name


def bare(text: str) -> str:
    """A text without the parentheses around all of it.

    >>> bare("(a + b)"), bare("(a) + (b)")
    ('a + b', '(a) + (b)')
    """
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if depth == 0 and k < len(text) - 1:
            return text
    return text[1:-1] if text.startswith("(") else text


def is_lazy(e: Select) -> bool:
    """Whether a choice is between what is read from memory, which must not be unless it is chosen."""
    return bool(loads(e.a) or loads(e.b))
