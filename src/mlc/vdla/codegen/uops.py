"""Micro-op memory: when each kernel is loaded, and where."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, islice

import numpy as np

from mlc.vdla.codegen.stream import Kernel, Step
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa.instruction import Load, Mem


def place_uops(steps: Sequence[Step], config: VdlaConfig, buffer: int) -> tuple[list[Step], np.ndarray]:
    """Give every kernel a place in micro-op memory when it is needed, and load it there.

    The memory is a ring; what is overwritten was loaded first. At the begin of a layer all its kernels that are missing
    are loaded at once. Where they do not fit together, those of the next instructions are, up to half of the memory,
    whenever one is missing. These loads run on the unit that uses the micro-ops, so they need no tokens.

    Args:
        steps: the stream.
        config: depth of the memory.
        buffer: index of the DRAM buffer of the micro-ops.
    Returns:
        the stream with loads, and the buffer's contents, uint32 ``[n]``.
    """
    memory = _UopMemory(config.uop_depth, buffer)
    out: list[Step] = []
    for layer, group in groupby(steps, key=lambda s: s.layer):
        own = list(group)
        needed = [s.kernel for s in own if s.kernel is not None]
        budget = config.uop_depth
        if sum(len(k.uops) for k in _distinct(needed)) > budget:
            budget //= 2
        # before anything else, so that the port has not been given to loads that can wait
        first = _ahead(needed, 0, budget) if needed else []
        if not all(map(memory.holds, first)):
            out += memory.load(first, layer)
        at = 0
        for s in own:
            if s.kernel is not None:
                if not memory.holds(s.kernel):
                    out += memory.load(_ahead(needed, at, budget), layer)
                memory.bind(s)
                at += 1
            out.append(s)
    return out, memory.contents()


def _distinct(kernels: Iterable[Kernel]) -> list[Kernel]:
    return list({id(k): k for k in kernels}.values())


def _ahead(kernels: Sequence[Kernel], begin: int, budget: int) -> list[Kernel]:
    """The distinct kernels from a place on that fit a budget of micro-ops, at least the first."""
    found = {id(kernels[begin]): kernels[begin]}
    size = len(kernels[begin].uops)
    for k in islice(kernels, begin + 1, None):
        if id(k) not in found:
            size += len(k.uops)
            if size > budget:
                break
            found[id(k)] = k
    return list(found.values())


class _UopMemory:
    def __init__(self, depth: int, buffer: int) -> None:
        self.depth = depth
        self.buffer = buffer
        self.resident: dict[int, tuple[int, int]] = {}  # begin and end by kernel, oldest first
        self.next = 0
        self.stored: dict[tuple[int, ...], int] = {}  # place in DRAM of kernels that were loaded together
        self.parts: list[np.ndarray] = []
        self.size = 0

    def holds(self, kernel: Kernel) -> bool:
        """Whether a kernel is there."""
        return id(kernel) in self.resident

    def load(self, wanted: Sequence[Kernel], layer: int) -> list[Step]:
        """Load what is missing of ``wanted``, some of which is, as one run beside what is there of it."""
        missing = [k for k in wanted if id(k) not in self.resident]
        size = sum(len(k.uops) for k in missing)
        begin = self.next if self.next + size <= self.depth else 0
        kept = [self.resident[id(k)] for k in wanted if id(k) in self.resident]
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
