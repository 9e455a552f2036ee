"""Eager folding of small operators while a model is imported, within budgets.

Exporters compute shapes with operators (``Shape -> Gather -> Concat -> Reshape``). Once the input shapes are known
these are constants, and converters need their values. Anything bigger is left to the folding pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from mlc.ir import loop, te
from mlc.ir.graph import Node, express
from mlc.ir.interp.graph import run_node
from mlc.ops.scan import SCAN

FOLD_BYTES = 1 << 20  # inputs and outputs of one folded operator, together
FOLD_WORK = 1 << 22  # loop iterations of one folded operator
TOTAL_WORK = 1 << 27  # of all of them: some seconds
STEP_WORK = 1000  # a step of an opaque routine is interpreted alone (tens of microseconds), a point among many


class Folder:
    """Evaluates operators on constants until its budget is spent."""

    def __init__(self) -> None:
        self.left = TOTAL_WORK

    def fold(self, node: Node, inputs: Sequence[np.ndarray]) -> list[np.ndarray] | None:
        """Values of the outputs, or ``None`` when that is not wanted or would cost too much.

        Raises:
            VerifyError: the operator has no value for these operands.
        """
        if not node.op.foldable:
            return None
        types = [v.type for v in (*node.inputs, *node.outputs)]
        if sum(prod(t.shape) * t.dtype.itemsize for t in types) > FOLD_BYTES:
            return None
        cost = work(node)
        if cost > min(FOLD_WORK, self.left):
            return None
        self.left -= cost
        return run_node(node, inputs)


def work(node: Node) -> int:
    """About how many loop iterations an operator takes, in points of a tensor expression."""
    if node.op is SCAN:
        return sum(node.attrs["rounds"] * (work(n) + STEP_WORK) for n in node.attrs["body"].nodes)
    if node.op.evaluate is not None:
        return sum(prod(v.type.shape) for v in node.outputs)
    if node.op.routine is None:
        tensors = [te.placeholder(v.type.shape, v.type.dtype, v.name) for v in node.inputs]
        computes = te.topological(express(node, tensors))
        return sum(prod(a.hi + 1 for a in (*c.axes, *c.reduce_axes)) for c in computes)
    ins = tuple(loop.Buffer(f"in{k}", v.type.shape, v.type.dtype) for k, v in enumerate(node.inputs))
    outs = tuple(loop.Buffer(f"out{k}", v.type.shape, v.type.dtype) for k, v in enumerate(node.outputs))
    longest = max([b.size for b in (*ins, *outs)], default=1)
    steps = 0
    stack = [(node.op.routine(ins, outs, node.attrs), 1)]
    while stack:
        statement, times = stack.pop()
        steps += times
        if isinstance(statement, loop.For):
            times *= statement.extent
        elif isinstance(statement, loop.ForRange):
            # its bounds are data; no routine of ours walks further than the longest of its buffers
            times *= longest
        stack += [(s, times) for s in loop.sub_statements(statement)]
    return steps * STEP_WORK
