"""The steps of a graph as calls of kernels on places in memory, copies, joins, and loops over steps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from mlc.ir.graph import Graph, Node, Value
from mlc.ops.shape import JOIN
from mlc.rewrite.arena import rounded
from mlc.rewrite.memory import Location, MemoryPlan, Space
from mlc.rewrite.recurrence import body_of_scan, is_scan
from mlc.rewrite.region import on_device
from mlc.targets.base import CallSpec, JoinSpec, LoopSpec, RowSpec, Step

Place = tuple[str, int]


def calls_of(
    graph: Graph,
    plans: Mapping[Graph, MemoryPlan],
    of_node: Mapping[Node, str],
    params: Mapping[Value, int],
    alignment: int,
) -> list[Step]:
    """Every step of a graph, and after them copies of results that no step can write itself.

    Args:
        graph: the model, or the body of a recurrence.
        plans: where values lie, in the graph and in the bodies in it.
        of_node: names of kernels.
        params: what calls say of constants.
        alignment: bytes that places are multiples of.
    """
    plan = plans[graph]
    constants = list(graph.constants)

    def place(at: Location) -> Place:
        return (at.space, params[constants[at.at]]) if at.space is Space.PARAM else (at.space, at.at)

    def call(n: Node) -> Step:
        if on_device(n):
            return CallSpec("", (), device=True)
        places = [place(plan.locations[v]) for v in (*n.inputs, *n.outputs)]
        if is_scan(n):
            body = body_of_scan(n)
            inner = calls_of(body, plans, of_node, params, alignment)
            return _loop(n, places, inner, plan.scratch.get(n, 0), plans[body].workspace_bytes, alignment)
        if n not in of_node:
            assert n.op is JOIN
            return _join(n, places)
        return CallSpec(of_node[n], tuple(places), plan.scratch.get(n, 0))

    calls = [call(n) for n in plan.steps]
    calls += [CallSpec("", (place(c.source), ("output", c.output)), nbytes=c.nbytes) for c in plan.copies]
    return calls


def _join(node: Node, places: Sequence[Place]) -> JoinSpec:
    rows = prod(node.outputs[0].type.shape[: node.attrs["axis"]])
    sizes = [v.type.nbytes // max(1, rows) for v in node.inputs]
    return JoinSpec(tuple(zip(places[:-1], sizes, strict=True)), places[-1], rows)


def loop_bytes(node: Node, plan: MemoryPlan, alignment: int) -> int:
    """What a recurrence needs while it runs: the workspace of its body, and two places for all that it carries."""
    carried = node.inputs[: node.attrs["carried"]]
    return plan.workspace_bytes + 2 * sum(rounded(v.type.nbytes, alignment) for v in carried)


def _loop(
    node: Node, places: Sequence[Place], steps: Sequence[Step], begin: int, used: int, alignment: int
) -> LoopSpec:
    """A recurrence as a loop.

    Args:
        node: the recurrence.
        places: of its operands and results.
        steps: of its body.
        begin: where in the workspace its scratch memory begins,
        used: and the bytes of that which the body takes.
        alignment: of all that it carries.
    """
    carried, rounds, backwards = node.attrs["carried"], node.attrs["rounds"], node.attrs["backwards"]
    fixed = carried + node.attrs["scanned"]
    inputs, outputs = places[: len(node.inputs)], places[len(node.inputs) :]
    at, slots = begin + used, []
    for v in node.inputs[:carried]:
        size = rounded(v.type.nbytes, alignment)
        slots.append((at, at + size))
        at += 2 * size
    values = (*node.inputs[carried:fixed], *node.outputs[carried:])
    stacked = (*inputs[carried:fixed], *outputs[carried:])
    rows = [RowSpec(p, v.type.nbytes // rounds, b) for v, p, b in zip(values, stacked, backwards, strict=True)]
    return LoopSpec(
        rounds,
        tuple(steps),
        tuple((inputs[k], outputs[k], *slots[k]) for k in range(carried)),
        tuple(rows[: fixed - carried]),
        tuple(inputs[fixed:]),
        tuple(rows[fixed - carried :]),
        begin,
    )
