"""Recurrence: a graph applied round after round, with values carried from each round to the next.

Operands are, in this order, what is *carried* (its values before the first round), what is *scanned* (tensors whose
first axis counts the rounds; each round sees its row) and what is *captured* (the same in every round); the inputs of
the body stand in the same order. Results are what is carried, after the last round, and what is *gathered*: the rows
that the rounds give, stacked along a new first axis; the outputs of the body stand in the same order.

In numpy, with one of each::

    carried, rows = start, []
    for t in range(rounds):
        carried, row = body(carried, scanned[t], captured)
        rows.append(row)
    return carried, np.stack(rows)
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.ir.graph import Attrs, FusionKind, Graph, Operator, verify
from mlc.ir.interp.graph import run_graph
from mlc.ir.types import TensorType
from mlc.ops.common import check
from mlc.ops.registry import register


def _infer(types: Sequence[TensorType], attrs: Attrs) -> Sequence[TensorType]:
    body: Graph = attrs["body"]
    rounds, carried, scanned = attrs["rounds"], attrs["carried"], attrs["scanned"]
    check(all(type(n) is int for n in (rounds, carried, scanned)), "scan", "counts are integers")
    gathered = len(body.outputs) - carried
    check(rounds > 0, "scan", f"{rounds} rounds")
    check(min(carried, scanned, gathered, len(types) - carried - scanned) >= 0, "scan", "too few operands or results")
    check(len(attrs["backwards"]) == scanned + gathered, "scan", "a direction is needed for all that has rows")
    verify(body)
    inner = [v.type for v in body.inputs]
    wanted = [TensorType((rounds, *t.shape), t.dtype) if 0 <= k - carried < scanned else t for k, t in enumerate(inner)]
    check(_plain(types) == _plain(wanted), "scan", f"operands are {_text(types)}, the body takes {_text(wanted)}")
    results = [v.type for v in body.outputs]
    after, before = results[:carried], inner[:carried]
    check(_plain(after) == _plain(before), "scan", f"carries {_text(before)}, the body gives {_text(after)}")
    rows = [TensorType((rounds, *t.shape), t.dtype) for t in results[carried:]]
    return [*(TensorType(t.shape, t.dtype) for t in after), *rows]


def _plain(types: Sequence[TensorType]) -> list[tuple[object, ...]]:
    return [(t.shape, t.dtype) for t in types]


def _text(types: Sequence[TensorType]) -> str:
    return f"({', '.join(map(str, types))})"


def _evaluate(inputs: Sequence[np.ndarray], attrs: Attrs) -> Sequence[np.ndarray]:
    body: Graph = attrs["body"]
    rounds, carried, scanned = attrs["rounds"], attrs["carried"], attrs["scanned"]
    state, stacked, captured = inputs[:carried], inputs[carried : carried + scanned], inputs[carried + scanned :]
    backwards = attrs["backwards"]
    names = [v.name for v in body.inputs]
    gathered: list[list[np.ndarray]] = [[] for _ in backwards[scanned:]]
    for t in range(rounds):
        rows = [a[rounds - 1 - t if back else t] for a, back in zip(stacked, backwards, strict=False)]
        results = list(run_graph(body, dict(zip(names, [*state, *rows, *captured], strict=True))).values())
        state = results[:carried]
        for kept, row in zip(gathered, results[carried:], strict=True):
            kept.append(row)
    pairs = zip(gathered, backwards[scanned:], strict=True)
    return [*state, *(np.stack(rows[::-1] if back else rows) for rows, back in pairs)]


SCAN = register(
    Operator(
        "scan",
        FusionKind.OPAQUE,
        _infer,
        evaluate=_evaluate,
        # the body's outputs have names of their own, all different; `backwards`: which of the scanned tensors, then of
        # the gathered ones, have their first round's row last
        attrs={"body": ..., "rounds": ..., "carried": ..., "scanned": ..., "backwards": ...},
    )
)
