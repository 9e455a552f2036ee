"""The whole lowering as one visible list of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from mlc.ir import te
from mlc.ir.loop import Function, Stmt
from mlc.lower.build import build
from mlc.lower.partition import partition
from mlc.lower.schedule import Schedule
from mlc.lower.unroll import unroll
from mlc.lower.vectorize import vectorize
from mlc.lower.verify import verify

PASSES: tuple[tuple[str, Callable[[Stmt], Stmt]], ...] = (
    ("partition", partition),
    ("vectorize", vectorize),
    ("unroll", unroll),
)


def lower(
    schedule: Schedule,
    params: Sequence[te.Tensor],
    name: str,
    *,
    watch: Callable[[str, Function], None] | None = None,
) -> Function:
    """A kernel from a schedule.

    Args:
        schedule: loops of every stage.
        params: tensors passed in by the caller, inputs before outputs.
        name: symbol.
        watch: called with the name of each stage of lowering and its result.
    Raises:
        ScheduleError: the schedule is illegal.
    """
    fn = build(schedule, params, name)
    if watch is not None:
        watch("build", fn)
    for title, run in PASSES:
        fn = Function(fn.name, fn.params, fn.outputs, run(fn.body), fn.attrs)
        if watch is not None:
            watch(title, fn)
    verify(fn)
    return fn
