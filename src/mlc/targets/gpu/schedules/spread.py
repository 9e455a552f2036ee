"""Element-wise groups, and the plain loops of any stage at the root: an element a thread, or a few."""

from __future__ import annotations

from mlc.ir.expr import loads
from mlc.ir.index import as_index, weighted
from mlc.ir.loop import dense_strides
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.record import Gpu
from mlc.targets.groups.group import Group, inline_rest
from mlc.targets.groups.template import Template, row_major

BLOCKS = (32, 64, 128, 256, 512, 1024)


def spread(stage: Stage, target: Gpu, knobs: Knobs, name: str) -> None:
    """Loops of a stage without a reduction: blocks of threads over all of its elements, vectors where memory has them.

    Args:
        stage: at the root.
        target: the device.
        knobs: are asked ``<name>.block`` (threads of a block) and ``<name>.vector`` (elements a thread).
        name: of the questions.

    Raises:
        ScheduleError: the configuration is refused.
    """
    if not stage.op.axes:
        return
    widest = vector_of(stage, target)
    wide = tuple(w for w in (1, 2, 4, 8, 16) if w <= widest)
    flat = stage.fuse(*stage.op.axes)
    count = flat.hi + 1
    # vectors pay where there are elements enough to keep all units busy with fewer threads
    busy = max(w for w in wide if w == 1 or count // w >= target.units * target.warp * 4)
    vector = knobs.discrete(f"{name}.vector", wide, default=busy)
    sizes = [b for b in BLOCKS if b <= target.max_threads]
    fitting = next((b for b in sizes if b >= count), sizes[-1])
    block = knobs.discrete(f"{name}.block", sizes, default=min(fitting, 256, sizes[-1]))
    if vector > 1:
        flat, lanes = stage.split(flat, vector)
        stage.vectorize(lanes)
    bx, tx = stage.split(flat, block)
    stage.bind(bx, "blockIdx.x")
    stage.bind(tx, "threadIdx.x")


def vector_of(stage: Stage, target: Gpu) -> int:
    """Elements next to each other that a thread can make at once: those that memory holds, and all accesses follow.

    Loads that stay within a vector, or move along with it, are taken; anything else would be as many single loads.
    """
    (op,) = (stage.op,)
    out = op.outputs[0]
    most = target.vector_bytes // max(t.dtype.itemsize for t in (*op.outputs, *op.inputs))
    last = op.axes[-1]
    if len(op.outputs) > 1 or out.home is not None or out.dtype.kind == "b":
        return 1
    width = 1
    while width * 2 <= most and (last.hi + 1) % (width * 2) == 0:
        width *= 2
    for body in op.bodies:
        for ld in loads(body):
            offset = weighted(ld.indices, dense_strides(ld.source.shape))
            step = offset.coefficient(last)
            if step not in (0, 1) or ld.dtype.kind == "b":
                return 1
            while step == 1 and width > 1 and not (offset - as_index(last)).multiple_of(width):
                width //= 2
    return width


def schedule_injective(g: Group, target: Gpu) -> Schedule:
    """Everything inlined into the results.

    Raises:
        ScheduleError: the configuration is refused.
    """
    s = Schedule(g.outputs)
    inline_rest(s, ())
    for k, stage in enumerate(dict.fromkeys(s[t] for t in g.outputs)):  # one may give several results
        spread(stage, target, g.knobs, f"out{k}")
    return s


def _fits(g: Group, target: Gpu) -> bool:
    return not g.reductions


ELEMENT_WISE = Template("element-wise", _fits, row_major, schedule_injective)
