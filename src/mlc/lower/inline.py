"""Inlining: the expression of an inlined stage takes the place of every load of it.

In: a schedule where some stages are marked by ``compute_inline``. Out: no stage that is left reads one of those.
"""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.expr import Expr, Load, replace_loads, substitute_vars
from mlc.lower.schedule import Schedule


def inline(schedule: Schedule) -> None:
    """Substitute every inlined stage into its readers' expressions."""
    inlined: dict[te.Tensor, te.Compute] = {}

    def swap(ld: Load) -> Expr:
        op = inlined.get(ld.source)
        if op is None:
            return ld
        return substitute_vars(op.bodies[ld.source.which], dict(zip(op.axes, ld.indices, strict=True)))

    for stage in schedule.stages:
        if any(t in inlined for t in stage.op.inputs):
            stage.op = te.with_bodies(stage.op, [replace_loads(b, swap) for b in stage.op.bodies])
        if stage.inlined:
            for t in stage.op.outputs:
                inlined[t] = stage.op
