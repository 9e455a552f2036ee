"""The stage of a schedule: the loop nest of one compute, and the primitives that say where its results are.

Those that change its loops are in :mod:`mlc.lower.stage_loops`, where the nests of the examples are shown.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from mlc.errors import ScheduleError
from mlc.ir import te
from mlc.ir.index import Var
from mlc.lower.relations import Fetch
from mlc.lower.stage_loops import Keeper, Loops


class Owner(Keeper, Protocol):
    """The schedule that a stage belongs to."""

    def find(self, tensor: te.Tensor) -> Stage | None: ...


@dataclass(slots=True, eq=False)
class AttachPoint:
    """Inside which loop of which stage a stage is computed."""

    stage: Stage
    axis: Var


class Stage(Loops):
    """The schedule of one compute.

    Attributes:
        schedule: that it belongs to.
        attach: ``None`` at the root, else where it is computed.
        scope: memory of its buffer; chosen by the lowering when ``None``.
        aligned: what the extent of an attached stage's region is a multiple of, by data axis.
        pitches: what the stride of a data axis is modulo some number, by axis: number, remainder.
        order: of the dimensions of its buffers, as positions of data axes; empty where that is the order of these.
        fetches: what is prefetched in which loop.
        versions: how many of its buffer there are in turns; and
        asynchronous: whether it is copied while other things are done.
    """

    def __init__(self, schedule: Owner, op: te.Compute) -> None:
        super().__init__(schedule, op)
        self.schedule: Owner = schedule
        self.attach: AttachPoint | None = None
        self.scope: str | None = None
        self.aligned: dict[Var, int] = {}
        self.pitches: dict[Var, tuple[int, int]] = {}
        self.order: tuple[int, ...] = ()
        self.fetches: list[Fetch] = []
        self.versions = 1
        self.asynchronous = False

    def _is_output(self) -> bool:
        return any(t in self.schedule.outputs for t in self.op.outputs)

    def prefetch(
        self, tensor: te.Tensor, ahead: Var, at: Var, *, distance: int = 1, level: int = 1, pieces: Var | None = None
    ) -> None:
        """Bring what a later iteration reads of an input into a cache.

        The iterations of ``at`` share what one iteration of ``ahead`` reads, which has to be contiguous but for small
        gaps. With ``at`` the same loop as ``ahead``, each iteration fetches the whole.

        >>> s, x, y = rows()
        >>> i, j = s[y].axes
        >>> s[y].prefetch(x, ahead=i, at=j, distance=2)
        >>> show(s)
        for i in range(6):
          for j in range(10):
            if j < 1:
              prefetch(x[i + 2, 16*j], level=1)
            y[i, j] = x[i, j] + 1.0

        Args:
            tensor: an input of the schedule, read in ``ahead`` by this stage or by one computed inside.
            ahead: the loop whose later iteration is served, of this stage or of one that it is computed inside.
            at: ``ahead`` or a loop of this stage inside it, where the fetches are made.
            distance: how many iterations of ``ahead`` later.
            level: of the cache: 1, 2 or 3.
            pieces: the loop from ``ahead`` to ``at`` each of whose iterations reads a contiguous part, which the
                iterations of ``at`` inside share; ``ahead`` unless given.
        Raises:
            ScheduleError: ``at`` is not inside ``ahead``, the tensor is computed, or a number is out of range.
        """
        self._leaf(at, "prefetch")
        if self.loops_between(ahead, at) is None:
            raise ScheduleError(f"prefetch: {at.name} of stage {self.name} is not inside {ahead.name}")
        if tensor.op is not None:
            raise ScheduleError(f"prefetch: {tensor.name} is computed, only inputs are fetched ahead")
        if distance < 1 or level not in (1, 2, 3):
            raise ScheduleError(f"prefetch: distance {distance} and level {level}; at least 1, and one of 1, 2, 3")
        if pieces is not None and (self.loops_between(ahead, pieces) is None or self.loops_between(pieces, at) is None):
            raise ScheduleError(
                f"prefetch: {pieces.name} of stage {self.name} is not between {ahead.name} and {at.name}"
            )
        self.fetches.append(Fetch(tensor, ahead, at, distance, level, ahead if pieces is None else pieces))
        apart = [] if pieces is None else [f"pieces={pieces.name}"]
        self._record("prefetch", tensor.name, ahead, at, f"distance={distance}", f"level={level}", *apart)

    def loops_between(self, ahead: Var, at: Var) -> list[tuple[Stage, Var]] | None:
        """The loops inside ``ahead`` down to ``at`` of this stage, those of stages around it first.

        Gives:
            ``None`` where ``at`` is not inside ``ahead``.
        """
        own = [(self, a) for a in self.leaves[: self.leaves.index(at) + 1]]
        if ahead in self.leaves:
            first = self.leaves.index(ahead) + 1
            return own[first:] if first <= len(own) else None
        around = self.attach.stage.loops_between(ahead, self.attach.axis) if self.attach is not None else None
        return None if around is None else around + own

    def compute_at(self, consumer: Stage, axis: Var) -> None:
        """Compute what one iteration of the consumer's loop ``axis`` needs, right inside that loop.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> show(s)
        for i in range(6):
          y: f32[1,10] in local
          for j in range(10):
            y[0, j] = x[i, j] + 1.0
          for j in range(8):
            z[i, j] = y[0, j] * y[0, j + 2]

        Raises:
            ScheduleError: ``axis`` is no leaf of the consumer, or the stage is an output or the consumer itself.
        """
        consumer._leaf(axis, "compute_at")
        if self._is_output():
            raise ScheduleError(f"compute_at: stage {self.name} is an output, it is stored in full")
        if consumer is self:
            raise ScheduleError(f"compute_at: stage {self.name} cannot be computed inside itself")
        self.attach = AttachPoint(consumer, axis)
        self.inlined = False
        self._record("compute_at", f"s[{consumer.name}]", axis)

    def align(self, axis: Var, multiple: int) -> None:
        """Compute more than is needed: a region whose extent along a data axis is a multiple, within the tensor.

        It matters to a stage computed inside another: here the 4 neighbours that its reader needs become 6.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].split(s[z].axes[1], 2)[0])
        >>> s[y].align(s[y].op.axes[1], 3)
        >>> show(s)
        for i in range(6):
          for jo in range(4):
            y: f32[1,6] in local
            for j in range(6):
              if 2*jo + j < 10:
                y[0, j] = x[i, 2*jo + j] + 1.0
            for ji in range(2):
              z[i, 2*jo + ji] = y[0, ji] * y[0, ji + 2]

        Raises:
            ScheduleError: ``axis`` is no data axis of the compute, or ``multiple`` is below 1.
        """
        if axis not in self.op.axes:
            raise ScheduleError(f"align: {axis.name} is no data axis of stage {self.name}")
        if multiple < 1:
            raise ScheduleError(f"align: multiple {multiple} of axis {axis.name} of stage {self.name} is below 1")
        self.aligned[axis] = multiple
        self._record("align", axis, multiple)

    def storage_align(self, axis: Var, factor: int, offset: int) -> None:
        """Leave gaps in the buffer of an attached stage: the stride of a data axis is ``offset`` modulo ``factor``.

        Neighbours along the axis then lie in different banks of shared memory.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].split(s[z].axes[0], 3)[0])
        >>> s[y].storage_align(s[y].op.axes[0], 8, 1)
        >>> show(s)
        for io in range(2):
          y: f32[3,17] in local
          for i in range(3):
            for j in range(10):
              y[i, j] = x[3*io + i, j] + 1.0
          for ii in range(3):
            for j in range(8):
              z[3*io + ii, j] = y[ii, j] * y[ii, j + 2]

        Raises:
            ScheduleError: ``axis`` is not the last data axis but one, or ``offset`` is not in ``range(factor)``.
        """
        if len(self.op.axes) < 2 or axis is not self.op.axes[-2]:
            raise ScheduleError(f"storage_align: {axis.name} of stage {self.name} is not its last data axis but one")
        if not 0 <= offset < factor:
            raise ScheduleError(f"storage_align: offset {offset} is not below {factor}, for stage {self.name}")
        if self.order:
            raise ScheduleError(f"storage_align: the buffer of stage {self.name} has an order of its own")
        self.pitches[axis] = factor, offset
        self._record("storage_align", axis, factor, offset)

    def storage_order(self, *axes: Var) -> None:
        """Keep the stage's buffer in another order of its data axes; its loops stay as they are.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].split(s[z].axes[0], 3)[0])
        >>> i, j = s[y].op.axes
        >>> s[y].storage_order(j, i)
        >>> show(s)
        for io in range(2):
          y: f32[10,3] in local
          for i in range(3):
            for j in range(10):
              y[j, i] = x[3*io + i, j] + 1.0
          for ii in range(3):
            for j in range(8):
              z[3*io + ii, j] = y[j, ii] * y[j + 2, ii]

        Args:
            axes: all data axes, that whose neighbours lie farthest apart first.
        Raises:
            ScheduleError: the axes are others, the stage is an output, or its buffer has gaps.
        """
        own = list(self.op.axes)
        if len(axes) != len(own) or set(axes) != set(own):
            named = ", ".join(a.name for a in axes)
            raise ScheduleError(f"storage_order: {named} are not the data axes of stage {self.name}, each once")
        if self._is_output():
            raise ScheduleError(f"storage_order: stage {self.name} is an output, whose layout says how it lies")
        if self.pitches:
            raise ScheduleError(f"storage_order: the buffer of stage {self.name} has gaps")
        order = tuple(own.index(a) for a in axes)
        self.order = () if order == tuple(range(len(own))) else order
        self._record("storage_order", *axes)

    def double_buffer(self, versions: int = 2, *, asynchronous: bool = False) -> None:
        """Compute an attached stage some iterations ahead of its readers, into versions of its buffer in turns.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> s[y].double_buffer()
        >>> show(s)
        y: f32[2,1,10] in local
        for i in range(7):
          if i < 6:
            for j in range(10):
              y[i%2, 0, j] = x[i, j] + 1.0
          if 1 <= i:
            for j in range(8):
              z[i - 1, j] = y[(i + 1)%2, 0, j] * y[(i + 1)%2, 0, j + 2]

        Args:
            versions: of the buffer; the stage is one iteration less ahead.
            asynchronous: whether its stores are begun, and waited for when they are needed, by machines whose threads
                can do that: as far as they copy 4, 8 or 16 bytes of memory, or as many zeros, to shared memory.

        Raises:
            ScheduleError: there are fewer than two versions.
        """
        if versions < 2:
            raise ScheduleError(f"double_buffer: {versions} versions of stage {self.name}; there are at least 2")
        self.versions, self.asynchronous = versions, asynchronous
        self._record("double_buffer", versions, *(["asynchronous=True"] if asynchronous else []))

    def compute_root(self) -> None:
        """Compute the whole tensor before its readers, as every stage is at first; takes back where it was computed.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> s[y].compute_root()
        >>> show(s)
        y: f32[6,10]
        for i in range(6):
          for j in range(10):
            y[i, j] = x[i, j] + 1.0
        for i in range(6):
          for j in range(8):
            z[i, j] = y[i, j] * y[i, j + 2]
        """
        self.attach = None
        self.inlined = False
        self._record("compute_root")

    def compute_inline(self) -> None:
        """Substitute the expression into every reader.

        >>> s, x, y, z = chain()
        >>> s[y].compute_inline()
        >>> show(s)
        for i in range(6):
          for j in range(8):
            z[i, j] = (x[i, j] + 1.0) * (x[i, j + 2] + 1.0)

        Raises:
            ScheduleError: the compute is a reduction, or an output.
        """
        if self.op.combiner is not None:
            raise ScheduleError(f"compute_inline: stage {self.name} is a reduction")
        if self._is_output():
            raise ScheduleError(f"compute_inline: stage {self.name} is an output, it is stored in full")
        self.inlined = True
        self.attach = None
        self._record("compute_inline")

    def set_scope(self, scope: str) -> None:
        """Keep the stage's buffer in the given memory, which has an open name.

        >>> s, x, y, z = chain()
        >>> s[y].compute_at(s[z], s[z].axes[0])
        >>> s[y].set_scope("register")
        >>> show(s)
        for i in range(6):
          y: f32[1,10] in register
          for j in range(10):
            y[0, j] = x[i, j] + 1.0
          for j in range(8):
            z[i, j] = y[0, j] * y[0, j + 2]
        """
        self.scope = scope
        self._record("set_scope", scope)
