"""The five instructions as records, and the enumerations in their fields.

Addresses and sizes count *elements* of the instruction's memory. Each instruction runs on one of three units, which
stand in a row, LD - CMP - ST; its four flags take a token from, or give one to, the previous and the next unit.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum


class Unit(IntEnum):
    """The units, in the order in which they stand."""

    LD = 0
    CMP = 1
    ST = 2


class Opcode(IntEnum):
    """Values of the opcode field."""

    LOAD = 0
    STORE = 1
    GEMM = 2
    FINISH = 3
    ALU = 4


class Mem(IntEnum):
    """What a load or store moves: an on-chip memory together with the form its elements have in DRAM."""

    UOP = 0
    WGT = 1
    INP = 2
    ACC = 3
    OUT = 4  # the accumulator, narrowed to int8 on its way out
    ACC8 = 5  # the accumulator, widened from int8 on its way in


class GemmMode(IntEnum):
    """What happens to the accumulator: add to it, clear it, or start the sum where a micro-op is marked ``first``."""

    ACC = 0
    ZERO = 1
    SET = 2


class AluOp(IntEnum):
    """Lane-wise operations on the accumulator."""

    MIN = 0
    MAX = 1
    ADD = 2
    SHR = 3  # arithmetic; a negative count shifts left
    MUL = 4  # low 32 bits
    RSHR = 5  # to the right, halves rounded up
    MULH = 6  # (a * b + 2**30) >> 31


@dataclass(slots=True, kw_only=True)
class Tokens:
    """The token flags that every instruction has."""

    pop_prev: bool = False
    pop_next: bool = False
    push_prev: bool = False
    push_next: bool = False


@dataclass(slots=True)
class Load(Tokens):
    """DRAM to chip: a dense block of ``(pad_top+y_size+pad_bottom) x (pad_left+x_size+pad_right)`` elements.

    Row r of the inner ``y_size x x_size`` comes from ``dram_base + r*x_stride``; padding is written as zeros. With
    ``x_size`` 0 it moves nothing and only carries tokens.
    """

    mem: Mem
    sram_base: int
    dram_base: int
    y_size: int
    x_size: int
    x_stride: int
    pad_top: int = 0
    pad_bottom: int = 0
    pad_left: int = 0
    pad_right: int = 0

    def at(self, dram_base: int) -> Load:
        """The same transfer at another place of DRAM."""
        return Load(
            self.mem,
            self.sram_base,
            dram_base,
            self.y_size,
            self.x_size,
            self.x_stride,
            self.pad_top,
            self.pad_bottom,
            self.pad_left,
            self.pad_right,
            pop_prev=self.pop_prev,
            pop_next=self.pop_next,
            push_prev=self.push_prev,
            push_next=self.push_next,
        )

    @property
    def unit(self) -> Unit:
        """LD for inputs and weights, CMP for what the compute unit alone reads."""
        return Unit.LD if self.mem in (Mem.INP, Mem.WGT) else Unit.CMP


@dataclass(slots=True)
class Store(Tokens):
    """Chip to DRAM: ``y_size`` dense rows of ``x_size`` accumulator elements, written ``x_stride`` apart.

    For OUT each value becomes ``saturate_int8(relu((v + 2**(shift-1)) >> shift))``, computed in 64 bits.
    """

    mem: Mem
    sram_base: int
    dram_base: int
    y_size: int
    x_size: int
    x_stride: int
    shift: int = 0
    relu: bool = False

    def at(self, dram_base: int) -> Store:
        """The same transfer at another place of DRAM."""
        return Store(
            self.mem,
            self.sram_base,
            dram_base,
            self.y_size,
            self.x_size,
            self.x_stride,
            self.shift,
            self.relu,
            pop_prev=self.pop_prev,
            pop_next=self.pop_next,
            push_prev=self.push_prev,
            push_next=self.push_next,
        )

    @property
    def unit(self) -> Unit:
        """Always ST."""
        return Unit.ST


@dataclass(slots=True)
class Gemm(Tokens):
    """For i < iter_out, j < iter_in, u in uops[uop_bgn:uop_end]: one product of an input and a weight element.

    ``acc[u.dst + i*dst_out + j*dst_in]`` gets ``wgt[u.wgt + i*wgt_out + j*wgt_in] @ inp[u.src + i*src_out + j*src_in]``
    by ``mode``.
    """

    mode: GemmMode
    uop_bgn: int
    uop_end: int
    iter_out: int
    iter_in: int
    dst_out: int
    dst_in: int
    src_out: int
    src_in: int
    wgt_out: int
    wgt_in: int

    @property
    def unit(self) -> Unit:
        """Always CMP."""
        return Unit.CMP


@dataclass(slots=True)
class Alu(Tokens):
    """The same loops: ``acc[d] = op(acc[d], imm if use_imm else acc[s])``, lane by lane in int32."""

    op: AluOp
    use_imm: bool
    imm: int
    uop_bgn: int
    uop_end: int
    iter_out: int
    iter_in: int
    dst_out: int
    dst_in: int
    src_out: int
    src_in: int

    @property
    def unit(self) -> Unit:
        """Always CMP."""
        return Unit.CMP


@dataclass(slots=True)
class Finish(Tokens):
    """Ends the stream; everything before must have happened."""

    @property
    def unit(self) -> Unit:
        """Always CMP."""
        return Unit.CMP


Instruction = Load | Store | Gemm | Alu | Finish


def is_nop(instruction: Instruction) -> bool:
    """Whether it is a transfer of nothing, which only carries tokens."""
    return isinstance(instruction, Load | Store) and instruction.x_size == 0


def nop(unit: Unit) -> Load | Store:
    """An instruction that only carries tokens on a unit."""
    if unit is Unit.ST:
        return Store(Mem.ACC, 0, 0, 0, 0, 0)
    return Load(Mem.INP if unit is Unit.LD else Mem.UOP, 0, 0, 0, 0, 0)
