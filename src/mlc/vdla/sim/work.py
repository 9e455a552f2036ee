"""What every instruction of a stream asks of the machine: bytes and elements of a transfer, cycles of a computation.

Times are independent of the data, with one exception: micro-ops decide how often an accumulator is used again too
early. So the loads of micro-ops, and nothing else, are carried out here.

Everything is worked out for all instructions of an opcode at once, on columns of their fields.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import Alu, Gemm, GemmMode, Instruction, Load, Mem, Store, Unit, columns_of, element_bytes, handlers
from mlc.vdla.isa.fields import MEMORIES
from mlc.vdla.isa.legal import Columns
from mlc.vdla.program import Bound
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.scalar import outside
from mlc.vdla.sim.stalls import Loops, stalls_of

# The token queues by number: name, who pushes, who pops.
QUEUES = (
    ("ld->cmp", Unit.LD, Unit.CMP),
    ("cmp->ld", Unit.CMP, Unit.LD),
    ("cmp->st", Unit.CMP, Unit.ST),
    ("st->cmp", Unit.ST, Unit.CMP),
)

NOP_CYCLES = 1

Ints = npt.NDArray[np.int64]
Where = npt.NDArray[np.intp]


class Work:
    """The stream as columns, one entry an instruction.

    Args:
        count: instructions; each one a NOP on LD without tokens, until something else is said.

    Attributes:
        unit: int8, which unit runs it.
        moves: a transfer that occupies the DMA engine (no NOP).
        stores: its direction is chip to DRAM.
        cycles: of a computation, a NOP or FINISH.
        bursts: that its bytes are cut into.
        elements: on-chip elements read or written, padding included.
        mem: int8, memory id of a load or store that moves something, else -1.
        address, rows, row_bytes, pitch: what it moves in DRAM, in bytes: where the first row begins, how many, how
            long, how far from one's start to the next one's.
        macs: steps that multiply.
        pop_prev, pop_next, push_prev, push_next: tokens that it takes and gives.
    """

    def __init__(self, count: int) -> None:
        self.unit, self.mem = np.zeros(count, np.int8), np.full(count, -1, np.int8)
        self.moves, self.stores = np.zeros((2, count), np.bool_)
        self.pop_prev, self.pop_next, self.push_prev, self.push_next = np.zeros((4, count), np.bool_)
        self.cycles, self.bursts, self.elements, self.macs = np.zeros((4, count), np.int64)
        self.address, self.rows, self.row_bytes, self.pitch = np.zeros((4, count), np.int64)

    def __len__(self) -> int:
        return len(self.unit)

    @property
    def nbytes(self) -> Ints:
        """Bytes that each instruction moves to or from DRAM."""
        return self.rows * self.row_bytes


def work_of(instructions: Sequence[Instruction], config: VdlaConfig, dram: Dram) -> Work:
    """Reads a stream once.

    Args:
        instructions: with absolute addresses.
        config: the accelerator.
        dram: where loads of micro-ops find them.
    Raises:
        DeviceError: micro-ops from outside a memory, a token toward a unit that does not exist; the message names the
            first such instruction.
        ProgramError: something in the stream is not an instruction.
    """
    reader = _Reader(config, dram, Work(len(instructions)))
    read = handlers(reader)
    # Instructions of a program are not made anew only because they lie elsewhere.
    addresses = instructions.addresses if isinstance(instructions, Bound) else np.full(len(instructions), -1)
    own = instructions.instructions if isinstance(instructions, Bound) else instructions
    for form, where, columns in columns_of(own, config):
        if "dram_base" in columns:
            columns["dram_base"] = np.where(addresses[where] < 0, columns["dram_base"], addresses[where])
        read[form.record](where, columns)
        reader.tokens(where, columns)
    reader.stall()
    if reader.faults:
        number = min(reader.faults)
        raise in_instruction(number, instructions[number], reader.faults[number])
    return reader.work


def in_instruction(number: int, instruction: Instruction, error: DeviceError) -> DeviceError:
    """The error with the instruction that it happened in."""
    return DeviceError(f"instruction {number} ({named(instruction)}): {error.message}", hint=error.hint)


def named(instruction: Instruction) -> str:
    """An instruction in two words, for messages and traces."""
    kind = type(instruction).__name__.upper()
    match instruction:
        case Load() | Store():
            return "NOP" if instruction.x_size == 0 else f"{kind} {instruction.mem.name}"
        case Gemm():
            return f"{kind} {instruction.mode.name}"
        case Alu():
            return f"{kind} {instruction.op.name}"
        case _:
            return kind


class _Reader:
    """Fills the columns of a stream's work, opcode after opcode, then what depends on the order of them all.

    ``faults`` has the first instruction with a fault of every kind.
    """

    def __init__(self, config: VdlaConfig, dram: Dram, work: Work) -> None:
        self.config = config
        self.dram = dram
        self.work = work
        self.faults: dict[int, DeviceError] = {}
        self._sizes = np.array([element_bytes(mem, config) for mem in Mem], np.int64)
        self._loaders = np.array([-1 if info.load is None else info.load for info in MEMORIES.values()], np.int8)
        # GEMMs that add, as places and rows of _KERNEL's fields; loads of micro-ops.
        self._adding: tuple[Where, list[tuple[int, ...]]] = (np.empty(0, np.intp), [])
        self._uop_loads: list[tuple[int, ...]] = []

    def load(self, where: Where, c: Columns) -> None:
        self.work.unit[where] = self._loaders[c["mem"]]
        elements = (c["pad_top"] + c["y_size"] + c["pad_bottom"]) * (c["pad_left"] + c["x_size"] + c["pad_right"])
        self._transfer(where, c, elements)
        which = (c["mem"] == Mem.UOP) & (c["x_size"] > 0)
        self._uop_loads = _rows(where[which], *(c[name][which] for name in _UOP_LOAD))

    def store(self, where: Where, c: Columns) -> None:
        self.work.unit[where] = Unit.ST
        self.work.stores[where] = c["x_size"] > 0
        self._transfer(where, c, c["y_size"] * c["x_size"])

    def gemm(self, where: Where, c: Columns) -> None:
        adds = c["mode"] != GemmMode.ZERO
        steps = self._steps(where, c)
        self.work.cycles[where] = 1 + steps + self.config.gemm_fill
        self.work.macs[where] = np.where(adds, steps, 0)
        starts = c["mode"][adds] == GemmMode.SET
        self._adding = where[adds], _rows(starts, *(c[name][adds] for name in _KERNEL))

    def alu(self, where: Where, c: Columns) -> None:
        each = np.where(c["use_imm"], 1, 2)
        self.work.cycles[where] = each * self._steps(where, c) + self.config.alu_fill

    def finish(self, where: Where, c: Columns) -> None:
        self.work.unit[where] = Unit.CMP
        self.work.cycles[where] = NOP_CYCLES

    def tokens(self, where: Where, c: Columns) -> None:
        """The token flags; only CMP has a unit on either side."""
        unit = self.work.unit[where]
        for name in ("pop_prev", "pop_next", "push_prev", "push_next"):
            getattr(self.work, name)[where] = flags = c[name] != 0
            end, side = (Unit.LD, "previous") if name.endswith("prev") else (Unit.ST, "next")
            for number in where[flags & (unit == end)][:1].tolist():
                error = DeviceError(f"{end.name} has no {side} unit to exchange tokens with")
                self.faults.setdefault(number, error)

    def stall(self) -> None:
        """Carries out the loads of micro-ops, and adds what GEMMs wait for their own sums with what is there then."""
        where, rows = self._adding
        uops = np.zeros(self.config.uop_depth, np.uint32)
        loops: list[Loops] = []
        contents: list[npt.NDArray[np.uint32]] = []
        which: list[int] = []  # kernel of every GEMM
        bounds = np.searchsorted(where, [load[0] for load in self._uop_loads]).tolist()
        for begin, end, load in zip([0, *bounds], [*bounds, len(rows)], [*self._uop_loads, None], strict=True):
            known: dict[tuple[int, ...], int] = {}
            for row in rows[begin:end]:
                number = known.setdefault(row, len(loops))
                if number == len(loops):
                    *around, uop_bgn, uop_end = row
                    loops.append(Loops._make(around))
                    contents.append(uops[uop_bgn:uop_end].copy())
                which.append(number)
            if load is not None and not self._load_uops(uops, *load):
                return
        self.work.cycles[where] += stalls_of(loops, contents, self.config)[which]

    def _transfer(self, where: Where, c: Columns, elements: Ints) -> None:
        """What a load or store moves; nothing, as a NOP, where its rows are empty."""
        work, size = self.work, self._sizes[c["mem"]]
        moves = c["x_size"] > 0
        work.moves[where] = moves
        work.mem[where] = np.where(moves, c["mem"], -1)
        work.cycles[where] = np.where(moves, 0, NOP_CYCLES)
        work.elements[where] = np.where(moves, elements, 0)
        work.address[where] = c["dram_base"] * size
        work.rows[where] = rows = c["y_size"]
        work.row_bytes[where] = row_bytes = c["x_size"] * size
        work.pitch[where] = c["x_stride"] * size
        # Rows that follow each other without a gap are one run.
        together = (c["x_stride"] == c["x_size"]) | (rows == 1)
        runs, run = np.where(together, 1, rows), np.where(together, rows * row_bytes, row_bytes)
        work.bursts[where] = runs * -(-run // self.config.burst_bytes)

    def _steps(self, where: Where, c: Columns) -> Ints:
        """Steps of computations, whose micro-ops must be there."""
        self.work.unit[where] = Unit.CMP
        begin, end, depth = c["uop_bgn"], c["uop_end"], self.config.uop_depth
        for at in np.flatnonzero((end > depth) & (end > begin))[:1].tolist():
            self.faults[int(where[at])] = outside("uop", int(begin[at]), int(end[at]) - 1, depth)
        return np.asarray(c["iter_out"] * c["iter_in"] * np.maximum(end - begin, 0))

    def _load_uops(
        self, uops: npt.NDArray[np.uint32], number: int, first: int, base: int, rows: int, columns: int, stride: int
    ) -> bool:
        """Carries out a load of micro-ops; False if it has a fault."""
        last = first + rows * columns - 1
        try:
            if last >= len(uops):
                raise outside("uop", first, last, len(uops))
            content = self.dram.rows(base, rows, columns, stride, (), np.uint32)
        except DeviceError as error:
            self.faults[number] = error
            return False
        uops[first : last + 1].reshape(content.shape)[...] = content
        return True


_UOP_LOAD = ("sram_base", "dram_base", "y_size", "x_size", "x_stride")
_KERNEL = ("iter_out", "iter_in", "dst_out", "dst_in", "uop_bgn", "uop_end")


def _rows(*columns: npt.NDArray[Any]) -> list[tuple[int, ...]]:
    """Columns as rows of Python's integers."""
    return list(zip(*(column.tolist() for column in columns), strict=True))
