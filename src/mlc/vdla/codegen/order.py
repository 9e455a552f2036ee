"""The order of a stream: what each unit does when, as far as that can be foreseen.

In: steps in an order that is right when they are executed one after the other, which is how kernels were written down:
all of a tile, then all of the next one, all of a layer, then all of the next one. Out: the same steps in an order that
is right as well, near the one in which they will begin.

Results do not depend on it, but waiting does: units run their own instructions in stream order, and LD learns of what
ST has done by way of CMP, at the place in the stream where it asks. A load that stands behind all products of the
layer before waits for all of them. So the stream is followed on a clock for each unit and one for the memory: whatever
can begin first is next. Products, ALU instructions and stores keep their order; loads that wait let later ones pass,
such as those of the next layers' weights. Before CMP begins a long product, it tells LD of the stores that are over and
that loads wait for; and while it waits itself, it loads micro-ops for later.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mlc.vdla.codegen.conflicts import Conflicts, element_bytes
from mlc.vdla.codegen.stream import Step
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Alu, Finish, Gemm, Load, Mem, Store, Unit, nop

WINDOW = 128  # loads that are looked at, of those that come next
PATIENCE = 64  # cycles that CMP may wait for a store, to tell LD of it before its next instruction
_LD, _CMP, _ST = Unit.LD, Unit.CMP, Unit.ST


def in_order_of_begin(steps: Sequence[Step], config: VdlaConfig, written: dict[int, int]) -> list[Step]:
    """The stream in the order in which its steps are expected to begin.

    Args:
        steps: the stream without tokens, with FINISH at its end.
        config: the accelerator.
        written: bytes of every DRAM buffer that some store writes, by index.
    Returns:
        all steps, and relays of tokens.
    """
    *body, finish = steps
    assert isinstance(finish.insn, Finish)
    return [*_Clocks(body, config, written).run(), finish]


def _cycles(step: Step, config: VdlaConfig) -> tuple[float, bool]:
    """How long a step computes, or how long its bytes move, and whether it is the latter."""
    insn = step.insn
    if isinstance(insn, (Gemm, Alu)):
        assert step.kernel is not None
        many = insn.iter_out * insn.iter_in * len(step.kernel.uops)
        if isinstance(insn, Alu):
            return 1 + many * (1 if insn.use_imm else 2) + config.alu_fill, False
        return 1 + many + config.gemm_fill, False
    assert isinstance(insn, (Load, Store))
    rows, columns = insn.y_size, insn.x_size
    moved = rows * columns * element_bytes(config)[insn.mem] / config.bytes_per_cycle
    if isinstance(insn, Load):
        rows, columns = insn.pad_top + rows + insn.pad_bottom, insn.pad_left + columns + insn.pad_right
    return max(moved, float(rows * columns)), True


@dataclass(slots=True, eq=False)
class _Task:
    """A step with what has to be over before it begins.

    Attributes:
        loads: numbers of loads.
        compute, store: the newest instruction of CMP, and of ST, by number; -1 for none.
        cycles: how long it computes, or how long its bytes move.
        end: when it is over; before it was begun, nothing.
    """

    step: Step
    unit: int
    loads: tuple[int, ...]
    compute: int
    store: int
    cycles: float
    moves: bool
    end: float = field(default=-1.0)


def _loads_of_micro_ops(tasks: Sequence[_Task]) -> list[_Task]:
    """Those that may run before their turn, in order: all of them if none overwrites what another one has brought."""
    found: list[_Task] = []
    ranges: list[tuple[int, int]] = []
    for task in tasks:
        insn = task.step.insn
        if isinstance(insn, Load) and insn.mem is Mem.UOP:
            found.append(task)
            ranges.append((insn.sram_base, insn.sram_base + insn.x_size))
    ranges.sort()
    return found if all(end <= begin for (_, end), (begin, _) in pairwise(ranges)) else []


class _Clocks:
    def __init__(self, steps: Sequence[Step], config: VdlaConfig, written: dict[int, int]) -> None:
        self.config = config
        self.units: tuple[list[_Task], list[_Task], list[_Task]] = ([], [], [])
        conflicts = Conflicts(config, written)
        for step in steps:
            newest = conflicts.newest(step) or [-1, -1, -1]
            unit = step.insn.unit
            task = _Task(step, unit, conflicts.loads(step), newest[_CMP], newest[_ST], *_cycles(step, config))
            self.units[unit].append(task)
            conflicts.record(step)
        self.free = [0.0, 0.0, 0.0]
        self.port = 0.0
        self.begun = [0, 0, 0]  # of each unit, how many in front without a gap
        self.early = _loads_of_micro_ops(self.units[_CMP])  # that may begin before their turn
        self.told = (-1, 0.0)  # the newest store of which CMP has told LD, and when

    def run(self) -> list[Step]:
        out: list[Step] = []
        left = sum(map(len, self.units))
        while left:
            task, begin = min(self._next(), key=self._urgency)
            if task.unit == _CMP and (relay := self._relay(begin, task.step.layer)) is not None:
                out.append(relay)
                continue
            self._begin(task, begin)
            out.append(task.step)
            left -= 1
        return out

    def _next(self) -> list[tuple[_Task, float]]:
        """What may come next, and when it can begin."""
        found: list[tuple[_Task, float]] = []
        loads = self.units[_LD]
        for k in range(self.begun[_LD], min(self.begun[_LD] + WINDOW, len(loads))):
            if loads[k].end < 0 and (ready := self._ready(loads[k])) is not None:
                found.append((loads[k], ready))
                if ready <= self.free[_LD]:
                    break
        for unit in (_ST, _CMP):
            if self.begun[unit] < len(self.units[unit]):
                task = self.units[unit][self.begun[unit]]
                if (ready := self._ready(task)) is not None:
                    found.append((task, ready))
        if (early := self._meanwhile()) is not None:
            found.append((early, self.free[_CMP]))
        return found

    def _meanwhile(self) -> _Task | None:
        """A load of micro-ops for which there is time before CMP can begin what is next."""
        if not self.early:
            return None
        task, after = self.early[0], self.units[_CMP][self.begun[_CMP]]
        if task is after or (ready := self._ready(after)) is None:
            return None
        took = self.config.dma_issue + self.config.dram_latency + task.cycles
        return task if ready - self.free[_CMP] >= took else None

    def _relay(self, begin: float, layer: int) -> Step | None:
        """What tells LD of stores that loads wait for, if they are over when CMP begins what is next."""
        loads, stores = self.units[_LD], self.units[_ST]
        some = range(self.begun[_LD], min(self.begun[_LD] + WINDOW, len(loads)))
        wanted = {loads[k].store for k in some if self.told[0] < loads[k].store < self.begun[_ST] and loads[k].end < 0}
        newest = max((n for n in wanted if stores[n].end <= begin), default=-1)
        if newest < 0:
            return None
        when = max(stores[newest].end, self.free[_CMP])
        self.told = newest, when
        self.free[_CMP] = when + 1
        return Step(nop(Unit.CMP), layer=layer, after=newest)

    def _urgency(self, found: tuple[_Task, float]) -> tuple[float, int]:
        """When a step can begin; of those at the same time, what costs others little, or what they wait for, first."""
        task, begin = found
        if task.unit == _LD and task.store > self.told[0]:
            return begin - PATIENCE, 0
        if task.unit == _CMP:
            return begin, 1 if task.moves else 4
        return begin, 2 if task.unit == _LD else 3

    def _ready(self, task: _Task) -> float | None:
        """When a step can begin; ``None`` where something that has to be over was not begun."""
        when = self.free[task.unit]
        loads = self.units[_LD]
        for k in task.loads:
            if loads[k].end < 0:
                return None
            when = max(when, loads[k].end)
        if task.compute >= 0:
            if self.units[_CMP][task.compute].end < 0:
                return None
            when = max(when, self.units[_CMP][task.compute].end)
        if task.store >= 0:
            if task.unit != _ST and task.store >= self.begun[_ST]:
                return None
            when = max(when, self._told(task.store) if task.unit == _LD else self.units[_ST][task.store].end)
        return when

    def _told(self, store: int) -> float:
        """When LD can know that a store is over."""
        newest, when = self.told
        return when if store <= newest else max(self.units[_ST][store].end, self.free[_CMP])

    def _begin(self, task: _Task, begin: float) -> None:
        config = self.config
        if task.unit == _LD and task.store > self.told[0]:
            self.told = task.store, begin
            self.free[_CMP] = max(self.free[_CMP], begin)
        if task.moves:
            first = begin + config.dma_issue + (config.dram_latency if task.unit != _ST else 0)
            first = max(first, self.port)
            task.end = first + task.cycles
            self.port = task.end
            overlaps = config.dma_outstanding >= 2
            self.free[task.unit] = first if overlaps and task.unit != _CMP else task.end
            if task.unit == _ST:
                task.end += config.dram_latency
        else:
            task.end = begin + task.cycles
            self.free[task.unit] = task.end
        if task in self.early:
            self.early.remove(task)
        same = self.units[task.unit]
        while self.begun[task.unit] < len(same) and same[self.begun[task.unit]].end >= 0:
            self.begun[task.unit] += 1
