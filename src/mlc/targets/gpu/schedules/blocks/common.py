"""What the schedules over blocks of channels share: how large a block is, and which threads a work-group has."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from mlc.ir import te
from mlc.ir.index import Var
from mlc.ir.layout import Layout, blocked
from mlc.ir.site import Site
from mlc.ir.types import f16, f32
from mlc.lower.knobs import Knobs
from mlc.lower.stage import Stage
from mlc.targets.base import LayoutChoice
from mlc.targets.gpu.record import Gpu
from mlc.targets.groups.group import Group
from mlc.targets.groups.layouts import channel_constants

BLOCKS = (4, 8)
THREADS = (1, 2, 4, 8, 16, 32, 64)
GROUP = 64  # threads of a work-group, where there are enough
FLOATS = (f32, f16)


def block_for(t: te.Tensor, target: Gpu, of: int = 0) -> int | None:
    """Channels of a block of a result: a register of elements as they lie in memory.

    What others read is nothing that one of them could tune.

    Args:
        t: the result.
        target: the device.
        of: channels that are to be whole blocks; any number where that is nothing.
    Returns:
        nothing where these cannot be.
    """
    fitting = (b for b in BLOCKS if b * t.dtype.itemsize <= target.vector_bytes and of % b == 0)
    return max(fitting, default=None)


def block_of(layout: Layout | None) -> int | None:
    """How many channels a block of a layout has, if it is one of blocks of channels."""
    if layout is None or len(layout.logical_shape) < 2:
        return None
    block = layout.core.physical_shape[-1]
    return block if layout.core == blocked(layout.logical_shape, 1, block) else None


def terms_of(channels: int, layout: Layout | None) -> int:
    """Channels that are loaded at once of what lies in a layout: a block, or as many as there are evenly."""
    block = block_of(layout)
    if block is not None and channels % block == 0:
        return block
    return max(k for k in range(1, BLOCKS[0] + 1) if channels % k == 0)


def in_blocks_of(g: Group, site: Site, block: int, packed: dict[int, Layout]) -> LayoutChoice:
    """The result in blocks of channels, and constants that have an element a channel likewise."""
    layout = blocked(g.outputs[0].shape, 1, block)
    return LayoutChoice((layout,), {**packed, **channel_constants(g, site, packed, block)})


def source_of(data: te.Tensor) -> te.Tensor:
    """What lies in memory of what a window slides over: the tensor, or what it is a border around."""
    while data.op is not None and len(data.op.inputs) == 1:
        data = data.op.inputs[0]
    return data


def bind_threads(stage: Stage, loops: Sequence[Var], knobs: Knobs, target: Gpu, inside: Sequence[Var]) -> Var:
    """Share out loops among the threads of work-groups, along x, y and z.

    Args:
        stage: whose loops they are.
        loops: up to three, the innermost first.
        knobs: are asked for the shape of a work-group.
        target: the device.
        inside: loops of a thread, in order.
    Returns:
        the innermost loop over threads.
    Raises:
        ScheduleError: a work-group has more threads than can be.
    """
    left, shape = min(GROUP, target.max_threads), []
    for axis, name in zip(loops, ("tx", "ty", "tz"), strict=False):
        fitting = next((n for n in THREADS if n > axis.hi), THREADS[-1])
        # along z lie images and blocks of channels, which a ragged end would have to be told apart of
        likely = [n for n in THREADS if n <= min(fitting, left) and (name != "tz" or (axis.hi + 1) % n == 0)]
        shape.append(min(knobs.discrete(name, THREADS, default=likely[-1]), axis.hi + 1))
        left = max(n for n in THREADS if n <= max(1, left // shape[-1]))
    threads = prod(shape)
    knobs.require(threads <= target.max_threads, f"{threads} threads of a block, {target.max_threads} are the most")
    cut = [stage.split(axis, n) for axis, n in zip(loops, shape, strict=True)]
    stage.reorder(*(o for o, _ in reversed(cut)), *(i for _, i in reversed(cut)), *inside)
    for (block, thread), d in zip(cut, "xyz", strict=False):
        stage.bind(block, f"blockIdx.{d}")
        stage.bind(thread, f"threadIdx.{d}")
    return cut[0][1]


def hold(part: Stage, acc: Stage, at: Var, *, vectors: bool) -> None:
    """Keep a part of an operand in registers.

    Args:
        part: the stage that copies it there.
        acc, at: the loop of what reads it, once around which it is loaded.
        vectors: whether it is loaded by vectors along its last axis.
    """
    part.set_scope("local")
    part.compute_at(acc, at)
    *outer, lane = part.op.axes
    for a in outer:
        part.unroll(a)
    if vectors:
        part.vectorize(lane)
    else:
        part.unroll(lane)
