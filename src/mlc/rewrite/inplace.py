"""Which operands of a kernel may give their memory to its results."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.graph import Graph, Node, express
from mlc.ir.index import as_index
from mlc.rewrite.group import body_of, is_group
from mlc.rewrite.keys import attrs_key


class InPlaceOperands:
    """Finds the operands that may lie in the same memory as a result of a node.

    Such an operand has the result's shape, element size and layout, and is only ever read at the very index that is
    being written, in all operators and stages through which it reaches the result. A kernel may then write the result
    over it, under any schedule that computes each element of the result once.

    Of several results, which one stage gives, an element is stored after the other, in order, each computed right
    before: so what a later one reads must not be overwritten by an earlier one.
    """

    def __init__(self) -> None:
        self._memo: dict[Hashable, Mapping[int, int]] = {}
        self._of_node: dict[Node, Mapping[int, int]] = {}

    def __call__(self, node: Node, result: int = 0) -> frozenset[int]:
        """Positions of the operands that the result at a position may be written over."""
        written = node.outputs[result]
        alike = [
            k
            for k, v in enumerate(node.inputs)
            if (v.type.shape, v.type.layout) == (written.type.shape, written.type.layout)
            and v.type.dtype.itemsize == written.type.dtype.itemsize
        ]
        if not alike:
            return frozenset()
        last = self._kept_in_step(body_of(node)) if is_group(node) else self._read_in_step(node)
        return frozenset(k for k in alike if last.get(k, result + 1) <= result)

    def _kept_in_step(self, body: Graph) -> Mapping[int, int]:
        """Operands of a group that all that depends on them reads, or reads what was made of them, at its own index.

        Returns:
            the last of the group's results that depends on each.
        """
        several = len(body.outputs) > 1
        if several and body.outputs != body.nodes[-1].outputs:
            return {}
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
        last = dict.fromkeys((k for k in range(len(body.inputs)) if not out_of_step >> k & 1), 0)
        if several:
            node = body.nodes[-1]
            for k, result in self._read_in_step(node).items():
                for j in last:
                    if depends.get(node.inputs[k], 0) >> j & 1:
                        last[j] = max(last[j], result)
        return last

    def _read_in_step(self, node: Node) -> Mapping[int, int]:
        """The operands that one operator reads only at the index it writes; equal applications are looked at once.

        Returns:
            the last result that depends on each.
        """
        known = self._of_node.get(node)
        if known is None:
            known = self._of_node[node] = self._look_up(node)
        return known

    def _look_up(self, node: Node) -> Mapping[int, int]:
        if node.op.express is None:
            return {}
        key = node.op, tuple((v.type.shape, v.type.dtype) for v in node.inputs), attrs_key(node.attrs)
        if key not in self._memo:
            operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
            results = express(node, operands)
            stages, final = te.topological(results), results[0].op
            self._memo[key] = {}
            if final is not None and (len(results) == 1 or tuple(results) == final.outputs):
                last = {k: _last_in_step(t, stages, final) for k, t in enumerate(operands)}
                self._memo[key] = {k: result for k, result in last.items() if result is not None}
        return self._memo[key]


def _last_in_step(operand: te.Tensor, stages: list[te.Compute], final: te.Compute) -> int | None:
    """The last result of the final stage that depends on an operand, if all read it, or what is made of it, in step."""
    dependent, last = {id(operand)}, 0
    for stage in stages:
        reads = [(k, ld) for k, body in enumerate(stage.bodies) for ld in loads(body) if id(ld.source) in dependent]
        if not reads:
            continue
        own = tuple(as_index(a) for a in stage.axes)
        if stage.combiner is not None or stage.shape != final.shape or any(ld.indices != own for _, ld in reads):
            return None
        dependent.update(id(t) for t in stage.outputs)
        if stage is final:
            last = max(k for k, _ in reads)
    return last
