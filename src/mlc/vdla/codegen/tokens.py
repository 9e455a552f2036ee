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
from functools import lru_cache

import numpy as np

from mlc.vdla.codegen.stream import Places, Step
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Alu, Finish, Gemm, Instruction, Load, Mem, Store, Unit, is_nop, nop

GRANULE = 16  # bytes of DRAM that are ordered as one
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
        self.element = {
            Mem.UOP: config.uop_element,
            Mem.WGT: config.wgt_element,
            Mem.INP: config.inp_element,
            Mem.ACC: config.acc_element,
            Mem.OUT: config.out_element,
            Mem.ACC8: config.out_element,
        }

        # the newest instruction, by its number on its unit, that wrote or read an element
        def fresh(n: int) -> np.ndarray:
            return np.full(n, -1, np.int32)

        self.loaded = {Mem.INP: fresh(config.inp_depth), Mem.WGT: fresh(config.wgt_depth)}  # written by LD
        self.used = {Mem.INP: fresh(config.inp_depth), Mem.WGT: fresh(config.wgt_depth)}  # read by CMP
        self.computed = fresh(config.acc_depth)  # written by CMP
        self.stored = fresh(config.acc_depth)  # read by ST
        granules = {b: -(-n // GRANULE) for b, n in written.items()}
        self.dram_written = {b: fresh(n) for b, n in granules.items()}  # by ST
        self.dram_read = {b: (fresh(n), fresh(n)) for b, n in granules.items()}  # by LD, by CMP
        self.out: list[Step] = []
        self.units: tuple[list[int], ...] = ([], [], [])  # places in `out` of each unit's instructions
        self.clocks: tuple[list[tuple[int, int, int]], ...] = ([], [], [])  # what was known after each of them
        self.known = [[-1, -1, -1] for _ in Unit]
        self.pops: dict[tuple[int, int], list[int]] = {}  # places of the pops of a queue

    def run(self, steps: Sequence[Step]) -> list[Step]:
        for step in steps:
            insn = step.insn
            unit = insn.unit
            need = self._need(step, insn, unit)
            if need is not None:
                self._order(insn, unit, need, step.layer)
            self._append(step, unit)
            self._record(step, insn, len(self.units[unit]) - 1)
        return self.out

    def _append(self, step: Step, unit: int) -> None:
        number = len(self.units[unit])
        self.units[unit].append(len(self.out))
        self.out.append(step)
        known = self.known[unit]
        known[unit] = number
        self.clocks[unit].append((known[0], known[1], known[2]))

    # -- conflicts ----------------------------------------------------------------------------------------------
    def _need(self, step: Step, insn: Instruction, unit: int) -> list[int] | None:
        """The newest conflicting instruction of each unit."""
        need = [-1, -1, -1]
        if isinstance(insn, (Gemm, Alu)):
            touched = step.touched
            assert touched is not None
            need[_ST] = int(self.stored[touched.acc_written].max())
            loads = -1
            if touched.inp is not None:
                loads = int(self.loaded[Mem.INP][touched.inp].max())
            if touched.wgt is not None:
                loads = max(loads, int(self.loaded[Mem.WGT][touched.wgt].max()))
            need[_LD] = loads
            return need
        if isinstance(insn, Finish):
            for u in (_LD, _ST):
                need[u] = len(self.units[u]) - 1
            return need
        if is_nop(insn):
            return None
        span = slice(insn.sram_base, insn.sram_base + _block(insn))
        if isinstance(insn, Store):
            need[_CMP] = int(self.computed[span].max())
            if step.buffer in self.dram_read:
                at = self._granules(insn)
                by_load, by_compute = self.dram_read[step.buffer]
                need[_LD] = int(by_load[at].max())
                need[_CMP] = max(need[_CMP], int(by_compute[at].max()))
            return need
        if unit == _LD:
            need[_CMP] = int(self.used[insn.mem][span].max())
        elif insn.mem is not Mem.UOP:
            need[_ST] = int(self.stored[span].max())
        if step.buffer in self.dram_written and insn.y_size:
            newest = int(self.dram_written[step.buffer][self._granules(insn)].max())
            need[_ST] = max(need[_ST], newest)
        return need

    def _record(self, step: Step, insn: Instruction, number: int) -> None:
        if isinstance(insn, (Gemm, Alu)):
            touched = step.touched
            assert touched is not None
            self.computed[touched.acc_written] = number
            if touched.inp is not None:
                self.used[Mem.INP][touched.inp] = number
            if touched.wgt is not None:
                self.used[Mem.WGT][touched.wgt] = number
            return
        if isinstance(insn, Finish) or is_nop(insn):
            return
        span = slice(insn.sram_base, insn.sram_base + _block(insn))
        if isinstance(insn, Store):
            self.stored[span] = number
            if step.buffer in self.dram_written:
                self.dram_written[step.buffer][self._granules(insn)] = number
            return
        if insn.unit == _LD:
            self.loaded[insn.mem][span] = number
        elif insn.mem is not Mem.UOP:
            self.computed[span] = number
        if step.buffer in self.dram_read and insn.y_size:
            self.dram_read[step.buffer][insn.unit][self._granules(insn)] = number

    def _granules(self, insn: Load | Store) -> Places:
        size = self.element[insn.mem]
        return _granules(insn.dram_base * size, insn.y_size, insn.x_size * size, insn.x_stride * size)

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


def _block(insn: Load | Store) -> int:
    """On-chip elements that a transfer touches."""
    if isinstance(insn, Store):
        return insn.y_size * insn.x_size
    rows = insn.pad_top + insn.y_size + insn.pad_bottom
    return rows * (insn.pad_left + insn.x_size + insn.pad_right)


def _granules(begin: int, rows: int, width: int, stride: int) -> Places:
    """The granules of ``rows`` runs of ``width`` bytes that begin ``stride`` bytes apart."""
    if rows == 1 or stride == width:
        end = begin + (rows - 1) * stride + width
        return slice(begin // GRANULE, -(-end // GRANULE))
    phase = begin % GRANULE
    return begin // GRANULE + _pattern(phase, rows, width, stride)


@lru_cache(maxsize=1024)
def _pattern(phase: int, rows: int, width: int, stride: int) -> np.ndarray:
    first = (phase + np.arange(rows) * stride) // GRANULE
    last = (phase + np.arange(rows) * stride + width - 1) // GRANULE
    longest = int((last - first).max()) + 1
    return np.unique(np.minimum(first[:, None] + np.arange(longest), last[:, None]))
