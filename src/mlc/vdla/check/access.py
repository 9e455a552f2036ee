"""Which elements a GEMM or ALU instruction reads and writes, exactly."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mlc.vdla.check.places import Indices, Places, gathered
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Alu, Gemm, GemmMode, unpack_uop
from mlc.vdla.isa.encode import Uops

Access = tuple[str, Places]  # an on-chip memory and elements of it


@dataclass(frozen=True)
class Accesses:
    """What one instruction touches; ``beyond`` says which index leaves its memory, and nothing is listed then."""

    reads: tuple[Access, ...] = ()
    writes: tuple[Access, ...] = ()
    beyond: str = ""


@dataclass(frozen=True)
class _Loops:
    """The two loops of an instruction, for one of its index fields."""

    iter_out: int
    iter_in: int
    factor_out: int
    factor_in: int

    def reach(self, base: Indices) -> int:
        """The greatest index."""
        return int(base.max()) + (self.iter_out - 1) * self.factor_out + (self.iter_in - 1) * self.factor_in

    def over(self, base: Indices) -> Indices:
        """The distinct indices, given those of the micro-ops; bounded by the memory's depth when ``reach`` is."""
        inner = np.unique(np.unique(base)[:, None] + steps(self.iter_in, self.factor_in))
        return np.unique(inner[:, None] + steps(self.iter_out, self.factor_out))


def steps(count: int, factor: int) -> Indices:
    """The distinct offsets of one loop."""
    return np.arange(count if factor else 1, dtype=np.int64) * factor


def accesses(instruction: Gemm | Alu, uops: Uops, config: VdlaConfig) -> Accesses:
    """The elements that an instruction touches.

    A sum that a GEMM in mode SET starts itself reads nothing of the accumulator; only those elements are read whose
    first product in the order of the loops does not start a sum.

    Args:
        instruction: a legal one.
        uops: uint32, its micro-ops.
        config: the record.
    Raises:
        ProgramError: a micro-op has a reserved bit set.
    """
    dst, src, wgt, first = unpack_uop(uops, config)
    if not len(dst) or not instruction.iter_out or not instruction.iter_in:
        return Accesses()
    wanted = [("acc", dst, instruction.dst_out, instruction.dst_in)]
    if isinstance(instruction, Alu):
        if not instruction.use_imm:
            wanted.append(("acc", src, instruction.src_out, instruction.src_in))
    elif instruction.mode is not GemmMode.ZERO:
        wanted.append(("inp", src, instruction.src_out, instruction.src_in))
        wanted.append(("wgt", wgt, instruction.wgt_out, instruction.wgt_in))
    found = []
    for memory, base, factor_out, factor_in in wanted:
        loops = _Loops(instruction.iter_out, instruction.iter_in, factor_out, factor_in)
        depth = getattr(config, f"{memory}_depth")
        if (reach := loops.reach(base)) >= depth:
            return Accesses(beyond=f"{memory}[{reach}] of {depth} elements")
        found.append((memory, loops.over(base)))
    written = found[0][1]
    reads = [(memory, gathered(indices)) for memory, indices in found[1:]]
    if isinstance(instruction, Alu) or instruction.mode is GemmMode.ACC:
        reads.append(("acc", gathered(written)))
    elif instruction.mode is GemmMode.SET:
        begun = _begun(instruction, dst, first != 0)
        reads.append(("acc", gathered(np.setdiff1d(written, begun))))
    return Accesses(tuple(reads), (("acc", gathered(written)),))


def _begun(instruction: Gemm, dst: Indices, first: npt.NDArray[np.bool_]) -> Indices:
    """The elements whose first product starts a sum: it lies in the first outer iteration, in a marked micro-op."""
    touched = (steps(instruction.iter_in, instruction.dst_in)[:, None] + dst).ravel()
    distinct, earliest = np.unique(touched, return_index=True)
    return np.asarray(distinct[first[earliest % len(dst)]])
