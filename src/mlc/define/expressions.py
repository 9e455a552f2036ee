"""Operators made of tensor expressions: one a compute, told from others by what it says and not by a name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mlc.ir import te
from mlc.ir.graph import Builder, FusionKind, Operator, Value
from mlc.ir.order import post_order
from mlc.ops.expression import own_operator
from mlc.targets.groups.roles import is_heavy


def add_expressions(
    g: Builder, results: Sequence[te.Tensor], known: Mapping[int, Value], sources: Sequence[str] = ()
) -> list[Value]:
    """Appends what computes some tensors to a graph, a node for each compute.

    Args:
        results: what is wanted.
        known: values that stand for tensors, by ``id``; whatever the results need and is not among them is computed.
        sources: the model's own nodes behind it.
    """
    values = dict(known)

    def makers(tensors: Sequence[te.Tensor]) -> list[te.Compute]:
        return [t.op for t in tensors if t.op is not None and id(t) not in known]

    for op in post_order(makers(results), lambda op: makers(op.inputs)):
        outs = g.add(
            operator_of(op), [values[id(t)] for t in op.inputs], names=[t.name for t in op.outputs], sources=sources
        )
        values.update({id(t): v for t, v in zip(op.outputs, outs, strict=True)})
    return [values[id(t)] for t in results]


def operator_of(op: te.Compute) -> Operator:
    """The operator that applies a compute to other tensors than those that it was written for."""
    if op.combiner is None:
        return own_operator(op, FusionKind.INJECTIVE)
    return own_operator(op, FusionKind.COMPLEX if is_heavy(op) else FusionKind.REDUCTION)
