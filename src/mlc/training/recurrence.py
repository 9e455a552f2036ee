"""Gradients of recurrences: another recurrence, which goes through the rounds from the last to the first.

What is carried backwards are the derivatives by what the recurrence carries. A round reads what the derivatives need
of the forward round, which the recurrence is made to give as rows. What all rounds share (weights) receives the sum of
what it receives in each: where that is a sum already, the rounds become one more axis of it, so that there is one large
product over all rounds instead of a small one in each.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mlc.define.expressions import operator_of
from mlc.ir import te
from mlc.ir.expr import Load, replace_loads
from mlc.ir.graph import Builder, Graph, Node, Value, express
from mlc.ir.index import as_index
from mlc.ir.types import TensorType
from mlc.ops import get
from mlc.ops.registry import is_core
from mlc.ops.scan import SCAN

# appends derivatives to a graph: seeds and what is wanted -> one a wanted value
Derive = Callable[[Builder, Sequence[tuple[Value, Value]], Sequence[Value]], Sequence[Value | None]]

_LINEAR = ("identity", "reshape", "transpose")  # of a sum: the sum of them


@dataclass(frozen=True)
class _Rows:
    """A tensor with a row a round.

    Args:
        value: the tensor.
        backward: whether the first round's row is the last.
    """

    value: Value
    backward: bool


def add_scan_gradients(
    g: Builder, node: Node, received: Sequence[Value | None], wanted: Sequence[bool], derive: Derive
) -> list[Value | None]:
    """Appends what the operands of a recurrence receive; the recurrence itself comes to give more rows.

    Args:
        received: by its results.
        wanted: whether an operand's is asked for.
        derive: the gradients of a round.
    Returns:
        one an operand; ``None`` where it is not asked for, or nothing depends on it.
    """
    body: Graph = node.attrs["body"]
    carried, scanned, rounds = node.attrs["carried"], node.attrs["scanned"], node.attrs["rounds"]
    backwards: Sequence[bool] = node.attrs["backwards"]
    round_ = _Round(body)
    states = [k for k in range(carried) if body.inputs[k].type.dtype.is_float]
    told = [k for k in range(carried, len(body.outputs)) if received[k] is not None]
    of_states = {k: round_.builder.input(f"d{body.outputs[k].name}", body.inputs[k].type) for k in states}
    of_rows = {k: round_.builder.input(f"d{body.outputs[k].name}", body.outputs[k].type) for k in told}
    seeds = [(body.outputs[k], v) for k, v in (of_states | of_rows).items()]
    asked = [
        k for k, v in enumerate(body.inputs) if k in states or (k >= carried and wanted[k] and v.type.dtype.is_float)
    ]
    found = dict(zip(asked, derive(round_.builder, seeds, [body.inputs[k] for k in asked]), strict=True))

    # what the backward round gives: states' derivatives, rows', and what sums over all rounds are made of
    results: list[Value] = []
    for k in states:
        d = found[k]
        results.append(round_.distinct(d if d is not None else round_.zeros(g, body.inputs[k].type), results))
    rows_of = [k for k in asked if carried <= k < carried + scanned and found[k] is not None]
    results += [round_.distinct(found[k], results) for k in rows_of]  # type: ignore[arg-type]
    known = {v: _Rows(node.inputs[k], backwards[k - carried]) for k, v in _numbered(body.inputs, carried, scanned)}
    known |= {
        body.outputs[k]: _Rows(node.outputs[k], backwards[scanned + k - carried])
        for k in range(carried, len(body.outputs))
    }
    shared = [k for k in asked if k >= carried + scanned and found[k] is not None]
    sums = {k: _terms(round_, found[k]) for k in shared}
    gathered = round_.inner([v for parts in sums.values() for part in parts for v in part.reads])
    results += [round_.distinct(v, results) for v in gathered]

    # what it reads of the forward round
    read = round_.read_before(results)
    saved = [v for v in read if v not in body.inputs[carried:] and v not in known]
    saved += [v for v in _leaves(round_, sums) if v not in known and v not in saved and v not in body.inputs[carried:]]
    known |= _give_rows(g, node, saved)

    rows = [v for v in read if v in known]
    captured = [v for v in body.inputs[carried + scanned :] if v in read]
    outer = dict(zip(body.inputs, node.inputs, strict=True)) | round_.captured
    captured += [v for v in round_.captured if v in read]
    zeros = {k: np.zeros(v.type.shape, v.type.dtype.numpy) for k, v in of_states.items() if received[k] is None}
    starts = [g.constant(zeros[k], v.name) if k in zeros else received[k] for k, v in of_states.items()]
    inputs = [*of_states.values(), *of_rows.values(), *rows, *captured]
    operands = [*starts, *(received[k] for k in told), *(known[v].value for v in rows), *(outer[v] for v in captured)]
    directions = [not backwards[scanned + k - carried] for k in told] + [not known[v].backward for v in rows]
    directions += [not backwards[k - carried] for k in rows_of] + [True] * len(gathered)
    attrs = {
        "body": round_.graph(inputs, results),
        "rounds": rounds,
        "carried": len(states),
        "scanned": len(told) + len(rows),
        "backwards": tuple(directions),
    }
    names = [f"d{v.name}" for v in (*(node.inputs[k] for k in (*states, *rows_of)), *gathered)]
    made = g.add(SCAN, [v for v in operands if v is not None], attrs, names=names, sources=node.sources)
    known |= {v: _Rows(made[len(states) + len(rows_of) + k], False) for k, v in enumerate(gathered)}

    parts: list[Value | None] = [None] * len(node.inputs)
    for k, v in zip((*states, *rows_of), made, strict=False):
        parts[k] = v if wanted[k] else None
    for k, terms in sums.items():
        total: Value | None = None
        for term in terms:
            value = term.add(g, known, outer, rounds, node.sources)
            total = value if total is None else g.add(get("add"), [total, value], names=[value.name])[0]
        parts[k] = total
    return parts


def _numbered(values: Sequence[Value], begin: int, count: int) -> list[tuple[int, Value]]:
    return [(k, values[k]) for k in range(begin, begin + count)]


class _Round:
    """A round that is being differentiated: the forward round's nodes, and behind them those of the derivatives.

    Args:
        body: the forward round.
    """

    def __init__(self, body: Graph) -> None:
        self.body = body
        self.builder = Builder(body.name)
        self.builder.nodes = list(body.nodes)
        self.builder.constants = dict(body.constants)
        for v in (*body.inputs, *body.constants, *(v for n in body.nodes for v in n.outputs)):
            self.builder.unique(v.name)
        self.before = set(body.inputs) | {v for n in body.nodes for v in n.outputs}
        self.captured: dict[Value, Value] = {}  # what only the backward round reads of the graph around it

    @property
    def _behind(self) -> list[Node]:
        return self.builder.nodes[len(self.body.nodes) :]

    def maker(self, v: Value) -> Node | None:
        """The node of the derivatives that makes a value."""
        return next((n for n in self._behind if v in n.outputs), None)

    def distinct(self, v: Value, others: Sequence[Value]) -> Value:
        """The value, or one like it where it is no result of its own."""
        if v in others or self.maker(v) is None:
            return self.builder.add(get("identity"), [v], names=[v.name])[0]
        return v

    def zeros(self, g: Builder, type: TensorType) -> Value:
        """Zeros, which are read from the graph around."""
        inside = Value(self.builder.unique("zeros"), type)
        self.captured[inside] = g.constant(np.zeros(type.shape, type.dtype.numpy), "zeros")
        self.before.add(inside)
        return inside

    def inner(self, values: Sequence[Value]) -> list[Value]:
        """Those that the derivatives' nodes make, or that they begin with; each once."""
        return [v for v in dict.fromkeys(values) if v not in self.before and v not in self.builder.constants]

    def needed(self, results: Sequence[Value]) -> tuple[Node, ...]:
        """The nodes that results need, those of the forward round left out."""
        wanted, kept = set(results), []
        for node in reversed(self._behind):
            if not wanted.isdisjoint(node.outputs):
                kept.append(node)
                wanted.update(node.inputs)
        return tuple(kept[::-1])

    def read_before(self, results: Sequence[Value]) -> list[Value]:
        """Values of the forward round (and of the graph around) that results need."""
        return [v for v in dict.fromkeys(v for n in self.needed(results) for v in n.inputs) if v in self.before]

    def graph(self, inputs: Sequence[Value], results: Sequence[Value]) -> Graph:
        """The backward round."""
        nodes = self.needed(results)
        used = {v for n in nodes for v in n.inputs}
        constants = {v: a for v, a in self.builder.constants.items() if v in used}
        return Graph(f"d{self.body.name}", tuple(inputs), tuple(results), nodes, constants)


