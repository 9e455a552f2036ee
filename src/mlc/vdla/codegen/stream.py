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
        indices: int64 ``[n]``, at least one, in any order, repeated or not.
    """
    first = int(indices.min())
    there = np.zeros(int(indices.max()) - first + 1, bool)
    there[indices - first] = True
    return slice(first, first + len(there)) if there.all() else np.flatnonzero(there) + first


def mask_of(p: Places) -> int:
    """The indices as bits of one integer."""
    if isinstance(p, slice):
        begin, end = int(p.start), int(p.stop)
        return ((1 << (end - begin)) - 1) << begin
    there = np.zeros(int(p[-1]) + 1, np.uint8)
    there[p] = 1
    return int.from_bytes(np.packbits(there, bitorder="little").tobytes(), "little")


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
        after: of an instruction that only relays tokens, the store that it waits for, by number; -1 for none.
    """

    insn: Instruction
    buffer: int = -1
    kernel: Kernel | None = None
    touched: Touched | None = None
    layer: int = 0
    after: int = -1
