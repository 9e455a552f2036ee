"""Micro-op memory: when each kernel is loaded, and where."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mlc.vdla.codegen.stream import Kernel, Step
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Load, Mem


def place_uops(steps: Sequence[Step], config: VdlaConfig, buffer: int) -> tuple[list[Step], np.ndarray]:
    """Give every kernel a place in micro-op memory when it is needed, and load it there.

    The memory is a ring. At the begin of a layer all its kernels that are missing are loaded at once; where they do not
    fit together, each is loaded before its first use. What is overwritten was loaded first. These loads run on the unit
    that uses the micro-ops, so they need no tokens.

    Args:
        steps: the stream.
        config: depth of the memory.
        buffer: index of the DRAM buffer of the micro-ops.
    Returns:
        the stream with loads, and the buffer's contents, uint32 ``[n]``.
    """
    memory = _UopMemory(config.uop_depth, buffer)
    out: list[Step] = []
    begin = 0
    while begin < len(steps):
        end = begin
        while end < len(steps) and steps[end].layer == steps[begin].layer:
            end += 1
        layer = steps[begin:end]
        used = list({id(s.kernel): s.kernel for s in layer if s.kernel is not None}.values())
        together = sum(len(k.uops) for k in used) <= config.uop_depth
        if together:
            out += memory.load(used, used, steps[begin].layer)
        for s in layer:
            if s.kernel is not None:
                if not together:
                    out += memory.load([s.kernel], [s.kernel], s.layer)
                memory.bind(s)
            out.append(s)
        begin = end
    return out, memory.contents()


class _UopMemory:
    def __init__(self, depth: int, buffer: int) -> None:
        self.depth = depth
        self.buffer = buffer
        self.resident: dict[int, tuple[int, int]] = {}  # begin and end by kernel, oldest first
        self.next = 0
        self.stored: dict[tuple[int, ...], int] = {}  # place in DRAM of kernels that were loaded together
        self.parts: list[np.ndarray] = []
        self.size = 0

    def load(self, wanted: Sequence[Kernel], keep: Sequence[Kernel], layer: int) -> list[Step]:
        """Load what is missing of ``wanted`` as one run, without overwriting ``keep``."""
        missing = [k for k in wanted if id(k) not in self.resident]
        size = sum(len(k.uops) for k in missing)
        if not missing:
            return []
        begin = self.next if self.next + size <= self.depth else 0
        kept = [self.resident[id(k)] for k in keep if id(k) in self.resident]
        if any(b < begin + size and begin < e for b, e in kept):
            # no run is free beside them: begin anew with all
            self.resident.clear()
            missing, size, begin = list(wanted), sum(len(k.uops) for k in wanted), 0
        end = begin + size
        self.resident = {k: (b, e) for k, (b, e) in self.resident.items() if e <= begin or end <= b}
        at = begin
        for k in missing:
            self.resident[id(k)] = at, at + len(k.uops)
            at += len(k.uops)
        self.next = end
        key = tuple(id(k) for k in missing)
        if key not in self.stored:
            self.stored[key] = self.size
            self.parts += [k.uops for k in missing]
            self.size += size
        return [Step(Load(Mem.UOP, begin, self.stored[key], 1, size, size), self.buffer, layer=layer)]

    def bind(self, step: Step) -> None:
        """Let an instruction name its micro-ops."""
        insn = step.insn
        insn.uop_bgn, insn.uop_end = self.resident[id(step.kernel)]  # type: ignore[union-attr]

    def contents(self) -> np.ndarray:
        return np.concatenate(self.parts) if self.parts else np.zeros(0, np.uint32)
