"""Which part of each tensor is needed where it is computed: interval arithmetic over canonical index forms."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.expr import Expr, Within, loads, within
from mlc.ir.index import ZERO, Atom, Linear, Var, as_index, dynamics, substitute
from mlc.ir.loop import THREAD_AXES, ForKind
from mlc.lower.relations import Fuse, Split
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage


@dataclass(slots=True, eq=False)
class Nest:
    """The loops of one stage once its region is known.

    Attributes:
        stage: the stage.
        origin: first index of the region along each data axis, over enclosing loop variables.
        extents: extent of the region along each data axis.
        loops: the loop variable of every leaf (of extent 1 too).
        values: every axis of the compute over loop variables.
        data_guards: conditions on data axes under which an iteration counts.
        unread: those of them without which an iteration would compute what nobody reads.
        reduce_guards: the same for reduction axes.
    """

    stage: Stage
    origin: tuple[Linear, ...]
    extents: tuple[int, ...]
    loops: dict[Var, Var] = field(default_factory=dict)
    values: dict[Var, Linear] = field(default_factory=dict)
    data_guards: list[Expr] = field(default_factory=list)
    unread: list[Expr] = field(default_factory=list)
    reduce_guards: list[Expr] = field(default_factory=list)


def infer(schedule: Schedule) -> dict[Stage, Nest]:
    """A nest for every stage that is not inlined; consumers decide the regions of what is computed inside them.

    Raises:
        ScheduleError: a stage is read from outside the loop it is computed in.
    """
    nests: dict[Stage, Nest] = {}
    for stage in reversed(schedule.stages):
        if stage.inlined:
            continue
        shape = stage.op.shape
        if stage.attach is None:
            origin, extents = tuple(ZERO for _ in shape), shape
            limits: dict[int, Limit] = {}
        else:
            origin, extents, limits = _region(schedule, stage, nests)
        nest = Nest(stage, origin, extents)
        _loops(nest, limits)
        nests[stage] = nest
    return nests


SHARED = "shared"
"""The scope of what all threads of a block compute together, for each other."""


def enclosing(stage: Stage, axis: Var, nests: dict[Stage, Nest], *, threads: bool = True) -> set[Var]:
    """Loop variables in force inside ``axis`` of ``stage``.

    Args:
        stage, axis: the loop.
        nests: of the stages.
        threads: whether those of threads of a block, virtual ones too, are among them.
    """
    outer: set[Var] = set()
    at: tuple[Stage, Var] | None = (stage, axis)
    while at is not None:
        s, a = at
        for leaf in s.leaves[: s.leaves.index(a) + 1]:
            own = s.threads.get(leaf) in THREAD_AXES or s.kinds.get(leaf) is ForKind.VTHREAD
            if threads or not own:
                outer.add(nests[s].loops[leaf])
        at = (s.attach.stage, s.attach.axis) if s.attach is not None else None
    return outer


def _is_inside(user: Stage, host: Stage, axis: Var) -> bool:
    """Whether ``user`` runs within one iteration of the host's loop ``axis``."""
    at = user
    inner = host.leaves[-1]
    while at is not host:
        point = at.attach
        if point is None:
            return False
        at, inner = point.stage, point.axis
    return host.leaves.index(inner) >= host.leaves.index(axis)


def _reads(
    wanted: Collection[te.Tensor], host: Stage, axis: Var, nests: dict[Stage, Nest]
) -> Iterator[tuple[int, Linear, list[Expr]]]:
    """Every index at which readers inside ``axis`` of ``host`` read some tensors: dimension, index, readers' guards."""
    for user, nest in nests.items():
        if not any(t in wanted for t in user.op.inputs) or not _is_inside(user, host, axis):
            continue
        for body in user.op.bodies:
            for ld in loads(body):
                if ld.source in wanted:
                    for d, ix in enumerate(ld.indices):
                        yield d, substitute(ix, nest.values), nest.data_guards


