"""Random legal schedules, as a Hypothesis strategy that shrinks towards the plain one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from tests.unit.lower.computations import Computation

Draw = Callable[[st.SearchStrategy[Any]], Any]

FACTORS = st.sampled_from([1, 2, 3, 4, 5, 8, 16])
SCOPES = st.sampled_from(["local", "register", "global"])
FEW = st.integers(0, 3)


@st.composite
def schedules(draw: Draw, computation: Computation) -> Schedule:
    """A schedule of everything that the computation's outputs need."""
    schedule = Schedule(computation.outputs)
    if draw(st.booleans()):
        _cache(draw, schedule, computation)
    if draw(st.booleans()):
        _factor(draw, schedule)
    _inline(draw, schedule)
    for stage in schedule.stages:
        if not stage.inlined:
            _loops(draw, stage)
    _attach(draw, schedule)
    return schedule


def _cache(draw: Draw, schedule: Schedule, computation: Computation) -> None:
    for t in draw(st.lists(st.sampled_from([o for s in schedule.stages for o in s.op.outputs[:1]]), max_size=2)):
        schedule.cache_write(t, draw(SCOPES), draw(st.permutations(range(len(t.shape)))))
    for t in draw(st.lists(st.sampled_from(computation.inputs), max_size=2, unique_by=id)):
        readers = [s.op.outputs[0] for s in schedule.stages if t in s.op.inputs]
        if readers:
            schedule.cache_read(t, draw(SCOPES), readers)


def _factor(draw: Draw, schedule: Schedule) -> None:
    for stage in list(schedule.stages):
        if not stage.reduce_axes or not draw(st.booleans()):
            continue
        axis = draw(st.sampled_from(stage.reduce_axes))
        if draw(st.booleans()):
            axis = draw(st.sampled_from(stage.split(axis, draw(FACTORS))))
        schedule.rfactor(stage.op.outputs[0], axis)


def _inline(draw: Draw, schedule: Schedule) -> None:
    for stage in schedule.stages:
        if stage.op.combiner is None and not _gives_output(schedule, stage) and draw(st.booleans()):
            stage.compute_inline()


def _loops(draw: Draw, stage: Stage) -> None:
    """Split, fuse and reorder, then say how some loops run."""
    for _ in range(draw(FEW)):
        if not stage.leaves:
            return
        axis = draw(st.sampled_from(stage.leaves))
        match draw(st.sampled_from(["split", "fuse", "reorder"])):
            case "split":
                stage.split(axis, draw(FACTORS))
            case "fuse":
                k = stage.leaves.index(axis)
                follow = stage.leaves[k : k + 2]
                if len({stage.is_reducing(a) for a in follow}) == 1:
                    stage.fuse(*follow)
            case "reorder":
                stage.reorder(*draw(st.permutations(stage.leaves)))
    for _ in range(draw(FEW)):
        axis = draw(st.sampled_from(stage.leaves)) if stage.leaves else None
        kinds = (
            [Stage.unroll]
            if axis is None or stage.is_reducing(axis)
            else [Stage.unroll, Stage.parallel, Stage.vectorize, Stage.vthread]
        )
        if axis is not None:
            draw(st.sampled_from(kinds))(stage, axis)
    serial = [a for a in stage.leaves if a not in stage.kinds]
    if serial and draw(st.booleans()):
        stage.pragma(draw(st.sampled_from(serial)), "outline")
    if stage.leaves and draw(st.booleans()):
        stage.pragma(draw(st.sampled_from(stage.leaves)), "reload")


def _attach(draw: Draw, schedule: Schedule) -> None:
    """Compute some stages inside others, consumers first, so that it is known where their readers are."""
    for stage in reversed(schedule.stages):
        if stage.inlined or _gives_output(schedule, stage):
            continue
        if draw(st.booleans()):
            stage.storage_order(*draw(st.permutations(stage.op.axes)))
        places = attach_points(schedule, stage)
        if places and draw(st.booleans()):
            stage.compute_at(*draw(st.sampled_from(places)))
            if draw(st.booleans()):
                stage.set_scope(draw(SCOPES))
            if stage.axes and draw(st.booleans()):
                stage.align(draw(st.sampled_from(stage.axes)), draw(FACTORS))


def attach_points(schedule: Schedule, stage: Stage) -> list[tuple[Stage, Var]]:
    """Every loop that all readers of a stage are inside of."""
    found = []
    for host in schedule.stages:
        for axis in host.leaves if not host.inlined else ():
            users = readers(schedule, stage)
            if host is not stage and users and all(inside(u, host, axis) for u in users):
                found.append((host, axis))
    return found


def readers(schedule: Schedule, stage: Stage) -> list[Stage]:
    """Stages that read another one, through inlined ones too."""
    found: list[Stage] = []
    for user in schedule.stages:
        if any(t in stage.op.outputs for t in user.op.inputs):
            found += readers(schedule, user) if user.inlined else [user]
    return found


def inside(user: Stage, host: Stage, axis: Var) -> bool:
    """Whether a stage runs within an iteration of a loop."""
    if user is host:
        return True
    if user.attach is None:
        return False
    if user.attach.stage is host:
        return host.leaves.index(user.attach.axis) >= host.leaves.index(axis)
    return inside(user.attach.stage, host, axis)


def _gives_output(schedule: Schedule, stage: Stage) -> bool:
    return any(t in schedule.outputs for t in stage.op.outputs)


def text(schedule: Schedule) -> str:
    """The schedule as it was applied."""
    return "\n".join(schedule.history)


def reads(op: te.Compute, t: te.Tensor) -> bool:
    return t in op.inputs
