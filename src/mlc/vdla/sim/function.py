"""The functional simulator: what a stream computes, one numpy or BLAS call for many steps.

Inputs and weights are kept as float32, in which every product of two int8 and every sum of up to 2**24 is exact: BLAS
then sums int8 products without error as long as no sum is longer than ``_exact_products`` allows. The accumulator is
int32 and wraps.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Alu, AluOp, Finish, Gemm, GemmMode, Instruction, Load, Mem, Store, handlers, unpack_uop
from mlc.vdla.isa.fields import MEMORIES
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.plan import AluPlan, GemmPlan, Product, plan_alu, plan_gemm
from mlc.vdla.sim.scalar import outside
from mlc.vdla.sim.work import in_instruction

Int32 = npt.NDArray[np.int32]
Float = npt.NDArray[np.float32]

# A plan, and where its indices begin in accumulators, inputs and weights.
_Placed = tuple[GemmPlan, int, int, int]
_NOTHING = GemmPlan(np.empty(0, np.int64), (), (0, 0, 0))

# Multiplications of a product that OpenBLAS still does on the calling thread.
_ALONE = 1 << 18

# Kept of each kind; a network has some hundreds.
_MOST_PLANS = 4096


class Functional:
    """On-chip memories and how instructions change them, in the order in which they are given.

    Args:
        config: the accelerator.
        dram: its external memory; transfers read and write it.
    """

    def __init__(self, config: VdlaConfig, dram: Dram) -> None:
        self.config = config
        self.dram = dram
        # Weights as [in, out], the form in which they are multiplied.
        self._inp = np.zeros((config.inp_depth, config.batch, config.block_in), np.float32)
        self._wgt = np.zeros((config.wgt_depth, config.block_in, config.block_out), np.float32)
        # Plans as seen from the least index of each memory, and what instructions make of them.
        self._plans: dict[tuple[object, ...], GemmPlan] = {}
        self._placed: dict[tuple[object, ...], _Placed] = {}
        self._alus: dict[tuple[object, ...], AluPlan] = {}
        # Products of one sum that float32 holds exactly: block_in of them are at most 2**14 each.
        self._exact_products = max((1 << 24) // (1 << 14) // config.block_in, 1)
        self._float: type[np.floating[Any]] = np.float32 if config.block_in <= 1 << 10 else np.float64
        self._do = handlers(self)
        self.reset()

    def reset(self) -> None:
        """Clears the on-chip memories; plans are kept."""
        config = self.config
        self._inp[:] = 0
        self._wgt[:] = 0
        self.acc = np.zeros((config.acc_depth, config.batch, config.block_out), np.int32)
        self.uop = np.zeros(config.uop_depth, np.uint32)

    @property
    def inp(self) -> npt.NDArray[np.int8]:
        """A copy of the input memory, int8[depth, batch, block_in]."""
        return self._inp.astype(np.int8)

    @property
    def wgt(self) -> npt.NDArray[np.int8]:
        """A copy of the weight memory, int8[depth, block_out, block_in]."""
        return self._wgt.transpose(0, 2, 1).astype(np.int8)

    def run(self, instructions: Iterable[Instruction]) -> None:
        """Executes a stream in its order, which for a valid stream is what any legal overlap computes.

        Raises:
            DeviceError: an index outside a memory; the message says in which instruction.
        """
        do = self._do
        for number, instruction in enumerate(instructions):
            try:
                do[type(instruction)](instruction)
            except DeviceError as error:
                raise in_instruction(number, instruction, error) from error

    def step(self, instruction: Instruction) -> None:
        """Executes one instruction; a DeviceError is an index outside a memory."""
        self._do[type(instruction)](instruction)

    def load(self, x: Load) -> None:
        """DRAM to chip, with zeros around."""
        if x.x_size == 0:
            return
        rows, columns = x.pad_top + x.y_size + x.pad_bottom, x.pad_left + x.x_size + x.pad_right
        memory, element, dtype = self._form(x.mem)
        first, last = x.sram_base, x.sram_base + rows * columns - 1
        if last >= len(memory):
            raise outside(MEMORIES[x.mem].sram, first, last, len(memory))
        source = self.dram.rows(x.dram_base, x.y_size, x.x_size, x.x_stride, element, dtype)
        block = memory[first : last + 1].reshape(rows, columns, *memory.shape[1:])
        if (rows, columns) != (x.y_size, x.x_size):
            block[:] = 0
            block = block[x.pad_top : x.pad_top + x.y_size, x.pad_left : x.pad_left + x.x_size]
        block[...] = source.swapaxes(-1, -2) if x.mem is Mem.WGT else source

    def store(self, x: Store) -> None:
        """Chip to DRAM, narrowed for OUT."""
        if x.x_size == 0:
            return
        first, last = x.sram_base, x.sram_base + x.y_size * x.x_size - 1
        memory, element, dtype = self._form(x.mem)
        if last >= len(memory):
            raise outside(MEMORIES[x.mem].sram, first, last, len(memory))
        target = self.dram.rows(x.dram_base, x.y_size, x.x_size, x.x_stride, element, dtype)
        values = self.acc[first : last + 1].reshape(target.shape)
        if x.mem is Mem.OUT:
            values = np.minimum(np.maximum(rounded_shift(values, x.shift), 0 if x.relu else -128), 127)
        if x.x_stride >= x.x_size:
            target[...] = values
        else:  # rows overlap: a later one is written over an earlier one
            for row, content in zip(target, values, strict=True):
                row[...] = content

    def gemm(self, x: Gemm) -> None:
        """Products of elements, summed in the accumulator."""
        uops = self._uops(x)
        factors = (x.dst_out, x.dst_in, x.src_out, x.src_in, x.wgt_out, x.wgt_in)
        key = (uops.tobytes(), x.mode, x.iter_out, x.iter_in, factors)
        placed = self._placed.get(key)
        if placed is None:
            placed = self._place(x, uops, key[1:])
            if len(self._placed) >= _MOST_PLANS:
                self._placed.clear()
            self._placed[key] = placed
        plan, dst, src, wgt = placed
        acc, inputs, weights = self.acc[dst:], self._inp[src:], self._wgt[wgt:]
        if len(plan.zeroed):
            acc[plan.zeroed] = 0
        for product in plan.products:
            self._multiply(product, acc, inputs, weights)

    def alu(self, x: Alu) -> None:
        """Lane-wise operations in the accumulator."""
        uops = self._uops(x)
        key = (uops.tobytes(), x.use_imm, x.iter_out, x.iter_in, x.dst_out, x.dst_in, x.src_out, x.src_in)
        plan = self._alus.get(key)
        if plan is None:
            plan = plan_alu(x, uops, self.config)
            if len(self._alus) >= _MOST_PLANS:
                self._alus.clear()
            self._alus[key] = plan
        acc = self.acc
        for dst, src in plan.runs:
            acc[dst] = alu_lanes(x.op, acc[dst], np.int32(x.imm) if x.use_imm else acc[src])

    def finish(self, x: Finish) -> None:
        """Changes nothing."""

    def _multiply(self, product: Product, acc: Int32, inputs: Float, weights: Float) -> None:
        rows, length = product.src.shape
        columns = product.wgt.shape[1]
        batch, block_in, block_out = self.config.batch, self.config.block_in, self.config.block_out
        fresh = product.fresh
        for begin in range(0, length, self._exact_products):
            src = product.src[:, begin : begin + self._exact_products]
            wgt = product.wgt[begin : begin + self._exact_products]
            depth = wgt.shape[0] * block_in
            # [P, R, b, i] -> [P b, R i], [R, O, i, o] -> [R i, O o]; without copies where an extent is one.
            left = inputs.take(src, axis=0).swapaxes(1, 2).reshape(rows * batch, depth)
            right = weights.take(wgt, axis=0).swapaxes(1, 2).reshape(depth, columns * block_out)
            sums = self._matmul(left, right).reshape(rows, batch, columns, block_out).swapaxes(1, 2)
            if fresh:
                acc[product.dst] = sums
            else:
                acc[product.dst] += sums.astype(np.int32)
            fresh = False

    def _matmul(self, left: Float, right: Float) -> npt.NDArray[np.floating[Any]]:
        """The product, on one thread: in pieces so small that BLAS does not share them out.

        They take microseconds; on a machine that is busy otherwise, threads that wait for each other make it 20 times
        slower, and there is no portable way to tell BLAS.
        """
        rows, depth = left.shape
        columns = right.shape[1]
        piece = max(_ALONE // (depth * columns), 1)
        whole = rows - rows % piece
        sums = np.empty((rows, columns), self._float)
        if whole:
            pieces = left[:whole].reshape(-1, piece, depth)
            np.matmul(pieces, right, out=sums[:whole].reshape(-1, piece, columns), dtype=self._float)
        if whole < rows:
            np.matmul(left[whole:], right, out=sums[whole:], dtype=self._float)
        return sums

    def _uops(self, x: Gemm | Alu) -> npt.NDArray[np.uint32]:
        if x.uop_end > len(self.uop) and x.uop_end > x.uop_bgn:
            raise outside("uop", x.uop_bgn, x.uop_end - 1, len(self.uop))
        return self.uop[x.uop_bgn : x.uop_end]

    def _form(self, mem: Mem) -> tuple[npt.NDArray[np.generic], tuple[int, ...], type[np.generic]]:
        """The on-chip memory behind a memory id, and shape and type of its element in DRAM."""
        config = self.config
        match mem:
            case Mem.UOP:
                return self.uop, (), np.uint32
            case Mem.WGT:
                return self._wgt, (config.block_out, config.block_in), np.int8
            case Mem.INP:
                return self._inp, (config.batch, config.block_in), np.int8
            case Mem.ACC:
                return self.acc, (config.batch, config.block_out), np.int32
            case Mem.OUT | Mem.ACC8:
                return self.acc, (config.batch, config.block_out), np.int8

    def _place(self, x: Gemm, uops: npt.NDArray[np.uint32], loops: tuple[object, ...]) -> _Placed:
        """The plan of a GEMM, shared by all that differ only in where they begin in each memory."""
        if not len(uops):
            return _NOTHING, 0, 0, 0
        dst, src, wgt, first = unpack_uop(uops, self.config)
        if x.mode is GemmMode.ZERO:
            src = wgt = np.zeros_like(dst)
        bases = (int(dst.min()), int(src.min()), int(wgt.min()))
        relative = (dst - bases[0], src - bases[1], wgt - bases[2], first)
        key = (np.stack(relative).tobytes(), loops)
        plan = self._plans.get(key)
        if plan is None:
            plan = plan_gemm(x, *relative)
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            self._plans[key] = plan
        for name, base, reach in zip(("acc", "inp", "wgt"), bases, plan.reach, strict=True):
            depth = getattr(self.config, f"{name}_depth")
            if base + reach >= depth:
                raise outside(name, base, base + reach, depth)
        return plan, *bases


def rounded_shift(values: Int32, count: int) -> Int32:
    """Right shift of int32 lanes with halves rounded up, without overflow: the last bit that falls out is added."""
    if count == 0:
        return values
    found: Int32 = (values >> count) + ((values >> (count - 1)) & 1)
    return found


def alu_lanes(op: AluOp, a: Int32, b: Int32 | np.int32) -> Int32:
    """One ALU operation on arrays of lanes; the result is cut to 32 bits."""
    match op:
        case AluOp.MIN:
            return np.minimum(a, b)
        case AluOp.MAX:
            return np.maximum(a, b)
        case AluOp.ADD:
            return np.add(a, b)
        case AluOp.MUL:
            return np.multiply(a, b)
        case AluOp.MULH:
            return ((a.astype(np.int64) * b + (1 << 30)) >> 31).astype(np.int32)
        case AluOp.SHR | AluOp.RSHR:
            return _shift(a.astype(np.int64), np.asarray(b, np.int64), op is AluOp.RSHR)


def _shift(a: npt.NDArray[np.int64], b: npt.NDArray[np.int64], rounded: bool) -> Int32:
    """Right by ``b``, left where it is negative; counts beyond 33 places change nothing more."""
    right = np.clip(b, 0, 33)
    half = np.where(b > 0, np.left_shift(1, np.maximum(right - 1, 0)), 0) if rounded else 0
    found: Int32 = np.left_shift((a + half) >> right, np.clip(-b, 0, 32)).astype(np.int32)
    return found
