"""Prefetching: which part of an input a later iteration reads, and the statements that fetch it into a cache."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import within
from mlc.ir.index import ZERO, Linear, Var, as_index, substitute
from mlc.ir.loop import Buffer, For, ForKind, Prefetch, Stmt, dense_strides
from mlc.lower.bounds import Nest, box_of
from mlc.lower.relations import Fetch
from mlc.lower.rewrite import decided
from mlc.lower.stage import Stage

LINE = 64  # bytes of a cache line
# Elements that a run may have at most for one that is read: windows that do not reach the last columns of an image
# leave gaps between its rows, which are fetched as well.
GAPS = 1.25


@dataclass(frozen=True, slots=True)
class Run:
    """Elements next to each other, most of which are read: the first of them, and how many there are."""

    first: tuple[Linear, ...]
    length: int


def fetches(stage: Stage, leaf: Var, nests: dict[Stage, Nest], buffers: Mapping[te.Tensor, Buffer]) -> list[Stmt]:
    """What the loop ``leaf`` of a stage does at the start of each iteration.

    Raises:
        ScheduleError: what is to be fetched is not contiguous, or not read there at all.
    """
    found: list[Stmt] = []
    for fetch in stage.fetches:
        owner = _owner(stage, fetch.ahead)
        if fetch.at is leaf and nests[owner].loops[fetch.ahead].hi > 0:
            run = _run(owner, _owner(stage, fetch.pieces), fetch, nests)
            inner = stage.loops_between(fetch.pieces, fetch.at) or []
            found.append(_lines(fetch, run, [nests[s].loops[a] for s, a in inner], buffers[fetch.tensor]))
    return found


def _owner(stage: Stage, loop: Var) -> Stage:
    """The stage whose loop it is: this one, or one around it."""
    while loop not in stage.leaves:
        if stage.attach is None:
            raise ScheduleError(f"prefetch: {loop.name} is no loop around stage {stage.name} any more")
        stage = stage.attach.stage
    return stage


def _run(stage: Stage, inside: Stage, fetch: Fetch, nests: dict[Stage, Nest]) -> Run:
    """What an iteration of the loop ``pieces`` reads, ``distance`` iterations of ``ahead`` later.

    Args:
        stage: whose loop ``ahead`` is.
        inside: whose loop ``pieces`` is.
        fetch: has these loops.
        nests: loops of all stages.
    """
    t = fetch.tensor
    box = box_of(t, inside, fetch.pieces, nests)
    origin, extents = [first for first, _ in box], [n for _, n in box]
    length = 1 + sum((n - 1) * step for n, step in zip(extents, dense_strides(t.shape), strict=True))
    if length > GAPS * prod(extents):
        raise ScheduleError(
            f"prefetch: stage {inside.name} reads no contiguous part of {t.name} in {fetch.pieces.name}"
        )
    var = nests[stage].loops[fetch.ahead]
    shifted = tuple(substitute(ix, {var: as_index(var) + fetch.distance}) for ix in origin)
    return Run(shifted, length)


def _lines(fetch: Fetch, run: Run, loops: Sequence[Var], buffer: Buffer) -> Stmt:
    """One fetch a cache line; iterations of the loops inside ``ahead`` share the lines, the first if there are few."""
    per_line = max(1, LINE // buffer.dtype.itemsize)
    share, shares = ZERO, 1
    for loop in loops:
        share, shares = share * (loop.hi + 1) + loop, shares * (loop.hi + 1)
    lines = -(-run.length // per_line)
    each = -(-lines // shares)
    line = Var("line", 0, each - 1)
    at = (share * each + (line if each > 1 else 0)) * per_line
    body = Prefetch(buffer, (*run.first[:-1], run.first[-1] + at), fetch.level)
    if each > 1:
        return For(line, each, ForKind.UNROLLED if each <= 8 else ForKind.SERIAL, body)
    return decided(within(share, 0, lines), body, None)