def box_of(t: te.Tensor, host: Stage, axis: Var, nests: dict[Stage, Nest]) -> list[tuple[Linear, int]]:
    """First index and extent, for each dimension, of what one iteration of ``axis`` of ``host`` reads of a tensor."""
    outer = enclosing(host, axis, nests)
    boxes: list[list[tuple[Linear, int, int] | None]] = [[] for _ in t.shape]
    for d, ix, guards in _reads((t,), host, axis, nests):
        boxes[d].append(_interval(ix, outer, guards))
    return [_union(box, extent) for box, extent in zip(boxes, t.shape, strict=True)]


# an index less some base lies in a range
Limit = tuple[Linear, int, int]


def _region(
    schedule: Schedule, stage: Stage, nests: dict[Stage, Nest]
) -> tuple[tuple[Linear, ...], tuple[int, ...], dict[int, Limit]]:
    """Origin and extents of what the readers of an attached stage need in one iteration of its attach point.

    Also, by dimension, limits within that box, where the readers have a ragged end.
    """
    assert stage.attach is not None
    host, axis = stage.attach.stage, stage.attach.axis
    if axis not in host.leaves:
        raise ScheduleError(f"stage {stage.name} is computed at {axis.name}, which is no loop of {host.name} any more")
    if host not in nests:
        raise ScheduleError(f"stage {stage.name} is computed inside {host.name}, which does not read it")
    wanted = set(stage.op.outputs)
    outer = enclosing(host, axis, nests, threads=stage.scope != SHARED)
    if stage.scope != SHARED and any(t in THREAD_AXES and not stage.is_reducing(a) for a, t in stage.threads.items()):
        raise ScheduleError(
            f"stage {stage.name} is computed inside {axis.name} of {host.name} by threads of its own, "
            f"and kept in {stage.scope or 'local'} memory; what threads compute for each other is in {SHARED} memory"
        )
    for user in nests:
        if any(t in wanted for t in user.op.inputs) and not _is_inside(user, host, axis):
            raise ScheduleError(
                f"stage {stage.name} is computed inside {axis.name} of {host.name} but read by {user.name} outside"
            )
    boxes: list[list[tuple[Linear, int, int] | None]] = [[] for _ in stage.op.shape]
    limits: list[list[Limit | None]] = [[] for _ in stage.op.shape]
    for d, at, guards in _reads(wanted, host, axis, nests):
        boxes[d].append(_interval(at, outer, guards))
        limits[d].append(_limit(at, outer, guards))
    origin: list[Linear] = []
    extents: list[int] = []
    for d, found in enumerate(boxes):
        box = _union(found, stage.op.shape[d])
        origin.append(box[0])
        multiple = stage.aligned.get(stage.op.axes[d], 1)
        extents.append(-(-box[1] // multiple) * multiple)
    shared: dict[int, Limit] = {}
    for d, ends in enumerate(limits):
        if ends and ends[0] and all(x == ends[0] for x in ends):
            base, lo, hi = ends[0]
            multiple = stage.aligned.get(stage.op.axes[d], 1)
            shared[d] = base, lo, lo + -(-(hi - lo) // multiple) * multiple
    return tuple(origin), tuple(extents), shared


def _limit(ix: Linear, outer: Collection[Var], guards: Collection[Expr]) -> Limit | None:
    """What a guard of a reader says of an index that it reads: both move alike, up to what outer loops fix."""
    for g in guards:
        if type(g) is not Within:
            continue
        base = ix - g.index
        if base.vars() <= set(outer) and not dynamics(base) and not g.index.vars() <= set(outer):
            return base, g.lo, g.hi
    return None


def _interval(ix: Linear, outer: Collection[Var], guards: Collection[Expr]) -> tuple[Linear, int, int] | None:
    """``ix`` as (part fixed by the outer loops, least and greatest of the rest); ``None`` when they do not separate.

    Where the rest is just what a guard limits (the ragged end of a split), its limits count.
    """
    fixed: dict[Atom, int] = {}
    rest: dict[Atom, int] = {}
    for atom, c in ix.terms.items():
        if type(atom) is Var:
            (fixed if atom in outer else rest)[atom] = c
            continue
        alone = Linear({atom: 1}, 0)
        used = alone.vars()
        if dynamics(alone) or (used & set(outer) and not used <= set(outer)):
            return None  # what is known only at run time may not be readable yet, or only behind a guard
        if used <= set(outer):
            fixed[atom] = c
        else:
            rest[atom] = c
    lo, hi = Linear(rest, ix.const).bounds()
    for g in guards:
        if type(g) is Within and g.index.terms == rest:
            shift = ix.const - g.index.const
            lo, hi = max(lo, g.lo + shift), min(hi, g.hi - 1 + shift)
    return Linear(fixed, 0), lo, hi


def _union(found: list[tuple[Linear, int, int] | None], extent: int) -> tuple[Linear, int]:
    """One box around all reads: the whole dimension when their outer parts differ."""
    if not found or any(b is None for b in found):
        return ZERO, extent
    boxes = [b for b in found if b is not None]
    base = boxes[0][0]
    if any(b[0] != base for b in boxes):
        return ZERO, extent
    lo, hi = min(b[1] for b in boxes), max(b[2] for b in boxes)
    if not base.terms:
        # nothing moves: stay inside the tensor
        lo, hi = max(lo, 0), min(hi, extent - 1)
    if hi - lo + 1 > extent:
        return ZERO, extent
    return base + lo, max(hi - lo + 1, 1)


def _loops(nest: Nest, limits: Mapping[int, Limit]) -> None:
    """Extents of every leaf from the region's, then every axis as a form over the loop variables."""
    stage = nest.stage
    extent: dict[Var, int] = dict(zip(stage.op.axes, nest.extents, strict=True))
    extent |= {r: r.hi + 1 for r in stage.op.reduce_axes}
    for rel in stage.relations:
        if isinstance(rel, Split):
            whole = extent[rel.parent]
            inner = min(rel.factor, max(whole, 1))
            extent[rel.inner], extent[rel.outer] = inner, -(-whole // inner)
        else:
            extent[rel.fused] = extent[rel.outer] * extent[rel.inner]
    nest.loops = {leaf: Var(leaf.name, 0, extent[leaf] - 1) for leaf in stage.leaves}
    local: dict[Var, Linear] = {leaf: as_index(v) for leaf, v in nest.loops.items()}
    for rel in reversed(stage.relations):
        if isinstance(rel, Fuse):
            f, n = local[rel.fused], max(extent[rel.inner], 1)
            local[rel.outer], local[rel.inner] = f // n, f % n
        else:
            value = local[rel.outer] * extent[rel.inner] + local[rel.inner]
            local[rel.parent] = value
            if extent[rel.outer] * extent[rel.inner] != extent[rel.parent]:
                guards = nest.reduce_guards if stage.is_reducing(rel.parent) else nest.data_guards
                guards.append(within(value, 0, extent[rel.parent]))
    for d, a in enumerate(stage.op.axes):
        nest.values[a] = nest.origin[d] + local[a]
        least, most = nest.origin[d].bounds()
        # the ragged ends of splits are guarded already
        inside = stage.attach is None or (least >= 0 and most + nest.extents[d] <= stage.op.shape[d])
        if d in limits:
            base, lo, hi = limits[d]
            nest.unread.append(within(nest.values[a] - base, lo, hi))
            least, most = base.bounds()
            inside = least + lo >= 0 and most + hi <= stage.op.shape[d]
        if not inside:
            nest.unread.append(within(nest.values[a], 0, stage.op.shape[d]))
    nest.data_guards += nest.unread
    for r in stage.op.reduce_axes:
        nest.values[r] = local[r]
