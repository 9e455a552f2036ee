"""Tensor intrinsics in the reference interpreter: what their behaviour says, of one use or of many at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads
from mlc.ir.index import Var, as_index
from mlc.ir.interp.te import Evaluator, run_compute
from mlc.ir.intrinsic import Kind, TensorIntrinsic


def applied(op: te.Compute, kind: Kind, held: np.ndarray, values: Mapping[int, np.ndarray]) -> np.ndarray:
    """What the output of an intrinsic becomes.

    Args:
        op: what it does.
        kind: what this use of it does to the output.
        held: the output before.
        values: arrays of the inputs, by the tensors' ``id``; none are needed for a reset.
    """
    dtype = op.bodies[0].dtype
    if kind == Kind.RESET:
        assert op.combiner is not None
        return np.full(held.shape, op.combiner.identity([dtype])[0].value, dtype.numpy)
    (new,) = run_compute(op, values)
    if kind == Kind.UPDATE:
        assert op.combiner is not None
        before, more = (te.placeholder((), dtype, name) for name in ("held", "more"))
        (folded,) = op.combiner.combine((before[()],), (more[()],))
        return np.asarray(Evaluator({}, {id(before): held, id(more): new}, op, scalars=True).eval(folded))
    return new


@lru_cache(maxsize=256)
def batched(what: TensorIntrinsic, count: int) -> tuple[te.Compute, Sequence[te.Tensor]]:
    """An intrinsic's compute as one of many uses, with one more dimension in front; and its inputs."""
    use = Var("use", 0, count - 1)
    inputs = {id(t): te.placeholder((count, *t.shape), t.dtype, t.name) for t in what.inputs}

    def within(ld: Load) -> Expr:
        return Load(inputs[id(ld.source)], (as_index(use), *ld.indices))

    op = what.op
    bodies = tuple(replace_loads(b, within) for b in op.bodies)
    return te.Compute(op.name, (use, *op.axes), op.reduce_axes, bodies, op.combiner), tuple(inputs.values())
