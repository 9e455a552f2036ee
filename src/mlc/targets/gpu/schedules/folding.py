"""Folds that the threads of a block share: how the pieces of a row come together.

Each thread folds its share in registers. Where the threads of a warp can exchange what they have, they fold that among
themselves, and the first of every warp leaves it in shared memory if there is more than one; else all shares go there,
and a few threads fold these. What is left then, every thread folds for itself. So a fold costs a barrier, two without
exchanges, and none where a warp makes the whole row.
"""

from __future__ import annotations

from dataclasses import dataclass

from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.lanes import WORDS
from mlc.lower.schedule import Schedule
from mlc.lower.stage import Stage
from mlc.targets.gpu.record import Gpu

FEW = (1, 4, 8, 16, 32)  # threads that fold what all have left in shared memory


@dataclass(frozen=True)
class Crew:
    """The threads of a block that makes rows.

    Args:
        wide: threads of a row.
        tall: rows of a block.
        lanes: threads of a row that exchange what they have: a power of two; 1 where they do not.
        few: that fold shares in shared memory, where they do not.
    """

    wide: int
    tall: int
    lanes: int
    few: int

    @classmethod
    def of(cls, wide: int, tall: int, few: int, target: Gpu, folds: list[te.Compute]) -> Crew:
        """What a device's threads do about some folds."""
        words = all(len(op.bodies) == 1 and op.outputs[0].dtype.itemsize in WORDS for op in folds)
        lanes = min(wide, target.warp) if target.shuffles and words else 1
        return cls(wide, tall, lanes, few)

    @property
    def warps(self) -> int:
        return self.wide // self.lanes

    @property
    def rows(self) -> str:
        """The axis of the block along which rows lie."""
        return "threadIdx.z" if self.lanes > 1 and self.warps > 1 else "threadIdx.y"

    @property
    def left(self) -> int:
        """Elements of shared memory that a fold takes for a row."""
        if self.lanes > 1:
            return 0 if self.warps == 1 else self.warps + 1
        return self.wide + self.few + 1


def share(stage: Stage, columns: tuple[Var, ...] | list[Var], crew: Crew) -> None:
    """Threads next to each other take elements next to each other."""
    if not columns:
        return
    _, tx = stage.split(stage.fuse(*columns), crew.wide)
    if crew.lanes > 1 and crew.warps > 1:
        ty, tx = stage.split(tx, crew.lanes)
        stage.bind(ty, "threadIdx.y")
    stage.bind(tx, "threadIdx.x")


def inside(stage: Stage, host: Stage, axis: Var, scope: str) -> None:
    """Compute a stage within a loop of another one, in some memory."""
    stage.compute_at(host, axis)
    stage.set_scope(scope)


def fold(s: Schedule, t: te.Tensor, reduced: Var, host: Stage, row: Var, crew: Crew, *, across: int = 0) -> None:
    """Share a fold.

    Args:
        s: the schedule.
        t: what is folded to.
        reduced: the axis of the fold that threads share.
        host, row: the loop in which it is wanted: over rows of a block.
        crew: the block's threads.
        across: which axis of ``t`` counts rows.
    """
    which = s[t].op.reduce_axes.index(reduced)

    def cut(tensor: te.Tensor, axis: Var, count: int) -> te.Tensor:
        return s.rfactor(tensor, s[tensor].split(axis, count)[1])

    if crew.lanes == 1:
        shares: list[te.Tensor] = []
        for count in (crew.wide, crew.few):
            axis = s[t].op.reduce_axes[which if not shares else 0]
            if 1 < count <= axis.hi:
                shares.append(cut(t, axis, count))
        for one in shares:
            folded = s.cache_write(one, "local")
            inside(s[one], host, row, "shared")
            lane = s[one].op.axes[0]
            _order(s[one], across, crew)
            inside(s[folded], s[one], lane, "local")
    elif crew.wide <= reduced.hi + 1:
        own = cut(t, reduced, crew.wide)
        (left,) = s[t].op.reduce_axes
        summed = t
        if crew.warps > 1:
            warp, _ = s[t].split(left, crew.lanes)
            part = s.rfactor(t, warp)
            summed = s.cache_write(part, "local")
            inside(s[part], host, row, "shared")
            at = s[part].op.axes[0]
            _order(s[part], across, crew)
            inside(s[summed], s[part], at, "local")
        (lane,) = s[summed].op.reduce_axes
        s[summed].bind(lane, "threadIdx.x")
        inside(s[own], s[summed], lane, "local")


def _order(stage: Stage, across: int, crew: Crew) -> None:
    """Loops of what a block's threads compute for each other, a row of it each; the first axis counts shares."""
    lane, row = stage.op.axes[0], stage.op.axes[across + 1]
    stage.reorder(*stage.op.axes[1:], lane)
    stage.bind(row, crew.rows)
    stage.bind(lane, "threadIdx.x" if crew.lanes == 1 else "threadIdx.y")
