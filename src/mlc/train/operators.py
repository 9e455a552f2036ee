"""Operators made of tensor expressions: one a compute, told from others by what it says and not by a name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mlc.ir import te
from mlc.ir.expr import Expr, Load, loads, replace_loads
from mlc.ir.graph import Attrs, Builder, FusionKind, Operator, Value
from mlc.ir.index import as_index
from mlc.ir.order import post_order
from mlc.ir.types import TensorType
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
    types = [TensorType(t.shape, t.dtype) for t in op.outputs]
    written = op.inputs

    def express(inputs: Sequence[te.Tensor], attrs: Attrs) -> Sequence[te.Tensor]:
        stands = {id(old): new for old, new in zip(written, inputs, strict=True)}
        renamed: Callable[[Load], Expr] = lambda ld: Load(stands[id(ld.source)], ld.indices)  # noqa: E731
        bodies = tuple(replace_loads(body, renamed) for body in op.bodies)
        return te.finish(te.Compute(op.name, op.axes, op.reduce_axes, bodies, op.combiner, op.tag, op.attrs))

    return Operator(op.name, _kind(op), lambda given, attrs: types, express, elementwise=_is_elementwise(op))


def _kind(op: te.Compute) -> FusionKind:
    if op.combiner is None:
        return FusionKind.INJECTIVE
    return FusionKind.COMPLEX if is_heavy(op) else FusionKind.REDUCTION


def _is_elementwise(op: te.Compute) -> bool:
    """Whether elements depend on those of the operands at their own position, where operands may have fewer axes."""
    if op.combiner is not None or len(op.outputs) != 1:
        return False
    at = [as_index(a) for a in op.axes]
    for body in op.bodies:
        for load in loads(body):
            begin = len(at) - len(load.indices)
            if begin < 0:
                return False
            own = zip(load.indices, at[begin:], load.source.shape, op.shape[begin:], strict=True)
            if not all((ix == a and n == extent) or (n == 1 and ix.is_const) for ix, a, n, extent in own):
                return False
    return True
