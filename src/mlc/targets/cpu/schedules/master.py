"""The master template: knobs for the heaviest reduction of any group, derived from its tensor expression alone.

Data axes are tiled on three levels (shared by threads, walked, held in registers), reduction axes on two; one data axis
runs in vectors; the order of the walked loops, how deep reductions are unrolled, how many outer loops threads share,
and where the sums of a tile are kept are knobs too. So an operator that no template knows, a user's own, can be tuned.

What follows the reduction is computed tile by tile where it has the same shape and there is no other reduction. Else
the reduction's result lies in memory, and the rest of the group has loops of its own.

Where it is asked for by name, it packs constants, too: see :mod:`mlc.targets.cpu.schedules.packed`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from mlc.ir import te
from mlc.ir.expr import Load, index_vars, loads
from mlc.ir.index import Var
from mlc.lower.knobs import MAX_ITEMS
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.lower.symbolic import pinned
from mlc.targets.cpu.record import Cpu
from mlc.targets.cpu.schedules.injective import spread
from mlc.targets.cpu.schedules.reduction import (
    fold_or_spread,
    inline_between,
    reduction_layouts,
    rows_of,
    schedule_reduction,
)
from mlc.targets.cpu.schedules.strips import strips_of, sum_in_strips
from mlc.targets.groups.channels import sums_by_channel
from mlc.targets.groups.group import Group, inline_rest, size_of
from mlc.targets.groups.roles import factors_of, role_of
from mlc.targets.groups.rows import rows_in_memory
from mlc.targets.groups.template import Template

TILED = 3  # data axes that are tiled, those of the greatest extents
PAIR = 2  # axes of the tile of a product of two operands that lie along one of them each
MOST_TILE = 64  # elements along an axis of the innermost tile
MIN_WORK = 1 << 14  # operations from which a choice can matter


def has_master(g: Group) -> bool:
    """Whether a group has a reduction worth choosing for.

    Rows that are folded and read again while they are in cache, as in softmax and norms, are not: memory sets the pace.
    """
    op = heaviest(g)
    if op is None or len(op.outputs) != 1 or not op.shape or _work(op) < MIN_WORK:
        return False
    return shares_loops(g, op) or rows_of(g) is None


def schedule_master(g: Group, target: Cpu) -> Schedule:
    """A group under its knobs; the plain schedule of reductions where they do not say ``tiled``.

    Raises:
        ScheduleError: the configuration is refused.
    """
    p = rows_in_memory(sums_by_channel(g, g.layouts))
    op = heaviest(p)
    assert op is not None
    knobs = g.knobs
    fast = product_tile(op, target)
    factors = factors_of(op)
    strips = strips_of(op, factors, target) if fast is not None and factors is not None and len(fast) == PAIR else 0
    plans = ("plain", "tiled", "strips") if strips else ("plain", "tiled")
    plan = knobs.category("plan", plans, default="plain" if fast is None else plans[-1])
    tiled = Tiled(p, op, target, fast, plain=plan != "tiled")
    if plan == "plain":
        return schedule_reduction(p, target)
    if plan == "strips" and fast is not None:
        s, out = tiled.around()
        sum_in_strips(s, op, out, fast, strips, target)
        return s
    return tiled.schedule()


def heaviest(g: Group) -> te.Compute | None:
    """The reduction with the most to do."""
    return max(g.reductions, key=_work, default=None)


def _work(op: te.Compute) -> int:
    return size_of(op.shape) * size_of([a.hi + 1 for a in op.reduce_axes])


def shares_loops(g: Group, op: te.Compute) -> bool:
    """Whether what follows a reduction can be computed tile by tile."""
    return len(g.outputs) == len(g.reductions) == 1 and op.shape == g.outputs[0].shape


def product_tile(op: te.Compute, target: Cpu) -> dict[int, int] | None:
    """The register tile of a sum of products that no template knows: the axis of the vectors first, then another one.

    Along the result's own rows, which are the vectors', one operand has to lie and the other to stay the same; along
    the other axis it is the other way round. Of all tiles that fit the registers, the one with the most products for
    what it loads is taken. The gradient of a convolution by its weights is such a sum. Where both operands lie along
    the vectors, as in that of a depthwise convolution, a vector that is loaded serves all taps of the window.

    Returns:
        elements along data axes, by their positions; ``None`` where there is no such tile.
    """
    factors = factors_of(op)
    if factors is None or role_of(op) is not None:
        return None
    d = max((k for k, a in enumerate(op.axes) if a.hi > 0), default=0)  # the result's own rows
    lanes = target.lanes_of(op.outputs[0].dtype)
    wide = op.axes[d].hi + 1
    best: tuple[float, dict[int, int]] | None = None
    for vectors, other in (factors, factors[::-1]):
        along = [ix.coefficient(op.axes[d]) for ix in vectors.indices]
        if along[-1] != 1 or any(k != 0 for k in along[:-1]) or op.axes[d] in index_vars(other) or wide % lanes:
            continue
        for e, b in enumerate(op.axes):
            if b in index_vars(vectors) or b not in index_vars(other):
                continue
            for v, m in product(_divisors(wide // lanes), _divisors(b.hi + 1)):
                if max(m, v * lanes) > MOST_TILE or m * v + v + 1 > target.registers:
                    continue
                if best is None or m * v / (m + v) > best[0]:
                    best = m * v / (m + v), {d: v * lanes, e: m}
    return _taps_tile(op, factors, d, target) if best is None else best[1]


def _taps_tile(op: te.Compute, factors: tuple[Load, Load], d: int, target: Cpu) -> dict[int, int] | None:
    """The tile where both operands lie along the vectors: axes that only one of them has, as many as fit."""
    if any([ix.coefficient(op.axes[d]) for ix in f.indices] != [0] * (len(f.indices) - 1) + [1] for f in factors):
        return None
    one, two = (index_vars(f) for f in factors)
    lanes, room = target.lanes_of(op.outputs[0].dtype), target.registers - 2
    tile = {d: max(n for n in _divisors(op.axes[d].hi + 1) if n <= lanes)}
    if 2 * tile[d] < lanes:
        return None
    for e, a in reversed(list(enumerate(op.axes))):
        if e != d and a.hi > 0 and (a in one) != (a in two) and len(tile) < TILED and a.hi + 1 <= room:
            tile[e] = a.hi + 1
            room //= a.hi + 1
    return tile if len(tile) > 1 else None


def _slides(op: te.Compute, k: int, tiled: Sequence[int]) -> bool:
    """Whether a term slides along an axis of the tile, whose neighbours then read the same for terms in turn."""
    along = {op.axes[e] for e in tiled}
    reads = (ix.vars() for body in op.bodies for ld in loads(body) for ix in ld.indices)
    return any(op.reduce_axes[k] in used and not along.isdisjoint(used) for used in reads)


def _divisors(n: int) -> list[int]:
    return [k for k in range(1, min(n, MOST_TILE) + 1) if n % k == 0]


class Tiled:
    """Asks the knobs of a tiled nest, then builds it.

    Args:
        p: the group, over physical shapes.
        op: its reduction that is tiled.
        target: the processor.
        fast: the tile of a product; see :func:`product_tile`.
        plain: whether the answers do not count.
        short: terms of a sum that are unrolled untuned, at most.
        whole: whether vectors of the sums are whole ones, along the axis where ``fast`` has them; then so are tiles.
        copies: stages before the reduction that are computed once and kept; others are where they are read.
    """

    def __init__(
        self,
        p: Group,
        op: te.Compute,
        target: Cpu,
        fast: dict[int, int] | None,
        *,
        plain: bool = False,
        short: int = 1,
        whole: bool = False,
        copies: Sequence[te.Tensor] = (),
    ) -> None:
        self.group, self.op, self.target = p, op, target
        self.copies, self.whole = copies, whole
        knobs = p.knobs
        self.shares = whole or shares_loops(p, op)
        self.out = p.outputs[0] if self.shares else op.outputs[0]
        assert self.out.op is not None
        extents = [a.hi + 1 for a in self.out.op.axes]
        self.lanes = target.lanes_of(self.out.dtype)
        wide = [d for d, n in enumerate(extents) if n > 1] or [len(extents) - 1]
        fast = fast or {}
        if whole:
            d = next(iter(fast))
            extents[d] = -(-extents[d] // self.lanes) * self.lanes
        self.vector: int = knobs.category("vector", tuple(wide), default=next(iter(fast), wide[-1]))
        large = sorted(sorted(wide, key=lambda d: (d in fast, extents[d]), reverse=True)[:TILED])
        held_along = {d: fast.get(d, 1) for d in large}
        self.tiles = {
            d: knobs.factors(f"tile{d}", extents[d], 3, default=(extents[d] // n, 1, n), most={-1: MOST_TILE})
            for d, n in held_along.items()
        }
        reduced = [a.hi + 1 for a in op.reduce_axes]
        inner = [1] * len(reduced)
        for k in range(len(reduced) - 1, -1, -1):  # the innermost ones as a whole, as far as that goes
            inner[k] = max(n for n in _divisors(reduced[k]) if n <= short)
            short //= inner[k]
            if inner[k] < reduced[k]:
                break
        self.reduced = [
            knobs.factors(f"reduce{k}", n, 2, default=(n // i, i), most={-1: MOST_TILE}) if n > 1 else (n, 1)
            for k, (n, i) in enumerate(zip(reduced, inner, strict=True))
        ]
        terms = sorted((k for k, n in enumerate(reduced) if n > 1), key=lambda k: _slides(op, k, list(fast)[1:]))
        walked = [f"data{d}" for d in large] + [f"reduce{k}" for k in terms]
        self.order: tuple[str, ...] = knobs.permutation("order", tuple(walked[:MAX_ITEMS]))
        self.shared = knobs.discrete("shared", range(1, len(extents) + 1), default=len(extents))
        self.sums: str = knobs.category("sums", ("register", "local"), default="register")
        self.unrolled = knobs.discrete("unroll", (1, 4, 16, 64), default=16)
        tile = size_of([f[-1] for f in self.tiles.values()])
        self.padded = whole and extents[self.vector] > self.out.shape[self.vector]
        if self.padded:
            last = self.tiles[self.vector][-1] if self.vector in self.tiles else extents[self.vector]
            knobs.require(last % self.lanes == 0, "the tile is not of whole vectors")
        if self.vector in self.tiles:
            held = -(-tile // self.lanes)
        else:  # an axis that is not tiled lies in the tile as a whole
            held = tile * -(-extents[self.vector] // self.lanes)
        fits = self.sums == "local" or held <= 2 * target.registers
        knobs.require(plain or fits, "the sums of a tile do not fit the registers")

    def around(self) -> tuple[Schedule, te.Tensor]:
        """A schedule with the loops of all but the reduction, and the tensor that has those of its result."""
        s = Schedule(self.group.outputs)
        if self.shares:
            inline_rest(s, self.copies)
            for t in self.copies:
                spread(s[t], self.target)
        else:
            inline_between(s, self.group, self.target)
            for op in self.group.computes:
                if op is not self.op:
                    fold_or_spread(s, op, self.target)
        return s, self.out

    def schedule(self) -> Schedule:
        s, _ = self.around()
        acc, order = self.op.outputs[0], self._lying()
        if acc is self.out or order is not None:
            sums = s.cache_write(acc, self.sums, order)
            if acc is not self.out:
                s[acc].compute_inline()
            acc = sums
        else:
            s[acc].set_scope(self.sums)
        stage = s[self.out]
        outer, walked, tile, vector = self._split(stage)
        in_registers = self.sums == "register"
        # a tile in registers is summed up at once; a block in memory is walked as often as the order says
        middle = [walked[name] for name in self.order if name in walked] if in_registers else []
        rest = [] if in_registers else [v for _, v in sorted(walked.items())]
        shared = min(pinned(self.shared), len(outer))
        stage.reorder(*outer, *middle, *rest, *tile, vector)
        at = stage.fuse(*outer[:shared])
        if at.hi > 0:
            stage.parallel(at)
        local = s[acc]
        local.compute_at(stage, [at, *outer[shared:], *middle][-1])
        self._sum_up(local)
        if in_registers:
            for a in tile:
                stage.unroll(a)
        stage.vectorize(vector)
        return s

    def _lying(self) -> list[int] | None:
        """The order of the sums' axes in which those of a vector are neighbours; nothing where they are anyway."""
        axes = self.op.axes
        if not self.shares or all(a.hi == 0 for a in axes[self.vector + 1 :]):
            return None
        return [*(d for d in range(len(axes)) if d != self.vector), self.vector]

    def _split(self, stage: Stage) -> tuple[list[Var], dict[str, Var], list[Var], Var]:
        """Loops that threads share, loops over tiles by the name of their axis, loops of a tile, and the vector."""
        outer: list[Var] = []
        walked: dict[str, Var] = {}
        tile: list[Var] = []
        vector: Var | None = None
        for d, a in enumerate(stage.op.axes):
            i = a
            if d in self.tiles:
                _, middle, last = self.tiles[d]
                o, i = stage.split(a, middle * last)
                outer.append(o)
                walked[f"data{d}"], i = stage.split(i, last)
            elif d != self.vector:
                outer.append(a)
                continue
            if d == self.vector:
                i, vector = stage.split(i, self.lanes)
            tile.append(i)
        assert vector is not None
        if not outer:
            first, tile[0] = stage.split(tile[0], tile[0].hi + 1)
            outer.append(first)
        return outer, walked, tile, vector

    def _sum_up(self, local: Stage) -> None:
        """Loops of the sums: over the tiles of a block where that lies in memory, over the reduction, over a tile."""
        walked: dict[str, Var] = {}
        tile: list[Var] = []
        vector: Var | None = None
        for d, a in zip(self._lying() or range(len(local.op.axes)), local.op.axes, strict=True):
            i = a
            if d in self.tiles and self.sums == "local":
                walked[f"data{d}"], i = local.split(a, self.tiles[d][-1])
            if d == self.vector:
                if self.padded:
                    local.align(i, self.lanes)
                i, vector = local.split(i, self.lanes)
            tile.append(i)
        step: dict[str, Var] = {}
        for k, a in enumerate(local.op.reduce_axes):
            if a.hi > 0:
                walked[f"reduce{k}"], step[f"reduce{k}"] = local.split(a, self.reduced[k][-1])
        assert vector is not None
        steps = [step.pop(name) for name in self.order if name in step]
        steps = [*step.values(), *steps]
        named = [walked.pop(name) for name in self.order if name in walked]
        local.reorder(*walked.values(), *named, *steps, *tile, vector)
        local.vectorize(vector)
        if self.sums == "register":
            for a in tile:
                local.unroll(a)
        if size_of([f[-1] for f in self.reduced]) <= self.unrolled:
            for a in steps:
                local.unroll(a)
            if self.sums == "register" and steps and self._shares_numbers():
                local.pragma(steps[-1], "reload")

    def _shares_numbers(self) -> bool:
        """Whether terms that are unrolled share numbers that are spread over vectors, each in a register if kept."""
        op, d = self.op, self.vector
        tiled = {op.axes[e] for e, f in self.tiles.items() if f[-1] > 1 and e != d}
        steps = {a for a, f in zip(op.reduce_axes, self.reduced, strict=True) if f[-1] > 1}
        reads = ({v for ix in ld.indices for v in ix.vars()} for body in op.bodies for ld in loads(body))
        return any(op.axes[d] not in used and used & tiled and used & steps for used in reads)


def _fits(g: Group, target: Cpu) -> bool:
    return has_master(g)


MASTER = Template("tiled reduction", _fits, reduction_layouts, schedule_master)
