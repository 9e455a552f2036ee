"""The whole lowering as one visible list of passes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from mlc.ir import te
from mlc.ir.loop import Function, Stmt
from mlc.lower.barriers import barriers
from mlc.lower.build import build
from mlc.lower.offsets import begin_with_offsets
from mlc.lower.overlap import copies
from mlc.lower.partition import partition, partition_branches
from mlc.lower.schedule import Schedule
from mlc.lower.tensorize import tensorize
from mlc.lower.threads import threads
from mlc.lower.unroll import unroll
from mlc.lower.vectorize import vectorize
from mlc.lower.verify import verify
from mlc.lower.vthread import Units, vthread

Passes = Sequence[tuple[str, Callable[[Stmt], Stmt]]]

PASSES: Passes = (
    ("tensorize", tensorize),
    ("vthread", vthread),
    ("partition", partition),
    ("vectorize", vectorize),
    ("unroll", unroll),
    ("offsets", begin_with_offsets),
)


def nest_passes(units: Units | None = None) -> Passes:
    """For targets that match whole nests (transfers of tiles, products of matrices) instead of emitting loops.

    Args:
        units: order the target's units by tokens; without, threads are interleaved, and order is left to the target.
    """
    return (
        ("tensorize", tensorize),
        ("vthread", partial(vthread, units=units)),
        ("partition", partition_branches),
    )


NEST_PASSES = nest_passes()

GRID_PASSES: Passes = (
    ("tensorize", tensorize),
    ("vthread", vthread),
    ("threads", threads),
    ("vectorize", vectorize),
    ("copies", copies),
    ("barriers", barriers),
)
"""For machines that run grids of threads: guards stay where they are, and loops to be unrolled are left to the compiler
of the kernel's text."""


def lower(
    schedule: Schedule,
    params: Sequence[te.Tensor],
    name: str,
    *,
    passes: Passes = PASSES,
    watch: Callable[[str, Function], None] | None = None,
) -> Function:
    """A kernel from a schedule.

    Args:
        schedule: loops of every stage.
        params: tensors passed in by the caller, inputs before outputs.
        name: symbol.
        passes: what is done to the loops, in order.
        watch: called with the name of each stage of lowering and its result.
    Raises:
        ScheduleError: the schedule is illegal.
    """
    fn = build(schedule, params, name)
    if watch is not None:
        watch("build", fn)
    for title, run in passes:
        fn = Function(fn.name, fn.params, fn.outputs, run(fn.body), fn.attrs)
        if watch is not None:
            watch(title, fn)
    verify(fn)
    return fn
