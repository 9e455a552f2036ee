"""Windows with a weight a channel (depthwise convolutions): a thread makes a few neighbouring pixels in registers.

There is nothing for threads to share but the border of what they read, which caches serve; what counts is that windows
of one thread overlap. What they cover is loaded once, into registers, zeros around the image included; every weight is
loaded once for all pixels of the thread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, prod

from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.cost import HIDING, OVERHEAD, SHARED_RATE
from mlc.targets.gpu.record import Gpu
from mlc.targets.groups.group import Group, border_of, ends_in_anchor, inline_rest, is_single
from mlc.targets.groups.roles import Window, factors_of
from mlc.targets.groups.template import Template, row_major

ROWS, COLUMNS = (1, 2, 4), (1, 2, 4, 8)  # pixels of a thread
THREADS = (1, 2, 4, 8, 16, 32)
BLOCK = 128  # threads of a block, where there are enough pixels
UNROLLED = 256  # multiplications that are written out


@dataclass(frozen=True)
class Work:
    """Windows as the cost model knows them.

    Args:
        images: of one channel each.
        space: pixels of a result, as rows and columns.
        taps, strides, dilations: of the window, along rows and columns.
    """

    images: int
    space: tuple[int, int]
    taps: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]

    def patch(self, rows: int, columns: int) -> int:
        """Elements that the windows of so many pixels cover."""
        return prod(
            (n - 1) * s + (k - 1) * d + 1
            for n, s, k, d in zip((rows, columns), self.strides, self.taps, self.dilations, strict=True)
        )

    def seconds(self, rows: int, columns: int, target: Gpu) -> float:
        """What windows are expected to take, with so many pixels a thread."""
        threads = self.images * ceil(self.space[0] / rows) * ceil(self.space[1] / columns)
        taps = prod(self.taps)
        each = 2 / (target.gflops * 1e9)  # of a multiplication, all units together
        arithmetic = threads * rows * columns * taps * each
        loads = threads * (self.patch(rows, columns) + taps) * each / SHARED_RATE
        hidden = min(1.0, threads / (target.units * target.warp * HIDING))
        read = self.images * prod(n * s for n, s in zip(self.space, self.strides, strict=True))
        traffic = 4 * (read + self.images * prod(self.space)) / (target.gbytes * 1e9)
        return max((arithmetic + loads) / hidden, traffic)


def pixels(work: Work, target: Gpu) -> Iterator[tuple[int, int]]:
    """Rows and columns of a thread that fit its registers."""
    for rows in ROWS:
        for columns in COLUMNS:
            held = work.patch(rows, columns) + rows * columns + OVERHEAD
            if rows <= work.space[0] and columns <= work.space[1] and held <= target.registers:
                yield rows, columns


def _work(g: Group) -> Work:
    role = g.role
    assert isinstance(role, Window)
    assert g.anchor is not None
    lead, space = g.anchor.shape[: -len(role.taps)], g.anchor.shape[-len(role.taps) :]

    def two(values: Sequence[int]) -> tuple[int, int]:
        return (1, *values)[-2], values[-1]

    images = prod(lead) * prod(space[:-2])
    return Work(images, two(space), two(role.taps), two(role.strides), two(role.dilations))


def schedule_window(g: Group, target: Gpu) -> Schedule:
    """A few pixels a thread.

    Raises:
        ScheduleError: the configuration is refused.
    """
    work = _work(g)
    assert g.anchor is not None
    best = min(pixels(work, target), key=lambda rc: work.seconds(rc[0], rc[1], target), default=(1, 1))
    tile, block = ask_tile(g.knobs, work, best, target)
    rows, columns = tile
    held = work.patch(rows, columns)
    patch = g.knobs.category("patch", (True, False), default=rows * columns > 1)
    s = Schedule(g.outputs)
    sums, out = g.anchor.outputs[0], g.outputs[0]
    pair = factors_of(g.anchor)
    assert pair is not None
    role = g.role
    assert isinstance(role, Window)
    sums = s.cache_write(sums, "local") if sums in s.outputs else sums
    data = role.data
    if patch and border_of(data) is None:
        data = s.cache_read(data, "local", [sums])
    inline_rest(s, [data] if patch else [])
    stage = s[out]
    *lead, last = stage.op.axes
    row = lead.pop() if len(role.taps) > 1 else None
    bx, last = stage.split(last, columns * block[2])
    tx, last = stage.split(last, columns)
    images = stage.fuse(*lead)
    bz, tz = stage.split(images, block[0])
    inner = [last]
    if row is not None:
        by, row = stage.split(row, rows * block[1])
        ty, row = stage.split(row, rows)
        stage.reorder(bz, by, bx, tz, ty, tx, row, last)
        stage.bind(by, "blockIdx.y")
        stage.bind(ty, "threadIdx.y")
        inner.insert(0, row)
    else:
        stage.reorder(bz, bx, tz, tx, last)
    for axis, name in ((bz, "blockIdx.z"), (bx, "blockIdx.x"), (tz, "threadIdx.z"), (tx, "threadIdx.x")):
        stage.bind(axis, name)
    for a in inner:
        stage.unroll(a)
    if columns > 1 and work.space[1] % columns == 0:
        stage.vectorize(last)
    acc = s[sums]
    acc.set_scope("local")
    acc.compute_at(stage, tx)
    acc.reorder(*acc.op.reduce_axes, *acc.op.axes)
    written = rows * columns * prod(role.taps) <= UNROLLED
    for a in (*(acc.op.reduce_axes if written else ()), *acc.op.axes):
        acc.unroll(a)
    if patch:
        loaded = s[data]
        loaded.set_scope("local")
        loaded.compute_at(stage, tx)
        for a in loaded.op.axes if held <= UNROLLED else ():
            loaded.unroll(a)
    return s


def ask_tile(
    knobs: Knobs, work: Work, best: tuple[int, int], target: Gpu
) -> tuple[tuple[int, int], tuple[int, int, int]]:
    """Pixels of a thread, as rows and columns, and threads of a block, along images, rows and columns.

    Raises:
        ScheduleError: a block cannot run.
    """
    rows = knobs.discrete("rows", ROWS, default=best[0])
    columns = knobs.discrete("columns", COLUMNS, default=best[1])
    rows, columns = min(rows, work.space[0]), min(columns, work.space[1])
    left = min(BLOCK, target.max_threads)
    block: list[int] = []
    for name, count in (
        ("tx", ceil(work.space[1] / columns)),
        ("ty", ceil(work.space[0] / rows)),
        ("tz", work.images),
    ):
        fitting = next((n for n in THREADS if n >= count), THREADS[-1])
        block.insert(0, min(knobs.discrete(name, THREADS, default=min(fitting, left)), max(count, 1)))
        left = max(1, left // block[0])
        left = max(n for n in THREADS if n <= left)
    knobs.require(
        prod(block) <= target.max_threads, f"{prod(block)} threads of a block, {target.max_threads} are the most"
    )
    held = work.patch(rows, columns) + rows * columns + OVERHEAD
    knobs.require(
        rows * columns == 1 or held <= target.registers,
        f"about {held} registers of a thread, there are {target.registers}",
    )
    return (rows, columns), (block[0], block[1], block[2])


def _fits(g: Group, target: Gpu) -> bool:
    if not is_single(g) or g.anchor is None or not ends_in_anchor(g) or 0 in g.anchor.shape:
        return False
    return isinstance(g.role, Window) and factors_of(g.anchor) is not None and len(g.outputs) == 1


WINDOW: Template[Gpu] = Template("window", _fits, row_major, schedule_window)
