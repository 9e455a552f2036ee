"""Products with few results: their terms are added up in parts, by blocks each, and the parts by another launch.

A layer of a few pixels, or of one row, keeps few threads busy, each with thousands of terms; in parts, as many times as
many threads read memory at the same time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from mlc.ir import te
from mlc.ir.expr import Load, substitute_vars
from mlc.ir.index import IndexLike, Var, as_index
from mlc.lower.knobs import Knobs
from mlc.lower.schedule import Schedule
from mlc.targets.gpu.cost import Product
from mlc.targets.gpu.record import Gpu
from mlc.targets.gpu.schedules.spread import ask_spread
from mlc.targets.gpu.stream_cost import threads_for
from mlc.targets.groups.group import Group, replace_anchor, size_of

PARTS = (1, 2, 4, 8, 16, 32, 64)
LEAST = 16  # terms of a part
WORTH_PARTS = 0.9  # of the time of the whole sum that parts may take at most
FULL = 64 * 64  # elements of a block whose threads, two warps, make 8 by 8 each
UNROLLED = 16  # parts that are added up without a loop


def best_parts(p: Product, channels: int, target: Gpu, seconds: Callable[[Product], float]) -> tuple[int, float]:
    """In how many parts a product is expected to be fastest, and what it takes then.

    Args:
        p: the product.
        channels: what parts divide: the extent of its first reduction axis.
        target: the device.
        seconds: what a product is expected to take as a whole.
    """
    found = {1: seconds(p)}
    # where every unit has a block of threads that make as much each as they can, parts have nothing to add
    busy = p.batch * p.m * p.n >= target.units * FULL
    for n in _fitting(p, channels)[1:] if not busy else ():
        traffic = (n + 1) * p.batch * p.m * p.n * 4 / (target.gbytes * 1e9)
        found[n] = seconds(replace(p, batch=p.batch * n, k=p.k // n)) + traffic + target.launch_us * 1e-6
    best = min(found, key=lambda n: found[n] * (WORTH_PARTS if n == 1 else 1))
    return best, found[best]


def _fitting(p: Product, channels: int) -> tuple[int, ...]:
    return tuple(n for n in PARTS if channels % n == 0 and (n == 1 or p.k >= n * LEAST))


def ask_parts(knobs: Knobs, channels: int, p: Product, target: Gpu, seconds: Callable[[Product], float]) -> int:
    """How many parts the knob says, or else the cost model.

    Args:
        knobs: are asked.
        channels: what parts divide: the extent of the outermost loop over terms.
        p: the product as the cost model knows it.
        target: the device.
        seconds: what a product is expected to take as a whole.
    """
    best, _ = best_parts(p, channels, target, seconds)
    parts: int = knobs.category("parts", _fitting(p, channels), default=best)
    return parts


def in_parts(g: Group, count: int) -> Group:
    """The group with its product in parts, and those added up; the anchor is the product ``[batch…, part, i, j]``.

    Args:
        g: its anchor's first reduction axis is a multiple of ``count`` long.
        count: of parts.
    """
    anchor = g.anchor
    assert anchor is not None
    first, *rest = anchor.reduce_axes
    size = (first.hi + 1) // count
    axes = {a: Var(a.name, 0, a.hi) for a in anchor.axes}
    terms = {a: te.reduce_axis(a.hi + 1, a.name) for a in rest}
    part, term = Var("part", 0, count - 1), te.reduce_axis(size, first.name)
    env: dict[Var, IndexLike] = {**axes, **terms, first: as_index(part) * size + term}
    *batch, i, j = axes.values()
    product = te.Compute(
        f"{anchor.name}_parts",
        (*batch, part, i, j),
        (term, *terms.values()),
        tuple(substitute_vars(b, env) for b in anchor.bodies),
        anchor.combiner,
        anchor.tag,
        anchor.attrs,
    )
    (found,) = te.finish(product)
    *lead, row, column = (Var(a.name, 0, a.hi) for a in anchor.axes)
    each = te.reduce_axis(count, "part")
    read = Load(found, tuple(map(as_index, (*lead, each, row, column))))
    total = te.Compute(anchor.name, (*lead, row, column), (each,), (read,), anchor.combiner)
    return replace(replace_anchor(g, total), anchor=product)


def add_up(s: Schedule, total: te.Tensor, knobs: Knobs, target: Gpu, *, phased: bool) -> None:
    """Loops of what follows a product in parts: a thread adds up those of an element, and goes on with the sum.

    Where phases are put next to each other, it is asked what it would be without parts: a tuner may draw either.

    Raises:
        ScheduleError: the configuration is refused.
    """
    (out,) = s.outputs
    sums = s[s.cache_write(total, "local") if total is out else total]
    stage = s[out]
    count, parts = size_of(stage.op.shape), sums.op.reduce_axes[0].hi + 1
    usual = threads_for(count, (parts + 1) * count * out.dtype.itemsize, parts, target)
    block = ask_spread(stage, target, knobs, "out")[1] if phased else usual
    bx, tx = stage.split(stage.fuse(*stage.op.axes), block)
    stage.bind(bx, "blockIdx.x")
    stage.bind(tx, "threadIdx.x")
    sums.set_scope("local")
    sums.compute_at(stage, tx)
    (part,) = sums.op.reduce_axes
    if part.hi < UNROLLED:
        sums.unroll(part)
