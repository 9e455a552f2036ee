"""Which operands of a kernel may give their memory to its result."""

from __future__ import annotations

from collections.abc import Hashable

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.graph import Graph, Node, express
from mlc.ir.index import as_index
from mlc.rewrite.group import body_of, is_group
from mlc.rewrite.keys import attrs_key


class InPlaceOperands:
    """Finds the operands that may lie in the same memory as a node's only result.

    Such an operand has the result's shape, element size and layout, and is only ever read at the very index that is
    being written, in all operators and stages through which it reaches the result. A kernel may then write the result
    over it, under any schedule that computes each element of the result once.
    """

    def __init__(self) -> None:
        self._memo: dict[Hashable, frozenset[int]] = {}
        self._of_node: dict[Node, frozenset[int]] = {}

    def __call__(self, node: Node) -> frozenset[int]:
        """Positions of those operands."""
        if len(node.outputs) != 1:
            return frozenset()
        (result,) = node.outputs
        alike = [
            k
            for k, v in enumerate(node.inputs)
            if (v.type.shape, v.type.layout) == (result.type.shape, result.type.layout)
            and v.type.dtype.itemsize == result.type.dtype.itemsize
        ]
        if not alike:
            return frozenset()
        if not is_group(node):
            return self._read_in_step(node).intersection(alike)
        return self._kept_in_step(body_of(node)).intersection(alike)

    def _kept_in_step(self, body: Graph) -> frozenset[int]:
        """Operands of a group that all that depends on them reads, or reads what was made of them, at its own index."""
        depends = {v: 1 << k for k, v in enumerate(body.inputs)}  # on which operands, as a set of bits
        out_of_step = 0
        for node in body.nodes:
            in_step = self._read_in_step(node)
            together = 0
            for k, v in enumerate(node.inputs):
                together |= depends.get(v, 0)
                if k not in in_step:
                    out_of_step |= depends.get(v, 0)
            depends.update(dict.fromkeys(node.outputs, together))
        return frozenset(k for k in range(len(body.inputs)) if not out_of_step >> k & 1)

    def _read_in_step(self, node: Node) -> frozenset[int]:
        """The operands that one operator reads only at the index it writes; equal applications are looked at once."""
        known = self._of_node.get(node)
        if known is None:
            known = self._of_node[node] = self._look_up(node)
        return known

    def _look_up(self, node: Node) -> frozenset[int]:
        if node.op.express is None or len(node.outputs) != 1:
            return frozenset()
        key = node.op, tuple((v.type.shape, v.type.dtype) for v in node.inputs), attrs_key(node.attrs)
        if key not in self._memo:
            operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
            stages = te.topological(express(node, operands))
            shape = node.outputs[0].type.shape
            self._memo[key] = frozenset(k for k, t in enumerate(operands) if _all_in_step(t, stages, shape))
        return self._memo[key]


def _all_in_step(operand: te.Tensor, stages: list[te.Compute], shape: tuple[int, ...]) -> bool:
    dependent = {id(operand)}
    for stage in stages:
        reads = [ld for body in stage.bodies for ld in loads(body) if id(ld.source) in dependent]
        if not reads:
            continue
        own = tuple(as_index(a) for a in stage.axes)
        if stage.combiner is not None or stage.shape != shape or any(ld.indices != own for ld in reads):
            return False
        dependent.update(id(t) for t in stage.outputs)
    return True
