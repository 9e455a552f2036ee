"""The register tile of an operator over searched layouts, and what the cost model expects of such a layout.

Sums lie along the channels of an innermost block, or along its rows; which of both, how many vectors and rows a tile
holds, and whether tiles of channels or of space are walked inside, follows from the extents of the innermost block and
from how far apart neighbours lie in the data. What is expected ranks layouts before any was measured: its cycles are
those of the register tiles, of the weights that they read, and of data that are copied beforehand.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from math import prod

from mlc.ir import te
from mlc.ir.layout import Layout
from mlc.lower.knobs import divisors
from mlc.targets.cpu.cost import TILE_OVERHEAD, USABLE, bandwidth, step_cycles
from mlc.targets.cpu.record import Cpu
from mlc.targets.groups.group import Group
from mlc.targets.groups.roles import Contraction, Convolution, PhasedConvolution, Window
from mlc.targets.groups.tiling import Tiling

MOST_PANELS = 8  # blocks of channels in a register tile
MOST_PHASES = 4  # of a row that share one
SCALAR = 1.0  # cycles a lane of a vector that has to be gathered
COPIED, MOVED = 16.0, 5.0  # bytes a cycle of a copy that keeps the order of the innermost dimension, or changes it
SPLIT, ACROSS = 1.5, 2.0  # loads that a vector is which may lie in two lines of the cache, and one that always does


@dataclass(frozen=True)
class Shape:
    """What decides a register tile.

    Args:
        held: extents of the innermost block, those of space (or rows) first, then channels; of one phase.
        outside: how many such blocks there are, of all axes together.
        blocks: of channels next to each other that read the same data.
        depth: terms of a sum.
        phases: of a row, whose results are neighbours; 1 unless transposed.
        around: phases altogether.
        apart: elements between neighbours along the last axis of space in the data.
        own: whether every channel reads data of its own.
        packed: channels next to each other in weights.
        moved: bytes of the data that are copied beforehand.
        turned: whether these change their innermost dimension.
        weights: bytes of all weights.
    """

    held: tuple[int, ...]
    outside: int
    blocks: int
    depth: int
    phases: int = 1
    around: int = 1
    apart: int = 1
    own: bool = False
    packed: int = 1
    moved: int = 0
    turned: bool = False
    weights: int = 0


@dataclass(frozen=True)
class Choice:
    """A register tile.

    Args:
        along: ``channels`` or ``space``, where its vectors lie.
        vectors: of channels, or channels where vectors lie along space.
        rows: along each axis of space; of the last, vectors where these lie along it.
        panels: blocks of channels.
        together: whether it holds all phases of a row.
        outer: what loops over tiles have outside, ``space`` or ``channels``.
        cycles: that all of the operator is expected to take.
    """

    along: str
    vectors: int
    rows: tuple[int, ...]
    panels: int
    together: bool
    outer: str
    cycles: float


def shape_of(g: Group, tiling: Tiling, target: Cpu) -> Shape:
    """What a layout leaves to decide.

    Args:
        g: a group that may be tiled, logical.
        tiling: its layouts.
        target: has the vectors.
    """
    role, anchor = g.role, g.anchor
    assert anchor is not None
    assert isinstance(role, (Contraction, Convolution, PhasedConvolution, Window))
    count = len(tiling.names)
    stored = _extents(tiling.output)
    levels = [stored[k : k + count] for k in range(tiling.lead, len(stored), count)]
    strides = tiling.strides or (1,) * (count - 1)
    *space, channels = levels[-1]
    held = (*(n // s for n, s in zip(space, strides, strict=True)), channels)
    blocks = levels[-2][-1]
    groups = role.groups if isinstance(role, (Convolution, PhasedConvolution)) else 1
    right = role.right if isinstance(role, Contraction) else role.weights
    assert right is not None
    data, border, lies = _data(g, tiling)
    copied = tiling.data is not None and lies != tiling.data
    inner = _last(tiling.data, data)
    return Shape(
        held=held,
        outside=prod(stored[: tiling.lead]) * prod(n for level in levels[:-1] for n in level),
        blocks=max(1, blocks // groups),
        depth=prod(a.hi + 1 for a in anchor.reduce_axes),
        phases=strides[-1],
        around=prod(strides),
        apart=_apart(g, tiling),
        own=isinstance(role, Window),
        packed=channels if tiling.weights is None else _extents(tiling.weights)[-1],
        moved=4 * (prod(_extents(tiling.data)) if tiling.data is not None and copied else data.size * border),
        turned=copied and inner != _last(lies, data),
        weights=4 * right.size,
    )


def _extents(layout: Layout) -> tuple[int, ...]:
    """Those of a layout, which every configuration of a loop space has in common: numbers, also under a trace."""
    return tuple(map(int, layout.physical_shape))


def _data(g: Group, tiling: Tiling) -> tuple[te.Tensor, bool, Layout | None]:
    """What an operator reads, whether that is a border around an input, and how the input lies."""
    role = g.role
    assert isinstance(role, (Contraction, Convolution, PhasedConvolution, Window))
    data = role.left if isinstance(role, Contraction) else role.data
    if data.op is None:
        return data, False, g.layouts.get(data)
    return data, True, g.layouts.get(data.op.inputs[0])


def _last(layout: Layout | None, data: te.Tensor) -> int:
    """How many channels (or terms) lie next to each other."""
    return 1 if layout is None or len(layout.physical_shape) <= len(data.shape) else _extents(layout)[-1]


def _apart(g: Group, tiling: Tiling) -> int:
    """Elements between neighbours along the last axis of space, as the data lie when they are read."""
    role = g.role
    data, _, lies = _data(g, tiling)
    lies = tiling.data or lies
    if isinstance(role, Contraction):
        return data.shape[-1] if lies is None else _extents(lies)[-1]
    stride = role.strides[-1] if isinstance(role, (Convolution, Window)) else 1
    return _last(lies, data) * stride


@lru_cache(maxsize=4096)  # a layout is asked about when it is chosen, and again by every way through the template
def best_choice(shape: Shape, target: Cpu) -> Choice:
    """The register tile that is expected to be the fastest."""
    return min(_choices(shape, target), key=lambda c: c.cycles)


def _choices(shape: Shape, target: Cpu) -> Iterator[Choice]:
    *space, channels = shape.held
    panels = [n for n in divisors(shape.blocks) if n <= MOST_PANELS]
    # of several channels, results next to each other in space lie apart, and are stored one by one
    ways = ["space"] if channels == 1 < space[-1] else ["channels"]
    for along in ways:
        wide = -(-channels // target.lanes) if along == "channels" else channels
        long = -(-space[-1] // target.lanes) if along == "space" else space[-1]
        rows = product(*(divisors(n) for n in (*space[:-1], long)))
        together = (False, True) if 1 < shape.phases <= MOST_PHASES else (False,)
        for tile, vectors, some, held in product(rows, divisors(wide), panels, together):
            sums = prod(tile) * vectors * some * (shape.phases if held else 1)
            if sums < target.registers:
                yield _priced(shape, target, along, vectors, tile, some, held)


def _priced(
    shape: Shape, target: Cpu, along: str, vectors: int, rows: tuple[int, ...], panels: int, together: bool
) -> Choice:
    """A choice with the cycles that it is expected to take."""
    *space, channels = shape.held
    held = shape.phases if together else 1
    if along == "channels":
        lanes, broadcast, read = min(target.lanes, channels), prod(rows), vectors * panels * held
        extents = [*space, -(-channels // target.lanes)]
        # vectors of weights lie in one piece where blocks hold whole ones, or whole blocks of results
        whole = channels % shape.packed == 0 and shape.packed % lanes == 0
        scattered = shape.packed % channels > 0 and not whole
        lines = SPLIT if channels % target.lanes else 1.0
    else:
        lanes, broadcast, read = min(target.lanes, space[-1]), vectors * panels * held, prod(rows)
        extents = [*space[:-1], -(-space[-1] // target.lanes), channels]
        scattered, lines = shape.apart > 1, SPLIT if lanes < target.lanes else ACROSS
    of = target.in_half_vectors() if target.halves and 2 * lanes <= target.lanes else target
    step = step_cycles(broadcast, read, of)
    step = max(step, (broadcast + read * lines) / of.loads)
    if scattered:
        step += lanes * SCALAR * read
    if shape.own:  # every sum has data and a weight of its own
        step = max(step, (prod(rows) + 1) * vectors * panels * held / target.loads)
    tiles = shape.outside * shape.around // (panels * held)
    tiles *= prod(-(-n // m) for n, m in zip(extents, (*rows, vectors), strict=True))
    compute = tiles * (shape.depth * step + TILE_OVERHEAD)
    # weights are read once for every tile of space: all of them, or those of a tile of channels again and again
    panel = 4 * shape.depth * vectors * panels * held * (lanes if along == "channels" else 1)
    all_panels = max(1, round(shape.weights / panel))
    again = tiles / all_panels * shape.weights
    far, near = again / bandwidth(shape.weights, target), again / bandwidth(panel, target)
    channels_outside = panel <= target.l2 * USABLE < shape.weights
    loads = near if channels_outside else far
    copied = 2 * shape.moved / (MOVED if shape.turned else COPIED)
    cycles = max(compute, loads) + 0.15 * min(compute, loads) + copied
    return Choice(along, vectors, rows, panels, together, "channels" if channels_outside else "space", cycles)
