"""Which operands of a kernel may give their memory to its result."""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.graph import Node, express
from mlc.ir.index import as_index


def in_place_operands(node: Node) -> frozenset[int]:
    """Positions of the operands that may lie in the same memory as the node's only result.

    Such an operand has the result's shape, element size and layout, and is only ever read at the very index that is
    being written, in all stages through which it reaches the result. A kernel may then write the result over it, under
    any schedule that computes each element of the result once.
    """
    if node.op.express is None or len(node.outputs) != 1:
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
    operands = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
    stages = te.topological(express(node, operands))
    return frozenset(k for k in alike if _read_in_step(operands[k], stages, result.type.shape))


def _read_in_step(operand: te.Tensor, stages: list[te.Compute], shape: tuple[int, ...]) -> bool:
    """Whether whatever depends on ``operand`` reads it, directly or not, at its own index alone."""
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
