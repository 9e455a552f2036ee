"""What instructions of a stream touch alike: on-chip elements, and granules of DRAM that are written.

A tracker is told of instructions in stream order, by their numbers on their units. Of what an instruction is about to
touch it knows who touched it last.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

import numpy as np

from mlc.vdla.codegen.stream import Places, Step
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Alu, Finish, Gemm, Load, Mem, Store, Unit, is_nop

GRANULE = 16  # bytes of DRAM that are ordered as one
_LD, _CMP, _ST = Unit.LD, Unit.CMP, Unit.ST


@lru_cache(maxsize=16)
def element_bytes(config: VdlaConfig) -> Mapping[Mem, int]:
    """Bytes of an element of DRAM, by what a transfer moves."""
    return {
        Mem.UOP: config.uop_element,
        Mem.WGT: config.wgt_element,
        Mem.INP: config.inp_element,
        Mem.ACC: config.acc_element,
        Mem.OUT: config.out_element,
        Mem.ACC8: config.out_element,
    }


class Conflicts:
    """Who touched what last.

    Args:
        config: memory sizes.
        written: bytes of every DRAM buffer that some store writes, by index; others need no order.
    """

    def __init__(self, config: VdlaConfig, written: dict[int, int]) -> None:
        self.element = element_bytes(config)

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
        self.count = [0, 0, 0]

    def newest(self, step: Step) -> list[int] | None:
        """The newest conflicting instruction of each unit, by number; ``None`` for what touches nothing."""
        insn = step.insn
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
                need[u] = self.count[u] - 1
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
        if insn.unit == _LD:
            need[_CMP] = int(self.used[insn.mem][span].max())
        elif insn.mem is not Mem.UOP:
            need[_ST] = int(self.stored[span].max())
        if step.buffer in self.dram_written and insn.y_size:
            newest = int(self.dram_written[step.buffer][self._granules(insn)].max())
            need[_ST] = max(need[_ST], newest)
        return need

    def loads(self, step: Step) -> tuple[int, ...]:
        """Every instruction of LD, by number, that wrote or read what a step touches last; for streams whose loads may
        change their order, so that the newest does not stand for all."""
        insn = step.insn
        found: list[np.ndarray] = []
        if isinstance(insn, (Gemm, Alu)):
            touched = step.touched
            assert touched is not None
            if touched.inp is not None:
                found.append(self.loaded[Mem.INP][touched.inp])
            if touched.wgt is not None:
                found.append(self.loaded[Mem.WGT][touched.wgt])
        elif isinstance(insn, Store):
            if step.buffer in self.dram_read:
                found.append(self.dram_read[step.buffer][0][self._granules(insn)])
        elif isinstance(insn, Load) and insn.unit == _LD and not is_nop(insn):
            found.append(self.loaded[insn.mem][insn.sram_base : insn.sram_base + _block(insn)])
        numbers = {int(n) for a in found for n in np.unique(a)}
        return tuple(sorted(numbers - {-1}))

    def record(self, step: Step) -> None:
        """Note an instruction."""
        insn = step.insn
        unit = insn.unit
        number = self.count[unit]
        self.count[unit] += 1
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
        if unit == _LD:
            self.loaded[insn.mem][span] = number
        elif insn.mem is not Mem.UOP:
            self.computed[span] = number
        if step.buffer in self.dram_read and insn.y_size:
            self.dram_read[step.buffer][unit][self._granules(insn)] = number

    def _granules(self, insn: Load | Store) -> Places:
        size = self.element[insn.mem]
        return _granules(insn.dram_base * size, insn.y_size, insn.x_size * size, insn.x_stride * size)


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
