"""Random index arithmetic, for Python's numbers and for index forms alike."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hypothesis import strategies as st

# A tree is a number (a variable's place), a tuple ("const", n) or (operator, operand, operand).
Tree = Any
NUMBERS = st.sampled_from([-17, -4, -1, 0, 1, 2, 3, 4, 5, 8, 12, 16, 48])
DIVISORS = st.sampled_from([1, 2, 3, 4, 5, 8, 12, 16, 48])


def trees(variables: int) -> st.SearchStrategy[Tree]:
    """Sums, differences, multiples, quotients and remainders of so many variables."""
    leaves = st.one_of(st.integers(0, variables - 1), st.tuples(st.just("const"), NUMBERS))

    def grow(below: st.SearchStrategy[Tree]) -> st.SearchStrategy[Tree]:
        return st.one_of(
            st.tuples(st.sampled_from(["+", "-"]), below, below),
            st.tuples(st.just("*"), below, NUMBERS),
            st.tuples(st.sampled_from(["//", "%"]), below, DIVISORS),
        )

    return st.recursive(leaves, grow, max_leaves=8)


def apply(tree: Tree, leaves: Sequence[Any]) -> Any:
    """The tree's value over numbers, or its form over index forms."""
    if isinstance(tree, int):
        return leaves[tree]
    op, a, *rest = tree
    if op == "const":
        return a
    x = apply(a, leaves)
    y = apply(rest[0], leaves) if op in ("+", "-") else rest[0]
    operations: dict[str, Callable[[Any, Any], Any]] = {
        "+": lambda p, q: p + q, "-": lambda p, q: p - q, "*": lambda p, q: p * q,
        "//": lambda p, q: p // q, "%": lambda p, q: p % q,
    }  # fmt: skip
    return operations[op](x, y)
