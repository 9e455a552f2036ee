"""Element-wise groups, and the plain loops of any stage at the root: an element a thread, or a few."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from mlc.ir import te
from mlc.ir.expr import loads
from mlc.ir.index import as_index, weighted
from mlc.ir.loop import dense_strides
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.stream_cost import ACCESS, BLOCKS, INDEXING, Launch, fastest, instructions_of
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.template import Template, row_major


def spread(stage: Stage, target: Gpu, knobs: Knobs, name: str) -> None:
    """Loops of a stage without a reduction: blocks of threads over all of its elements, vectors where memory has them.

    Args:
        stage: at the root.
        target: the device.
        knobs: are asked as :func:`ask_spread` says.
        name: of the questions.

    Raises:
        ScheduleError: the configuration is refused.
    """
    if not stage.op.axes:
        return
    vector, block = ask_spread(stage, target, knobs, name)
    flat = stage.fuse(*stage.op.axes)
    if vector > 1:
        flat, lanes = stage.split(flat, vector)
        stage.vectorize(lanes)
    bx, tx = stage.split(flat, block)
    stage.bind(bx, "blockIdx.x")
    stage.bind(tx, "threadIdx.x")


def ask_spread(stage: Stage, target: Gpu, knobs: Knobs, name: str) -> tuple[int, int]:
    """Elements of a thread, and threads of a block: ``<name>.vector`` and ``<name>.block``.

    Raises:
        ScheduleError: the configuration is refused.
    """
    widest = vector_of(stage, target)
    wide = tuple(w for w in (1, 2, 4, 8, 16) if w <= widest)
    sizes = [b for b in BLOCKS if b <= target.max_threads]
    work = work_of(stage)
    pairs = [(w, b) for w in wide for b in sizes]
    best = fastest(((pair, work.launch(*pair, target)) for pair in pairs), target)
    vector: int = knobs.discrete(f"{name}.vector", wide, default=best[0])
    block: int = knobs.discrete(f"{name}.block", sizes, default=best[1])
    return vector, block


@dataclass(frozen=True)
class Work:
    """What the elements of a stage take.

    Args:
        count: of them.
        operations: of each.
        loads: of each.
        itemsize: bytes of the largest operand's or result's elements.
        nbytes: that are read and written.
    """

    count: int
    operations: int
    loads: int
    itemsize: int
    nbytes: int

    def launch(self, vector: int, block: int, target: Gpu) -> Launch:
        """Blocks of so many threads, which make so many elements each."""
        threads = ceil(self.count / vector)
        # lanes of a vector are as many instructions, where threads do not compute with vectors
        each = ceil(vector * 4 / target.vector_bytes) if target.vectors else vector
        instructions = INDEXING + ACCESS * (self.loads + 1) + self.operations * each
        held = (self.loads + 1) * ceil(vector * self.itemsize / 4)
        return Launch(ceil(threads / block), block, self.nbytes, 1, instructions, held)


def work_of(stage: Stage) -> Work:
    """What a stage without a reduction takes, with all that is inlined into it."""
    operations, read = reads_of(stage)
    count = size_of(stage.op.shape)
    nbytes = sum(min(t.size, count) * t.dtype.itemsize for t in read)
    written = sum(t.size * t.dtype.itemsize for t in stage.op.outputs)
    itemsize = max(t.dtype.itemsize for t in (*stage.op.outputs, *read))
    return Work(count, operations, len(read), itemsize, nbytes + written)


def reads_of(stage: Stage) -> tuple[int, list[te.Tensor]]:
    """Instructions for an element or a term of a stage, and the tensors that it reads, with all that is inlined."""
    operations, read = 0, []
    left, seen = [stage.op], {stage.op}
    while left:
        op = left.pop()
        operations += sum(map(instructions_of, op.bodies)) + (op.combiner is not None)
        for t in op.inputs:
            maker = stage.schedule.find(t)
            if maker is None or not maker.inlined:
                read.append(t)
            elif maker.op not in seen:
                seen.add(maker.op)
                left.append(maker.op)
    return operations, list(dict.fromkeys(read))


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
