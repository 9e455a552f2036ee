"""Layout assignment: every group gets the layouts that its target prefers, constants are packed (ALT §4.2).

In: a fused graph of row-major values. Out: the same graph with layouts on values. The paper's three constraints hold:

1. a layout propagates only along element-wise paths between tensors of one shape (the target's choice for such a group
   is its operand's layout);
2. sequences that expand data beyond padding a block are not propagated;
3. every complex operator chooses for itself; where its operand lies differently, the conversion happens while the
   operand is read (its padding stage writes the wanted layout), and only row-major consumers (model outputs, opaque
   routines, lone reshapes) and operands that are to be packed though they are no constants (weights that are learned)
   get a conversion node of their own.

Values that have a layout already, at the border between a host and a device, keep it.

Layouts propagate backwards as well: where no layout has come to a group of moved or mapped elements (a path of
element-wise operators that is one kernel, or a border or a transpose), the complex operator that reads it first may ask
for one, gets it, and no conversion is needed. All that reads it later finds it like that (§6), so nobody may have
read it before, and nobody may need it in row-major order.

A consumer whose window slides past the border may ask for *margins*: then whoever makes the value surrounds it by
zeros, and no padded copy is made. Where an accelerator makes a value, whose transfers may store it in any order at no
cost, any of its consumers may ask for a layout: the first one that does gets it. Both come after everything else, so no
group's choice depends on what those behind it ask for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

import numpy as np

from mlc.ir.graph import FusionKind, Graph, Node, Operator, Value
from mlc.ir.layout import DecoupleAt, Fold, Fuse, Layout, Margin, Pad, Reorder, Split, StoreAt, Unfold, Unpad
from mlc.ir.site import Site
from mlc.ir.types import TensorType
from mlc.rewrite.group import is_reshape


class Choice(Protocol):
    """What a target answers for a group."""

    @property
    def outputs(self) -> Sequence[Layout | None]: ...

    @property
    def packed(self) -> Mapping[int, Layout]: ...

    @property
    def margins(self) -> Mapping[int, Sequence[tuple[int, int]]]: ...

    @property
    def asked(self) -> Mapping[int, Layout]: ...


Choose = Callable[[Node, Site], tuple[Node, Choice]]


def assign_layouts(graph: Graph, choose: Choose, convert: Operator) -> Graph:
    """Put layouts on values.

    Args:
        graph: a fused graph.
        choose: the target's preference for a group, given the types of its inputs, which of them are constants, and
            whether all that reads its results takes row-major tensors only; with the group, which may have got a
            configuration.
        convert: the identity operator, for conversions.
    """
    new: dict[Value, Value] = {v: v for v in graph.inputs}
    constants: dict[Value, np.ndarray] = {}
    packed: dict[tuple[Value, Layout | None], Value] = {}
    conversions: list[Node] = []  # into layouts that readers have asked for
    nodes: list[Node] = []
    wanted: dict[Value, list[tuple[int, int]]] = {}
    asked: dict[Value, Value] = {}
    free = {v for n in graph.nodes for v in n.outputs if v.type.layout is None} - set(graph.outputs)
    pliant = free & _made_in_any_order(graph.nodes)
    taken = {v.name for v in (*graph.inputs, *graph.constants, *(o for n in graph.nodes for o in n.outputs))}
    taking_any = {v for n in graph.nodes if n.op.kind is not FusionKind.OPAQUE for v in n.inputs}

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

    def converted(v: Value, layout: Layout | None) -> Value:
        """``v`` as a reader wants it: as it is, unless the layout is one that it is to be packed into."""
        value = new[v]
        if layout is None or value.type.layout == layout:
            return value
        if (v, layout) not in packed:
            packed[v, layout] = Value(unique(f"{v.name}.packed"), TensorType(v.type.shape, v.type.dtype, layout))
            conversions.append(Node(convert, (value,), dict(convert.attrs), (packed[v, layout],), ()))
            nodes.append(conversions[-1])
        return packed[v, layout]

    for node in graph.nodes:
        if node.op.kind is FusionKind.OPAQUE:  # a routine takes row-major tensors; a device has said what it wants
            inputs = tuple(plain(v) if v.type.layout is None else new[v] for v in node.inputs)
            outputs = node.outputs
        else:
            if is_reshape(node) and node.inputs[0] not in graph.constants:
                # blocks are turned as a whole, and rows seen in another shape; element by element, each would have to
                # be found by divisions (measured on Zen 5: 10 cycles an element instead of 0.2)
                rows = plain(node.inputs[0])
                new[rows] = rows
                node = Node(node.op, (rows,), node.attrs, node.outputs, node.sources)
            is_constant = [v in graph.constants for v in node.inputs]
            types = [v.type if c else new[v].type for v, c in zip(node.inputs, is_constant, strict=True)]
            row_major = taking_any.isdisjoint(node.outputs)
            askable = (
                frozenset(k for k, v in enumerate(node.inputs) if v in pliant and new[v].type.layout is None)
                if node.op.kind is FusionKind.COMPLEX
                else frozenset()
            )
            node, choice = choose(node, Site(types, is_constant, row_major, askable))
            inputs = tuple(
                constant(v, choice.packed.get(k)) if c else converted(v, choice.packed.get(k))
                for k, (v, c) in enumerate(zip(node.inputs, is_constant, strict=True))
            )
            outputs = tuple(
                v if layout is None or v.type.layout is not None else Value(v.name, v.type.with_layout(layout))
                for v, layout in zip(node.outputs, choice.outputs, strict=True)
            )
            for k, layout in choice.asked.items():
                v = node.inputs[k]
                if v in free and new[v] is inputs[k]:
                    made = asked.setdefault(inputs[k], Value(v.name, v.type.with_layout(layout)))
                    if k in askable:
                        new[v] = made
            for k, margins in choice.margins.items():
                have = wanted.setdefault(inputs[k], [(0, 0)] * len(margins))
                wanted[inputs[k]] = [(max(a, c), max(b, d)) for (a, b), (c, d) in zip(have, margins, strict=True)]
        pliant.difference_update(node.inputs)
        new.update(zip(node.outputs, outputs, strict=True))
        nodes.append(Node(node.op, inputs, node.attrs, outputs, node.sources))
    results = tuple(new[v] if v.type.layout is not None else plain(v) for v in graph.outputs)
    nodes = _with_margins(_replaced(_made_packed(nodes, conversions, results), asked), wanted)
    return Graph(graph.name, graph.inputs, results, tuple(nodes), constants, graph.output_names)


def _made_packed(nodes: Sequence[Node], conversions: Sequence[Node], results: Collection[Value]) -> list[Node]:
    """What is only converted after it was made is made in the layout that it is converted into.

    So do groups that move or map elements: any order of their results is the same to them.
    """
    makers = {v: n for n in nodes for v in n.outputs}
    readers = Counter(v for n in nodes for v in n.inputs)
    merged: dict[Node, Node | None] = {}
    for conversion in conversions:
        (value,) = conversion.inputs
        maker = makers.get(value)
        if maker is None or maker.op.kind is not FusionKind.INJECTIVE or len(maker.outputs) > 1:
            continue
        if value.type.layout is None and readers[value] == 1 and value not in results:
            merged[maker] = Node(maker.op, maker.inputs, maker.attrs, conversion.outputs, maker.sources)
            merged[conversion] = None
    found = (merged.get(n, n) for n in nodes)
    return [n for n in found if n is not None]


def _made_in_any_order(nodes: Sequence[Node]) -> set[Value]:
    """What groups make that move or map elements, unless some reader takes it in row-major order only."""
    made = {
        n.outputs[0] for n in nodes if n.op.kind is FusionKind.INJECTIVE and len(n.outputs) == 1 and not is_reshape(n)
    }
    return made - {v for n in nodes if n.op.kind is FusionKind.OPAQUE or is_reshape(n) for v in n.inputs}


def _with_margins(nodes: Sequence[Node], wanted: Mapping[Value, Sequence[tuple[int, int]]]) -> list[Node]:
    """Surround values by zeros, where they are blocked (others are what the outside or opaque routines know)."""
    new: dict[Value, Value] = {}
    fixed = {v for n in nodes if n.op.kind is FusionKind.OPAQUE for v in n.inputs}
    for node in nodes:
        for v in node.outputs if node.op.kind is not FusionKind.OPAQUE else ():
            if v in fixed:
                continue
            layout = v.type.layout
            if v in wanted and layout is not None:
                wide = _surrounded(layout, wanted[v])
                if wide is not layout:
                    new[v] = Value(v.name, v.type.with_layout(wide))
    return _replaced(nodes, new)


def _replaced(nodes: Sequence[Node], new: Mapping[Value, Value]) -> list[Node]:
    """The nodes over other values."""
    if not new:
        return list(nodes)
    return [
        Node(
            n.op,
            tuple(new.get(v, v) for v in n.inputs),
            n.attrs,
            tuple(new.get(v, v) for v in n.outputs),
            n.sources,
        )
        for n in nodes
    ]


def _surrounded(layout: Layout, margins: Sequence[tuple[int, int]]) -> Layout:
    """A layout with margins around logical dimensions; only those that are whole in memory can have any."""
    place = list(range(len(layout.logical_shape)))  # which logical dimension a physical one is; -1 for parts
    for p in layout.primitives:
        match p:
            case Split(d, _):
                place[d : d + 1] = [-1, -1]
            case Reorder(perm):
                place = [place[k] for k in perm]
            case Fuse(d, n):
                place[d : d + n] = [-1]
            case Unfold() | Fold() | StoreAt() | DecoupleAt():
                return layout
            case Pad() | Unpad() | Margin():
                pass
    wide = layout
    for d, (before, after) in enumerate(margins):
        if before or after:
            if d not in place:
                return layout
            wide = wide.margin(place.index(d), before, after)
    return wide
