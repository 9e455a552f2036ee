"""The body of a recurrence, cut out of the graph while it grows.

What is appended while a :class:`Body` is open and depends on its parameters becomes the body of one ``scan``; the rest,
which is the same in every round, stays outside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from mlc.frontend.common.context import Context
from mlc.ir.graph import Graph, Value
from mlc.ir.types import TensorType
from mlc.ops import get
from mlc.ops.scan import SCAN


@dataclass(frozen=True, eq=False)
class Rows:
    """A tensor with a row for each round along its first axis.

    Args:
        value: the tensor, or the row where it is gathered.
        backward: whether the first round's row is the last.
    """

    value: Value
    backward: bool = False


class Body:
    """One round, while it is being written.

    Args:
        ctx: whose graph grows.
        carried: values before the first round.
        scanned: tensors whose rows the rounds see.
    """

    def __init__(self, ctx: Context, carried: Sequence[Value], scanned: Sequence[Rows]) -> None:
        self._ctx = ctx
        self._carried = tuple(carried)
        self._scanned = tuple(scanned)
        self._start = len(ctx.builder.nodes)
        self.constant = False  # whether the recurrence, once appended, depends on constants alone
        self.state = [ctx.stand_in(v, v.type) for v in carried]
        self.rows = [ctx.stand_in(r.value, TensorType(r.value.type.shape[1:], r.value.type.dtype)) for r in scanned]

    def draws(self) -> bool:
        """Whether random numbers have been drawn since the body was opened: those of each round are to be others."""
        return any(n.op is get("uniform") for n in self._ctx.builder.nodes[self._start :])

    def close(self, rounds: int, state: Sequence[Value], gathered: Sequence[Rows]) -> tuple[Value, ...]:
        """Append the recurrence.

        Args:
            rounds: how many there are, 1 or more.
            state: what is carried, after a round.
            gathered: rows that a round gives.
        Returns:
            what is carried after the last round, then the stacked rows.
        """
        builder = self._ctx.builder
        own = {*self.state, *self.rows}
        nodes, outside = [], []
        for node in builder.nodes[self._start :]:
            if own.isdisjoint(node.inputs):
                outside.append(node)
            else:
                nodes.append(node)
                own.update(node.outputs)
        builder.nodes[self._start :] = outside
        outputs = (*state, *(r.value for r in gathered))
        captured = [v for v in dict.fromkeys([*(v for n in nodes for v in n.inputs), *outputs]) if v not in own]
        names = tuple(f"result{k}" for k in range(len(outputs)))
        read = {*outputs, *(v for n in nodes for v in n.inputs)}
        scanned = [(v, rows) for v, rows in zip(self.rows, self._scanned, strict=True) if v in read]
        inputs = (*self.state, *(v for v, _ in scanned), *captured)
        body = Graph(builder.unique("round"), inputs, outputs, tuple(nodes), {}, names)
        attrs = {
            "body": body,
            "rounds": rounds,
            "carried": len(self.state),
            "scanned": len(scanned),
            "backwards": tuple(r.backward for r in (*(rows for _, rows in scanned), *gathered)),
        }
        operands = [*self._carried, *(rows.value for _, rows in scanned), *captured]
        self.constant = all(self._ctx.const(v) is not None for v in operands)
        return self._ctx.add_many(SCAN, operands, attrs)
