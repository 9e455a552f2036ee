"""Steps of recurrences in one launch: rows times weights whose columns are gates, and what combines the gates.

A block makes some neighbouring units of a row. Its threads lie along these units, the gates, and shares of the terms:
so neighbours read neighbouring weights, and every thread adds up terms of one column. What they found they leave in
shared memory, where one thread a column adds it up; then all gates of the block's units are there, and a thread a unit
combines them. All results come of that, such as the state and the cell of an LSTM.
"""

from __future__ import annotations

from mlc.ir import te
from mlc.ir.layout import Layout
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.folding import inside
from mlc.targets.groups.gates import gates_of
from mlc.targets.groups.group import Group, inline_rest
from mlc.targets.groups.roles import Contraction
from mlc.targets.groups.template import Template, row_major

WIDE = (4, 8, 16, 32)  # units of a block
MOST = 32  # threads that share the terms of a column
LIKELY = 8  # units of a block: 32 bytes of single precision, what memory is read by at least


def schedule_gates(g: Group, target: Gpu) -> Schedule:
    """All results in one launch.

    Raises:
        ScheduleError: the configuration is refused.
    """
    assert g.anchor is not None
    gates, results = gates_of(g), g.outputs
    (rows, columns), (_, units) = g.anchor.shape, results[0].shape
    depth = g.anchor.reduce_axes[0].hi + 1
    wide, deep = _ask(g.knobs, gates, units, depth, target)
    joined = te.compute_many(results[0].shape, lambda i, j: tuple(t[i, j] for t in results), "gates")
    split = {g.anchor.outputs[0]: Layout((rows, columns)).split(1, units)}
    p = Group(g.inputs, joined, g.anchor, g.layouts, g.knobs).apply(split)
    assert p.anchor is not None
    s = Schedule(p.outputs)
    total = p.anchor.outputs[0]
    inline_rest(s, [])
    out = s[p.outputs[0]]
    bx, tx = out.split(out.op.axes[1], wide)
    at = out.fuse(out.op.axes[0], bx)
    out.bind(at, "blockIdx.x")
    out.bind(tx, "threadIdx.x")
    share = s.rfactor(total, s[total].split(s[total].op.reduce_axes[0], deep)[1]) if deep > 1 else None
    stages = [t for t in (share, total) if t is not None]
    # sums are kept in registers, and left in shared memory when they are done
    sums = [s.cache_write(t, "local") for t in stages]
    for t, own in zip(stages, sums, strict=True):
        stage = s[t]
        inside(stage, out, at, "shared")
        *shares, row, gate, unit = stage.op.axes
        jo, jx = stage.split(unit, wide)
        stage.reorder(row, jo, *shares, gate, jx)
        for axis, which in (*((a, "threadIdx.z") for a in shares), (gate, "threadIdx.y"), (jx, "threadIdx.x")):
            stage.bind(axis, which)
        inside(s[own], stage, jx, "local")
    return s


def _ask(knobs: Knobs, gates: int, units: int, depth: int, target: Gpu) -> tuple[int, int]:
    """Units of a block, and threads that share the terms of each column.

    Raises:
        ScheduleError: a block cannot run.
    """
    wide = min(knobs.discrete("wide", WIDE, default=LIKELY), units)
    shares = [k for k in range(1, MOST + 1) if depth % k == 0 or k & (k - 1) == 0]
    fitting = [k for k in shares if wide * gates * k <= target.max_threads]
    whole = [k for k in fitting if depth % k == 0]  # then no thread has to ask whether it has another term
    likely = whole[-1] if whole and 2 * whole[-1] > fitting[-1] else fitting[-1] if fitting else 1
    deep = min(knobs.discrete("deep", shares, default=likely), depth)
    threads = wide * gates * deep
    knobs.require(threads <= target.max_threads, f"{threads} threads of a block, {target.max_threads} are the most")
    wanted = wide * gates * (deep + 1) * 4
    knobs.require(wanted <= target.shared_bytes, f"{wanted} bytes of shared memory, there are {target.shared_bytes}")
    return wide, deep


def _fits(g: Group, target: Gpu) -> bool:
    if target.shared_bytes == 0 or not isinstance(g.role, Contraction) or len(g.reductions) != 1 or g.layouts:
        return False
    return gates_of(g) > 1 and 0 not in g.outputs[0].shape and g.reductions[0].reduce_axes[0].hi >= 0


GATES = Template("gates", _fits, row_major, schedule_gates)
