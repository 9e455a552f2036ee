"""Terms evaluated for a whole batch: a list of array operations, shared by all lists of terms that are alike.

Extents and strides are combined by the thousand, and most combinations occur again and again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mlc.ir.order import post_order
from mlc.lower.terms import Term


class Program:
    """Real numbers as a list of array operations, over whole numbers that are told when it is run.

    Args:
        order: all terms that are needed, operands first.
        outputs: what is wanted; ordinary numbers too.
    """

    def __init__(self, order: Sequence[Term], outputs: Sequence[Any]) -> None:
        # every term, number and result has a place: whole terms first, then plain numbers, then one result a step
        terms = [node for node in order if node.whole]
        rest = [node for node in order if not node.whole]
        self._numbers = list(dict.fromkeys(a for node in rest for a in node.args if not isinstance(a, Term)))
        place: dict[Any, int] = {a: len(terms) + k for k, a in enumerate(self._numbers)}
        place |= {node: k for k, node in enumerate(terms)}
        place |= {node: len(terms) + len(self._numbers) + k for k, node in enumerate(rest)}
        self._steps: list[tuple[Callable[..., Any], tuple[int, ...]]] = [
            (_function(node), tuple(place[a] for a in node.args)) for node in rest
        ]
        self._fixed = np.array([0.0 if isinstance(o, Term) else float(o) for o in outputs])
        self._varying = [(k, place[o]) for k, o in enumerate(outputs) if isinstance(o, Term)]

    def run(self, terms: Sequence[np.ndarray], into: np.ndarray) -> None:
        """Evaluates them.

        Args:
            terms: the whole numbers, float64 ``[N]`` each.
            into: where the outputs go, float64 ``[outputs, N]``.
        """
        found: list[Any] = [*terms, *self._numbers]
        for fn, at in self._steps:
            if len(at) == 2:  # nearly all; many small batches make this loop the whole cost
                found.append(fn(found[at[0]], found[at[1]]))
            else:
                found.append(fn(*(found[k] for k in at)))
        into[:] = self._fixed[:, None]
        for k, place in self._varying:
            into[k] = found[place]


class Programs:
    """Programs, one for all lists of terms that are alike but for the whole numbers in them.

    Orders of loops and choices of what to vectorise give the same formulas over other knobs. One program for all of
    them runs over all of their configurations at once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[Any, ...], Program] = {}

    def of(self, outputs: Sequence[Any]) -> tuple[Program, tuple[Term, ...]]:
        """What evaluates some terms and numbers, and the whole numbers that it has to be told for them."""
        order = _in_order(outputs)
        place = {node: k for k, node in enumerate(order)}

        def named(x: Any) -> Any:
            return (place[x],) if isinstance(x, Term) else x

        steps = (None if node.whole else (node.fn, *map(named, node.args)) for node in order)
        key = (*steps, *map(named, outputs))
        program = self._known.get(key)
        if program is None:
            program = self._known[key] = Program(order, outputs)
        return program, tuple(node for node in order if node.whole)


def _function(node: Term) -> Callable[..., Any]:
    assert node.fn is not None  # a knob is a whole number
    return node.fn


def _in_order(outputs: Sequence[Any]) -> list[Term]:
    """All terms that some need down to whole numbers, operands first, each once."""

    def operands(node: Term) -> list[Term]:
        return [] if node.whole else [a for a in node.args[::-1] if isinstance(a, Term)]

    return post_order([o for o in outputs if isinstance(o, Term)], operands)
