"""The stream while kernels append to it: its steps, and what the accelerator's memories hold meanwhile.

Steps stand in an order that is right when executed one after the other; tokens come later.
"""

from __future__ import annotations

import numpy as np

from mlc.vdla.codegen.constants import Constants
from mlc.vdla.codegen.epilogue import Operation
from mlc.vdla.codegen.kernels import Planned, kernels_of
from mlc.vdla.codegen.memory import Memory
from mlc.vdla.codegen.stream import Step
from mlc.vdla.codegen.structural import GivenTokens
from mlc.vdla.config import VdlaConfig
from mlc.vdla.intrinsics import ACC, scopes
from mlc.vdla.isa.instruction import Alu, Gemm, GemmMode

DRAM_BITS = 40  # of an element's number within its buffer, where contents are remembered


class Emitter:
    """Makes one stream from many kernels; what the memories hold is remembered from one to the next.

    Args:
        config: the accelerator.
        constants: where repacked constants go.
        structural: whether kernels bring the tokens that order units; otherwise theirs count for nothing.

    Attributes:
        steps: the stream so far.
        given: what sets those tokens.
    """

    def __init__(self, config: VdlaConfig, constants: Constants, *, structural: bool = False) -> None:
        self.config = config
        self.constants = constants
        self.scopes = scopes(config)
        self.kernels = kernels_of(config)
        self.memories = {s.name: Memory(s.name, s.depth) for s in self.scopes.values()}
        self.steps: list[Step] = []
        self.layer = 0
        self.pending = 0  # accumulators to be cleared before they are used, as bits
        self.given = GivenTokens(self.add) if structural else None
        self.loaded: set[int] = set()  # DRAM buffers of which some part may be on the chip

    def add(self, step: Step) -> None:
        """Append a step."""
        step.layer = self.layer
        self.steps.append(step)
        if self.given is not None:
            self.given.appended(step)

    def clear(self, mask: int) -> None:
        """Emit what clears those accumulators that still wait for it."""
        due = self.pending & mask
        if due:
            self.pending &= ~due
            self.product(GemmMode.ZERO, self.kernels.clear(_bits(due)))

    def product(self, mode: GemmMode, plan: Planned) -> None:
        """Append a GEMM."""
        o, i = plan.shape.outer, plan.shape.inner
        insn = Gemm(mode, 0, 0, o.extent, i.extent, o.dst, i.dst, o.src, i.src, o.wgt, i.wgt)
        self.add(Step(insn, -1, plan.kernel, plan.touched))
        self.memories[ACC].wrote(plan.touched.acc_written)

    def operate(self, o: Operation, plan: Planned) -> None:
        """Append an ALU instruction."""
        self.clear(plan.touched.mask | plan.touched.reads)
        outer, inner = plan.shape.outer, plan.shape.inner
        insn = Alu(
            o.op, o.source is None, o.immediate, 0, 0, outer.extent, inner.extent,
            outer.dst, inner.dst, outer.src, inner.src,
        )  # fmt: skip
        self.add(Step(insn, -1, plan.kernel, plan.touched))
        self.memories[ACC].wrote(plan.touched.acc_written)

    def stored(self, buffer: int) -> None:
        """A DRAM buffer has changed: what is known of it on the chip is out of date."""
        if buffer in self.loaded:
            self.loaded.discard(buffer)
            for memory in self.memories.values():
                memory.forget(buffer << DRAM_BITS, (buffer + 1) << DRAM_BITS)


def _bits(mask: int) -> np.ndarray:
    """Places of the ones of a number, ascending."""
    data = np.frombuffer(mask.to_bytes(-(-mask.bit_length() // 8), "little"), np.uint8)
    return np.flatnonzero(np.unpackbits(data, bitorder="little"))
