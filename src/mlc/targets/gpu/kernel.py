"""A group as the loops of a kernel over a grid of threads."""

from __future__ import annotations

from collections.abc import Callable
from math import prod

from mlc.errors import ScheduleError
from mlc.ir.expr import Load, within
from mlc.ir.graph import Node
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.loop import Buffer, For, ForKind, Function, If, Stmt, Store, seq
from mlc.lower import lower
from mlc.lower.pipeline import GRID_PASSES
from mlc.lower.prove import prove
from mlc.lower.threads import grid_of, launches
from mlc.ops.shape import JOIN
from mlc.targets.gpu.emit import shared_bytes
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.routine import over_grid
from mlc.targets.gpu.stream_cost import threads_for
from mlc.targets.groups.group import knobs_of

Watch = Callable[[str, str], None]


def kernel(node: Node, name: str, target: Gpu, watch: Watch | None = None) -> Function:
    """The loops of a group, a routine or a join, proved to be free of races, wrong indices and divergent barriers.

    Routines, which no schedule knows, are made by threads as far as :mod:`mlc.targets.gpu.routine` sees.

    Args:
        node: row-major.
        name: of the kernel.
        target: the device.
        watch: is told what every stage makes of it.
    Raises:
        ScheduleError: the configuration is refused.
        VerifyError: the kernel is not right: a bug of a schedule.
    """
    if node.op is JOIN or node.op.routine is not None:
        ins, outs = (
            tuple(Buffer(f"{what}{k}", v.type.physical_shape, v.type.dtype) for k, v in enumerate(values))
            for what, values in (("p", node.inputs), ("out", node.outputs))
        )
        routine = node.op.routine
        body = _join(ins, outs[0], node.attrs["axis"], target) if routine is None else routine(ins, outs, node.attrs)
        fn = Function(name, ins + outs, len(outs), body)
        fn = fn if routine is None else over_grid(fn, target)
    else:
        from mlc.targets.gpu.schedules import schedule_group

        knobs = knobs_of(node)
        schedule, params = schedule_group(node, target, knobs)
        knobs.require_all_asked()
        if watch is not None:
            watch("te", "\n".join(repr(s.op) for s in schedule.stages) + "\n")
            watch("schedule", "\n".join(schedule.history) + "\n")
        fn = lower(schedule, params, name, passes=GRID_PASSES)
    _check_shared(fn, target)
    if watch is not None:
        watch("loops", repr(fn))
    prove(fn)
    return fn


def _check_shared(fn: Function, target: Gpu) -> None:
    """A block's shared memory is there.

    Raises:
        ScheduleError: it is not.
    """
    for s in launches(fn.body):
        wanted = sum(map(shared_bytes, grid_of(s)[1]))
        if wanted > target.shared_bytes:
            raise ScheduleError(
                f"{fn.name}: blocks want {wanted} bytes of shared memory, {target.name} has {target.shared_bytes}"
            )


def _join(parts: tuple[Buffer, ...], out: Buffer, axis: int, target: Gpu) -> Stmt:
    """Copies of tensors next to each other, a launch each."""
    copies: list[Stmt] = []
    begin = 0
    for b in parts:
        if b.size:
            copies.append(_copy(b, out, axis, begin, target))
        begin += b.shape[axis]
    return seq(copies)


def _copy(b: Buffer, out: Buffer, axis: int, begin: int, target: Gpu) -> Stmt:
    threads = threads_for(b.size, 2 * b.nbytes, 1, target)
    block, thread = Var("bx", 0, -(-b.size // threads) - 1), Var("tx", 0, threads - 1)
    flat = as_index(block) * threads + thread
    at: list[Linear] = []
    for n in reversed(b.shape):
        at.insert(0, flat % n)
        flat = flat // n
    there = tuple(ix + begin if d == axis else ix for d, ix in enumerate(at))
    store: Stmt = Store(out, there, Load(b, tuple(at)))
    if prod((block.hi + 1, threads)) > b.size:
        store = If(within(as_index(block) * threads + thread, 0, b.size), store)
    for v, axis_name in ((thread, "threadIdx.x"), (block, "blockIdx.x")):
        store = For(v, v.hi + 1, ForKind.THREAD, store, axis_name)
    return store
