"""Layout assignment: every group gets the layouts that its target prefers, constants are packed (ALT §4.2).

In: a fused graph of row-major values. Out: the same graph with layouts on values. The paper's three constraints hold:

1. a layout propagates only along element-wise paths between tensors of one shape (the target's choice for such a group
   is its operand's layout);
2. sequences that expand data beyond padding a block are not propagated;
3. every complex operator chooses for itself; where its operand lies differently, the conversion happens while the
   operand is read (its padding stage writes the wanted layout), and only row-major consumers (model outputs, opaque
   routines) get a conversion node of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import numpy as np

from mlc.ir.graph import Graph, Node, Operator, Value
from mlc.ir.layout import Layout
from mlc.ir.types import TensorType


class Choice(Protocol):
    """What a target answers for a group."""

    @property
    def outputs(self) -> Sequence[Layout | None]: ...

    @property
    def constants(self) -> Mapping[int, Layout]: ...


Choose = Callable[[Node, Sequence[TensorType], Sequence[bool]], Choice]


def assign_layouts(graph: Graph, choose: Choose, convert: Operator) -> Graph:
    """Put layouts on values.

    Args:
        graph: a fused graph.
        choose: the target's preference for a group, given the types of its inputs and which of them are constants.
        convert: the identity operator, for conversions.
    """
    new: dict[Value, Value] = {v: v for v in graph.inputs}
    constants: dict[Value, np.ndarray] = {}
    packed: dict[tuple[Value, Layout | None], Value] = {}
    nodes: list[Node] = []
    taken = {v.name for v in (*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs))}

    def unique(name: str) -> str:
        k, candidate = 0, name
        while candidate in taken:
            k += 1
            candidate = f"{name}.{k}"
        taken.add(candidate)
        return candidate

    def constant(v: Value, layout: Layout | None) -> Value:
        if (v, layout) not in packed:
            array = graph.constants[v]
            if layout is None:
                value = v
            else:
                value, array = Value(unique(f"{v.name}.packed"), v.type.with_layout(layout)), layout.pack(array)
            constants[value] = array
            packed[v, layout] = value
        return packed[v, layout]

    def plain(v: Value) -> Value:
        """``v`` in row-major layout, through a conversion node when needed."""
        if v in graph.constants:
            return constant(v, None)
        value = new[v]
        if value.type.layout is None:
            return value
        if (v, None) not in packed:
            out = Value(unique(f"{v.name}.plain"), v.type)
            nodes.append(Node(convert, (value,), dict(convert.attrs), (out,), ()))
            packed[v, None] = out
        return packed[v, None]

    for node in graph.nodes:
        if node.op.routine is not None:
            inputs = tuple(plain(v) for v in node.inputs)
            outputs = node.outputs
        else:
            is_constant = [v in graph.constants for v in node.inputs]
            types = [v.type if c else new[v].type for v, c in zip(node.inputs, is_constant, strict=True)]
            choice = choose(node, types, is_constant)
            inputs = tuple(
                constant(v, choice.constants.get(k)) if c else new[v]
                for k, (v, c) in enumerate(zip(node.inputs, is_constant, strict=True))
            )
            outputs = tuple(
                v if layout is None else Value(v.name, v.type.with_layout(layout))
                for v, layout in zip(node.outputs, choice.outputs, strict=True)
            )
        new.update(zip(node.outputs, outputs, strict=True))
        nodes.append(Node(node.op, inputs, node.attrs, outputs, node.sources))
    results = tuple(plain(v) for v in graph.outputs)
    return Graph(graph.name, graph.inputs, results, tuple(nodes), constants, graph.output_names)
