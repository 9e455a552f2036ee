"""What inlining a node into its readers would cost, derived from its expression."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from math import prod

from mlc.ir import te
from mlc.ir.expr import Binary, Call, Expr, loads, most_occurrences, text_counts, walk
from mlc.ir.graph import Node, express
from mlc.rewrite.keys import attrs_key

# functions that cost about as much as reading an element, or less; the others take tens of instructions
_CHEAP = frozenset(
    {
        "neg", "abs", "sign", "not", "popcount", "isnan", "isinf", "floor", "ceil", "round", "nearest", "trunc", "sqrt",
        "rsqrt",
    }
)  # fmt: skip
_DEAR_BINARY = frozenset({"pow", "fmod"})


@dataclass(frozen=True)
class Profile:
    """Cost of a node's expression.

    Args:
        size: scalar operations, loads and constants, as written.
        dear: how many of them are functions like ``exp``.
        sites: for each operand, the loads from it as written: so many copies of the operand's expression replace them.
        reads: for each operand, how often each of its elements is read on average; stages without a reduction count as
            inlined.
        written: for each operand, the loads from it in the expression's text, where what is shared is repeated.
        growth: for each operand, how often a variable of the node occurs in the text of the indices it is read at: with
            forms in place of the variables, they are so many times as long.
    """

    size: int
    dear: int
    sites: tuple[int, ...]
    reads: tuple[float, ...]
    written: tuple[int, ...]
    growth: tuple[int, ...]


class Profiler:
    """Profiles of nodes; equal applications on equal types are looked at once."""

    def __init__(self) -> None:
        self._memo: dict[Hashable, Profile] = {}
        self._of_node: dict[Node, Profile] = {}

    def __call__(self, node: Node) -> Profile:
        known = self._of_node.get(node)
        if known is None:
            known = self._of_node[node] = self._look_up(node)
        return known

    def _look_up(self, node: Node) -> Profile:
        # the same operand twice is one operand: what it is read with adds up
        operands = tuple(dict.fromkeys(node.inputs))
        wiring = tuple(operands.index(v) for v in node.inputs)
        key = node.op, tuple(v.type for v in operands), wiring, attrs_key(node.attrs)
        if key not in self._memo:
            self._memo[key] = _profile(node, operands)
        return self._memo[key]


def _profile(node: Node, operands: tuple[object, ...]) -> Profile:
    placeholders = {v: te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs}
    outputs = express(node, [placeholders[v] for v in node.inputs])
    stages = te.topological(outputs)
    size = dear = 0
    sites: dict[int, int] = {}
    points: dict[int, int] = {}
    written: dict[int, int] = {}
    growth: dict[int, int] = {}
    results = {id(t) for t in outputs}
    for stage in reversed(stages):
        own = prod(a.hi + 1 for a in (*stage.axes, *stage.reduce_axes))
        kept = stage.combiner is not None or any(id(t) in results for t in stage.outputs)
        runs = own if kept else sum(points.get(id(t), 0) for t in stage.outputs)
        for body in stage.bodies:
            exprs = walk(body)
            size += len(exprs)
            dear += sum(map(_is_dear, exprs))
            distinct = set()
            around = max((growth.get(id(t), 1) for t in stage.outputs), default=1)
            copies = max((written.get(id(t), 0) for t in stage.outputs), default=0) or 1
            times = text_counts(body)
            for ld in loads(body):
                source = id(ld.source)
                sites[source] = sites.get(source, 0) + 1
                written[source] = written.get(source, 0) + copies * times[id(ld)]
                growth[source] = max(growth.get(source, 1), around * most_occurrences(ld.indices))
                distinct.add((id(ld.source), ld.indices))
            for place, _ in distinct:
                points[place] = points.get(place, 0) + runs
    inputs = [placeholders[v] for v in operands]  # type: ignore[index]
    return Profile(
        size,
        dear,
        tuple(sites.get(id(t), 0) for t in inputs),
        tuple(points.get(id(t), 0) / max(1, t.size) for t in inputs),
        tuple(written.get(id(t), 0) for t in inputs),
        tuple(growth.get(id(t), 1) for t in inputs),
    )


def _is_dear(e: Expr) -> bool:
    return (type(e) is Call and e.fn not in _CHEAP) or (type(e) is Binary and e.op in _DEAR_BINARY)
