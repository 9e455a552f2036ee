"""The reference model: every instruction in plain Python, one lane at a time, as the specification says it.

Nothing here is fast. The functional simulator is tested against it, and it says what an instruction means when the two
are in doubt. All arithmetic is exact; only what is stored in the accumulator is cut to 32 bits.
Source: the accelerator's specification, section 3.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import (
    Alu,
    AluOp,
    Finish,
    Gemm,
    GemmMode,
    Instruction,
    Load,
    Mem,
    Store,
    element_bytes,
    handlers,
    memory_depth,
    unpack_uop,
)
from mlc.vdla.isa.fields import MEMORIES
from mlc.vdla.sim.dram import Dram


class ScalarMachine:
    """On-chip memories and how each instruction changes them; all zero at first.

    Attributes:
        inp: int8[depth, batch, block_in].
        wgt: int8[depth, block_out, block_in].
        acc: int32[depth, batch, block_out].
        uop: uint32[depth].
    """

    def __init__(self, config: VdlaConfig, dram: Dram) -> None:
        self.config = config
        self.dram = dram
        self.inp = np.zeros((config.inp_depth, config.batch, config.block_in), np.int8)
        self.wgt = np.zeros((config.wgt_depth, config.block_out, config.block_in), np.int8)
        self.acc = np.zeros((config.acc_depth, config.batch, config.block_out), np.int32)
        self.uop = np.zeros(config.uop_depth, np.uint32)
        self._do = handlers(self)

    def step(self, instruction: Instruction) -> None:
        """Executes one instruction; tokens mean nothing here.

        Raises:
            DeviceError: an index outside a memory.
        """
        self._do[type(instruction)](instruction)

    def load(self, x: Load) -> None:
        """DRAM to chip, with zeros around."""
        if x.x_size == 0:
            return
        size = element_bytes(x.mem, self.config)
        memory = getattr(self, MEMORIES[x.mem].sram)
        place = x.sram_base
        for row in range(-x.pad_top, x.y_size + x.pad_bottom):
            for column in range(-x.pad_left, x.x_size + x.pad_right):
                at = self._inside(place, x.mem)
                place += 1
                if 0 <= row < x.y_size and 0 <= column < x.x_size:
                    content = self.dram.read((x.dram_base + row * x.x_stride + column) * size, size)
                    # An int8 that goes to the accumulator is widened by the assignment.
                    dtype = np.int8 if x.mem is Mem.ACC8 else memory.dtype
                    memory[at] = content.view(dtype).reshape(memory.shape[1:])
                else:
                    memory[at] = 0

    def store(self, x: Store) -> None:
        """Chip to DRAM, narrowed for OUT."""
        size = element_bytes(x.mem, self.config)
        place = x.sram_base
        for row in range(x.y_size):
            for column in range(x.x_size):
                values = self.acc[self._inside(place, x.mem)]
                place += 1
                if x.mem is Mem.OUT:
                    narrow = [requantise(int(v), x.shift, x.relu) for v in values.flat]
                    values = np.array(narrow, np.int8)
                self.dram.write((x.dram_base + row * x.x_stride + column) * size, values)

    def gemm(self, x: Gemm) -> None:
        """Products of elements, summed in the accumulator."""
        for i, j, (dst, src, wgt, first) in self._steps(x):
            d = self._inside(dst + i * x.dst_out + j * x.dst_in, Mem.ACC)
            if x.mode is GemmMode.ZERO:
                self.acc[d] = 0
                continue
            s = self._inside(src + i * x.src_out + j * x.src_in, Mem.INP)
            w = self._inside(wgt + i * x.wgt_out + j * x.wgt_in, Mem.WGT)
            fresh = x.mode is GemmMode.SET and first and i == 0
            for b in range(self.config.batch):
                for o in range(self.config.block_out):
                    total = 0 if fresh else int(self.acc[d, b, o])
                    for c in range(self.config.block_in):
                        total += int(self.inp[s, b, c]) * int(self.wgt[w, o, c])
                    self.acc[d, b, o] = wrap(total)

    def alu(self, x: Alu) -> None:
        """Lane-wise operations in the accumulator."""
        for i, j, (dst, src, _, _) in self._steps(x):
            d = self._inside(dst + i * x.dst_out + j * x.dst_in, Mem.ACC)
            s = d if x.use_imm else self._inside(src + i * x.src_out + j * x.src_in, Mem.ACC)
            for lane in np.ndindex(self.acc.shape[1:]):
                b = x.imm if x.use_imm else int(self.acc[(s, *lane)])
                self.acc[(d, *lane)] = wrap(alu_lane(x.op, int(self.acc[(d, *lane)]), b))

    def finish(self, x: Finish) -> None:
        """Changes nothing."""

    def _steps(self, x: Gemm | Alu) -> Iterator[tuple[int, int, list[int]]]:
        """(i, j, fields of the micro-op) of every step, in order."""
        for i in range(x.iter_out):
            for j in range(x.iter_in):
                for k in range(x.uop_bgn, x.uop_end):
                    word = self.uop[self._inside(k, Mem.UOP)]
                    yield i, j, [int(field) for field in unpack_uop(word, self.config)]

    def _inside(self, index: int, mem: Mem) -> int:
        depth = memory_depth(mem, self.config)
        if index >= depth:
            raise outside(MEMORIES[mem].sram, index, index, depth)
        return index


def outside(memory: str, first: int, last: int, depth: int) -> DeviceError:
    """The error of an on-chip index that does not exist."""
    which = f"element {first} lies" if first == last else f"elements {first} to {last} lie"
    return DeviceError(f"{which} outside the {depth} of the {memory} memory")


def wrap(value: int) -> int:
    """The low 32 bits as a signed number."""
    return (value + (1 << 31)) % (1 << 32) - (1 << 31)


def rounded_shift(value: int, count: int) -> int:
    """Right shift with halves rounded up; a negative count shifts left."""
    if count <= 0:
        return value << -count
    return (value + (1 << (count - 1))) >> count


def requantise(value: int, shift: int, relu: bool) -> int:
    """What a store of OUT makes of one int32: shifted, perhaps cut at zero, saturated to int8."""
    value = rounded_shift(value, shift)
    return min(max(value, 0 if relu else -128), 127)


def alu_lane(op: AluOp, a: int, b: int) -> int:
    """One lane of an ALU operation, exact; the caller cuts it to 32 bits."""
    match op:
        case AluOp.MIN:
            return min(a, b)
        case AluOp.MAX:
            return max(a, b)
        case AluOp.ADD:
            return a + b
        case AluOp.SHR:
            return shift_right(a, b)
        case AluOp.MUL:
            return a * b
        case AluOp.RSHR:
            # Beyond 32 places the rounded result of any int32 is 0, to the left nothing is kept.
            return rounded_shift(a, min(max(b, -32), 33))
        case AluOp.MULH:
            return (a * b + (1 << 30)) >> 31


def shift_right(a: int, b: int) -> int:
    """Arithmetic right shift of an int32; a negative count shifts left. Counts beyond 32 act as 32."""
    b = min(max(b, -32), 32)
    return a >> b if b >= 0 else a << -b
