"""The table of operators by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from mlc.errors import UnsupportedError
from mlc.ir.graph import FusionKind, Operator

_OPERATORS: dict[str, Operator] = {}


def register(op: Operator) -> Operator:
    """Add an operator; its name must be new.

    Raises:
        ValueError: it is not.
    """
    if op.name in _OPERATORS:
        raise ValueError(f"operator {op.name} is registered twice")
    _OPERATORS[op.name] = op
    return op


def operator(
    name: str,
    kind: FusionKind,
    infer: Callable[..., Any],
    *,
    elementwise: bool = False,
    foldable: bool = True,
    **attrs: Any,
) -> Callable[[Callable[..., Any]], Operator]:
    """Decorator that turns an expression function into a registered operator.

    The function takes the input tensors and the attributes and gives the output tensors.
    """

    def wrap(express: Callable[..., Any]) -> Operator:
        return register(Operator(name, kind, infer, express, elementwise=elementwise, foldable=foldable, attrs=attrs))

    return wrap


def get(name: str) -> Operator:
    """The operator called ``name``.

    Raises:
        UnsupportedError: there is none; names the nearest.
    """
    op = _OPERATORS.get(name)
    if op is None:
        near = get_close_matches(name, _OPERATORS, n=3)
        raise UnsupportedError(f"no operator {name!r}", hint=f"did you mean {', '.join(near)}?" if near else "")
    return op


def is_core(op: Operator) -> bool:
    """Whether an operator is one of the table's, not a user's own of whatever name."""
    return _OPERATORS.get(op.name) is op


def operators() -> Iterator[Operator]:
    """Every operator, by name."""
    return iter([_OPERATORS[k] for k in sorted(_OPERATORS)])
