"""Convolutions of bytes whose windows are runs of neighbours in memory, which instructions take as they come.

An instruction sums up four bytes. Where these are four channels of one pixel, an image of three spends a quarter of
each on padding: 9 instructions for 3 × 3 taps, 49 for 7 × 7. In a copy that has the window's rows side by side
(:func:`~mlc.targets.groups.terms.over_runs`) it is 27 bytes in 7 instructions, 147 in 37. Such a copy is made row by
row of results, and read from the first-level cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from mlc.ir import te
from mlc.ir.layout import Layout
from mlc.lower.stage import Stage
from mlc.targets.cpu.cost import Product
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.conv_tile import conv_product, conv_tile
from mlc.targets.groups.group import size_of
from mlc.targets.groups.layouts import MIN_BLOCKED
from mlc.targets.groups.roles import Convolution

COLUMNS = 8  # that are copied at once: so many bytes are read of each row
# Bytes that a copy writes a cycle, side by side or in blocks of channels (measured on Zen 5: 11 of runs of 9 bytes a
# column, 7 of 21, 8 of blocks of four).
COPIED = 8


def may_run(role: Convolution, dot: Dot | None, target: Cpu) -> bool:
    """Whether windows can be runs: images of few channels are copied anyway, here by permutations of bytes."""
    if dot is None or (dot.rows > 1 and not dot.is_matrix) or not target.permutes_bytes:
        return False
    near = all(k == 1 or d == 1 for k, d in zip(role.taps, role.dilations, strict=True))
    few = role.groups == 1 and role.data.shape[1] < MIN_BLOCKED and not role.single_pixels
    return near and few and role.data.dtype.itemsize == 1 and role.bits is None


def terms_of_run(role: Convolution, dot: Dot) -> int:
    """Terms of a window in whole instructions."""
    return dot.padded(role.data.shape[1] * size_of(role.taps))


def runs_pay(role: Convolution, y: te.Compute, dot: Dot, target: Cpu) -> bool:
    """Whether a convolution takes fewer cycles by runs, its copy included, than by channels of a pixel."""
    n, channels, *space = role.data.shape

    def cycles(depth: int, taps: Sequence[int], copied: int) -> float:
        product: Product = conv_product((n, depth, *space), y.shape, taps, False, target, terms=dot.terms)
        return product.cycles(conv_tile(product, target), target) * dot.operations + n * copied / COPIED

    apart = cycles(dot.padded(channels) // dot.terms, role.taps, dot.padded(channels) * size_of(space))
    above = size_of(role.taps[:-1]) * size_of(y.shape[2:-1])
    ones = (1,) * len(role.taps)
    return cycles(terms_of_run(role, dot) // dot.terms, ones, channels * above * space[-1]) < apart


def run_weight_layout(shape: Sequence[int], vectors: int, target: Cpu, dot: Dot) -> Layout:
    """Weights in the order of runs: ``[O / tile][terms of a window][tile of O]``, in whole instructions as packed.

    Args:
        shape: logical shape ``[o, c, taps…]``.
        vectors: channel vectors of a register tile.
        target: gives the vector width.
        dot: sums up several terms at once.
    """
    tile, rank = vectors * target.lanes, len(shape)
    layout = Layout(tuple(shape)).pad(0, 0, -shape[0] % tile).split(0, tile)
    layout = layout.reorder(0, rank, *range(3, rank), 2, 1).fuse(1, rank - 1)
    return dot.packed(layout.pad(1, 0, -layout.physical_shape[1] % dot.terms), target.lanes)


def put_side_by_side(stage: Stage) -> None:
    """Loops of a copy ``[n, …, w, terms of a column]``: some columns of all rows at once, as one long vector."""
    *_, columns, terms = stage.op.axes
    _, some = stage.split(columns, COLUMNS)
    stage.vectorize(stage.fuse(some, terms))
