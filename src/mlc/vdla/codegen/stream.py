"""A stream while it is made: instructions with what they touch, before DRAM and micro-op memory have addresses."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mlc.vdla.isa.instruction import Instruction

# indices into an on-chip memory: a range where they are one, which numpy reads faster
Places = np.ndarray | slice


def places(indices: np.ndarray) -> Places:
    """Sorted distinct indices in their fastest form.

    Args:
        indices: int64 ``[n]``, in any order, repeated or not.
    """
    unique = np.unique(indices)
    if len(unique) and unique[-1] - unique[0] + 1 == len(unique):
        return slice(int(unique[0]), int(unique[-1]) + 1)
    return unique


def mask_of(p: Places) -> int:
    """The indices as bits of one integer."""
    if isinstance(p, slice):
        begin, end = int(p.start), int(p.stop)
        return ((1 << (end - begin)) - 1) << begin
    return sum(1 << int(i) for i in p)


@dataclass(slots=True, eq=False)
class Kernel:
    """Micro-ops that instructions share.

    Attributes:
        uops: packed words, uint32 ``[n]``.
    """

    uops: np.ndarray


@dataclass(slots=True, eq=False)
class Touched:
    """What a GEMM or ALU instruction reads and writes on the chip.

    Attributes:
        acc_written: accumulators written; every one of them may be read, too.
        inp: input elements read; ``None`` for none.
        wgt: weight elements read; ``None`` for none.
        mask: the accumulators written, as bits.
        reads: accumulators read besides, by an ALU instruction with two operands, as bits.
    """

    acc_written: Places
    inp: Places | None = None
    wgt: Places | None = None
    mask: int = 0
    reads: int = 0


@dataclass(slots=True, eq=False)
class Step:
    """One instruction of a stream.

    Attributes:
        insn: the instruction, owned by this step alone; token flags are set late.
        buffer: index of the DRAM buffer of a load or store, whose ``dram_base`` counts from the buffer's begin;
            -1 for none.
        kernel: the micro-ops of a GEMM or ALU instruction, whose ``uop_bgn`` and ``uop_end`` are set late.
        touched: what such an instruction touches.
        layer: which part of the region it belongs to, for reports and for the loading of micro-ops.
    """

    insn: Instruction
    buffer: int = -1
    kernel: Kernel | None = None
    touched: Touched | None = None
    layer: int = 0