@dataclass(frozen=True)
class _Term:
    """What a shared operand receives in each round, to be summed over all of them.

    Args:
        maker: the node whose result that is; ``None`` where it is only to be gathered.
        value: the result.
        after: nodes that come behind the sum, the innermost first.
    """

    maker: Node | None
    value: Value
    after: tuple[Node, ...]
    constants: frozenset[Value]

    @property
    def reads(self) -> tuple[Value, ...]:
        """What of a round it is made from."""
        if self.maker is None:
            return (self.value,)
        return tuple(v for v in self.maker.inputs if v not in self.constants)

    def add(
        self,
        g: Builder,
        rows: dict[Value, _Rows],
        outer: dict[Value, Value],
        rounds: int,
        sources: tuple[str, ...],
    ) -> Value:
        """Appends the sum over all rounds to the graph around."""
        if self.maker is None:
            (total,) = g.add(get("reduce_sum"), [rows[self.value].value], {"axes": (0,), "keepdims": False})
        else:
            total = _over_rounds(g, self.maker, rows, outer, rounds, sources)
        for node in self.after:
            (total,) = g.add(node.op, [total], node.attrs, names=[node.outputs[0].name], sources=sources)
        return total


def _terms(round_: _Round, total: Value | None) -> list[_Term]:
    """What a sum of a round consists of."""
    found: list[_Term] = []
    assert total is not None
    stack: list[tuple[Value, tuple[Node, ...]]] = [(total, ())]
    while stack:
        value, after = stack.pop()
        node = round_.maker(value)
        if node is not None and node.op is get("add") and all(v.type == value.type for v in node.inputs):
            stack += [(v, after) for v in node.inputs]
        elif node is not None and node.op.name in _LINEAR and is_core(node.op):
            stack.append((node.inputs[0], (node, *after)))
        else:
            lifts = node is not None and _lifts(node) and not any(v in round_.builder.constants for v in node.inputs)
            found.append(_Term(node if lifts else None, value, after, frozenset(round_.captured)))
    return found


