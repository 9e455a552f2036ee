"""Precise dependency tokens: every conflict between units is ordered, and nothing more than that.

In: steps in an order that is right when they are executed one after the other. Out: the same steps with token flags,
and a few instructions more that only relay tokens, such that every legal interleaving of the three units gives the same
result.

For each unit there is a clock of what it knows to be done on the others. An instruction that touches what a newer
instruction of another unit touched acquires a token from the newest such one, which brings along everything that one
knew. Since that is always newer than what was acquired before, the queues stay first-in first-out, and no token is
spent on what is known already.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

from mlc.vdla.codegen.conflicts import Conflicts
from mlc.vdla.codegen.stream import Step
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Instruction, Unit, nop

_LD, _CMP, _ST = Unit.LD, Unit.CMP, Unit.ST


def insert_tokens(steps: Sequence[Step], config: VdlaConfig, written: dict[int, int]) -> list[Step]:
    """Set the flags of every instruction; they must be clear.

    Args:
        steps: the stream, with FINISH at its end.
        config: memory sizes and the depth of the queues.
        written: bytes of every DRAM buffer that some store writes, by index; others need no order.
    Returns:
        the stream with relays.
    """
    return _Inserter(config, written).run(steps)


class _Inserter:
    def __init__(self, config: VdlaConfig, written: dict[int, int]) -> None:
        self.depth = config.dep_queue_depth
        self.conflicts = Conflicts(config, written)
        self.out: list[Step] = []
        self.units: tuple[list[int], ...] = ([], [], [])  # places in `out` of each unit's instructions
        self.clocks: tuple[list[tuple[int, int, int]], ...] = ([], [], [])  # what was known after each of them
        self.known = [[-1, -1, -1] for _ in Unit]
        self.pops: dict[tuple[int, int], list[int]] = {}  # places of the pops of a queue

    def run(self, steps: Sequence[Step]) -> list[Step]:
        for step in steps:
            insn = step.insn
            unit = insn.unit
            need = self.conflicts.newest(step)
            if step.after >= 0:
                if self.known[unit][_ST] >= step.after:
                    continue  # a relay that says nothing new
                need = [-1, -1, step.after]
            if need is not None:
                self._order(insn, unit, need, step.layer)
            self._append(step, unit)
        return self.out

    def _append(self, step: Step, unit: int) -> None:
        self.conflicts.record(step)
        number = len(self.units[unit])
        self.units[unit].append(len(self.out))
        self.out.append(step)
        known = self.known[unit]
        known[unit] = number
        self.clocks[unit].append((known[0], known[1], known[2]))

    # -- tokens -------------------------------------------------------------------------------------------------
    def _order(self, insn: Instruction, unit: int, need: list[int], layer: int) -> None:
        known = self.known[unit]
        if unit != _CMP:
            far = _ST if unit == _LD else _LD
            if need[far] > known[far]:
                need[_CMP] = max(need[_CMP], self._relay(far, need[far], layer))
            if need[_CMP] > known[_CMP]:
                self._acquire(insn, unit, _CMP, need[_CMP], layer)
            return
        wanted = [v for v in (_LD, _ST) if need[v] > known[v]]
        for v in wanted:
            # what the token of the other unit says, too, needs none
            if all(u == v or self.clocks[u][need[u]][v] < need[v] for u in wanted):
                self._acquire(insn, unit, v, need[v], layer)

    def _relay(self, far: int, need: int, layer: int) -> int:
        """First instruction of CMP that knows of one on a unit that is not the asker's neighbour; maybe a new one."""
        clocks = self.clocks[_CMP]
        if self.known[_CMP][far] < need:
            relay = nop(_CMP)
            self._acquire(relay, _CMP, far, need, layer)
            self._append(Step(relay, layer=layer), _CMP)
            return len(clocks) - 1
        return bisect_left(clocks, need, key=lambda clock: clock[far])

    def _acquire(self, insn: Instruction, unit: int, source: int, number: int, layer: int) -> None:
        """Let an instruction that comes next on ``unit`` wait for instruction ``number`` of ``source``."""
        pops = self.pops.setdefault((source, unit), [])
        if len(pops) >= self.depth:
            # the queue has room for this token only behind the pop of an older one
            room = pops[len(pops) - self.depth]
            if self.units[source][number] < room:
                number = len(self.units[source]) - 1
                if self.units[source][number] < room:
                    self._append(Step(nop(Unit(source)), layer=layer), source)
                    number += 1
        pops.append(len(self.out))
        giver = self.out[self.units[source][number]].insn
        if unit > source:
            giver.push_next = True
            insn.pop_prev = True
        else:
            giver.push_prev = True
            insn.pop_next = True
        known, news = self.known[unit], self.clocks[source][number]
        for u in range(3):
            known[u] = max(known[u], news[u])