def _stages(node: Node) -> tuple[list[te.Tensor], list[te.Compute]]:
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    return operands, te.topological(express(node, operands))


def _lifts(node: Node) -> bool:
    """Whether a node is one sum, or what a sum may be made of."""
    if node.op.express is None or len(node.outputs) != 1:
        return False
    _, stages = _stages(node)
    return len(stages) == 1 and stages[0].combiner in (None, te.SUM)


def _over_rounds(
    g: Builder,
    node: Node,
    rows: dict[Value, _Rows],
    outer: dict[Value, Value],
    rounds: int,
    sources: tuple[str, ...],
) -> Value:
    """Appends a node's result, summed over all rounds."""
    operands, (op,) = _stages(node)
    t = te.reduce_axis(rounds, "t")
    stacked: dict[int, tuple[te.Tensor, bool | None]] = {}
    values: dict[int, Value] = {}
    for operand, v in zip(operands, node.inputs, strict=True):
        if v in rows:
            whole = rows[v]
            tensor = te.placeholder(whole.value.type.shape, operand.dtype, operand.name)
            stacked[id(operand)] = tensor, whole.backward
            values[id(tensor)] = whole.value
        else:
            stacked[id(operand)] = operand, None
            values[id(operand)] = outer[v]

    def load(ld: Load) -> Load:
        tensor, backward = stacked[id(ld.source)]
        if backward is None:
            return Load(tensor, ld.indices)
        return Load(tensor, (as_index(rounds - 1 - t if backward else t), *ld.indices))

    (body,) = op.bodies
    lifted = te.Compute(op.name, op.axes, (t, *op.reduce_axes), (replace_loads(body, load),), te.SUM, "sum")
    te.finish(lifted)
    return g.add(operator_of(lifted), [values[id(u)] for u in lifted.inputs], names=[op.name], sources=sources)[0]


def _leaves(round_: _Round, sums: dict[int, list[_Term]]) -> list[Value]:
    """Values of the forward round that sums over all rounds are made from."""
    reads = [v for terms in sums.values() for term in terms for v in term.reads]
    inside = set(round_.body.inputs)
    made = {v for n in round_.body.nodes for v in n.outputs}
    return [v for v in dict.fromkeys(reads) if v in made or v in inside]


def _give_rows(g: Builder, node: Node, saved: Sequence[Value]) -> dict[Value, _Rows]:
    """Makes a recurrence of the graph give some values of its rounds as rows."""
    if not saved:
        return {}
    body: Graph = node.attrs["body"]
    extended = Builder(body.name)
    for v in (*body.inputs, *body.constants, *(v for n in body.nodes for v in n.outputs)):
        extended.unique(v.name)
    extended.nodes = list(body.nodes)
    apart = {*body.outputs, *body.inputs}
    given = [extended.add(get("identity"), [v], names=[v.name])[0] if v in apart else v for v in saved]
    whole = Graph(body.name, body.inputs, (*body.outputs, *given), tuple(extended.nodes), body.constants)
    attrs = {**node.attrs, "body": whole, "backwards": (*node.attrs["backwards"], *[False] * len(saved))}
    rounds = node.attrs["rounds"]
    rows = [Value(g.unique(v.name), TensorType((rounds, *v.type.shape), v.type.dtype)) for v in saved]
    place = next(k for k, n in enumerate(g.nodes) if n is node or n.outputs[: len(node.outputs)] == node.outputs)
    g.nodes[place] = Node(node.op, node.inputs, attrs, (*node.outputs, *rows), node.sources)
    return {v: _Rows(r, False) for v, r in zip(saved, rows, strict=True)}


__all__ = ["add_scan_gradients"]
