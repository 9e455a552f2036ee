"""What every instruction of a stream asks of the machine: bytes and elements of a transfer, cycles of a computation.

Times are independent of the data, with one exception: micro-ops decide how often an accumulator is used again too
early. So the loads of micro-ops, and nothing else, are carried out here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from operator import eq

import numpy as np
import numpy.typing as npt

from mlc.errors import DeviceError
from mlc.vdla.config import VdlaConfig
from mlc.vdla.isa import (
    Alu,
    Finish,
    Gemm,
    GemmMode,
    Instruction,
    Load,
    Mem,
    Store,
    Unit,
    element_bytes,
    handlers,
)
from mlc.vdla.isa.fields import MEMORIES, uop_layout
from mlc.vdla.sim.dram import Dram
from mlc.vdla.sim.plan import steps_of
from mlc.vdla.sim.scalar import outside

# The token queues by number: name, who pushes, who pops.
QUEUES = (
    ("ld->cmp", Unit.LD, Unit.CMP),
    ("cmp->ld", Unit.CMP, Unit.LD),
    ("cmp->st", Unit.CMP, Unit.ST),
    ("st->cmp", Unit.ST, Unit.CMP),
)
_NEIGHBOURS = {Unit.LD: (None, Unit.CMP), Unit.CMP: (Unit.LD, Unit.ST), Unit.ST: (Unit.CMP, None)}

NOP_CYCLES = 1


@dataclass
class Work:
    """The stream as columns, one entry an instruction.

    Attributes:
        unit: which unit runs it.
        moves: a transfer that occupies the DMA engine (no NOP).
        stores: its direction is chip to DRAM.
        cycles: of a computation, a NOP or FINISH.
        nbytes: moved to or from DRAM.
        bursts: that they are cut into.
        elements: on-chip elements read or written, padding included.
        mem: memory id of a load or store that moves something, else -1.
        macs: steps that multiply.
        pops, pushes: numbers of the token queues.
    """

    unit: list[int] = field(default_factory=list)
    moves: list[bool] = field(default_factory=list)
    stores: list[bool] = field(default_factory=list)
    cycles: list[int] = field(default_factory=list)
    nbytes: list[int] = field(default_factory=list)
    bursts: list[int] = field(default_factory=list)
    elements: list[int] = field(default_factory=list)
    mem: list[int] = field(default_factory=list)
    macs: list[int] = field(default_factory=list)
    pops: list[tuple[int, ...]] = field(default_factory=list)
    pushes: list[tuple[int, ...]] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.unit)


def work_of(instructions: Sequence[Instruction], config: VdlaConfig, dram: Dram) -> Work:
    """Reads a stream once, in its order.

    Args:
        instructions: with absolute addresses.
        config: the accelerator.
        dram: where loads of micro-ops find them.
    Raises:
        DeviceError: micro-ops from outside a memory, a token toward a unit that does not exist; the message names the
            instruction.
    """
    reader = _Reader(config, dram)
    read = handlers(reader)
    entries: list[Entry] = []
    tokens: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
    for number, x in enumerate(instructions):
        try:
            entry = read[type(x)](x)
            entries.append(entry)
            tokens.append(reader.tokens(x, entry[0]))
        except DeviceError as error:
            raise in_instruction(number, x, error) from error
    return Work(*map(list, (*zip(*entries, strict=True), *zip(*tokens, strict=True)))) if entries else Work()


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


# The columns of Work but for the tokens.
Entry = tuple[Unit, bool, bool, int, int, int, int, int, int]


class _Reader:
    """What must be remembered from instruction to instruction: the micro-op memory, and what was worked out before."""

    def __init__(self, config: VdlaConfig, dram: Dram) -> None:
        self.config = config
        self.dram = dram
        self.uops = np.zeros(config.uop_depth, np.uint32)
        self._sizes = {mem: element_bytes(mem, config) for mem in Mem}
        self._loaders = {mem: info.load for mem, info in MEMORIES.items()}
        self._uop_slots = uop_layout(config)
        self._stalls: dict[tuple[object, ...], int] = {}
        self._known: dict[tuple[object, ...], Entry] = {}
        self._tokens: dict[tuple[Unit, bool, bool, bool, bool], tuple[tuple[int, ...], tuple[int, ...]]] = {}

    def load(self, x: Load) -> Entry:
        unit = self._loaders[x.mem]
        assert unit is not None
        if x.x_size == 0:
            return _nothing(unit)
        if x.mem is Mem.UOP:
            self._load_uops(x)
        elements = (x.pad_top + x.y_size + x.pad_bottom) * (x.pad_left + x.x_size + x.pad_right)
        return (unit, True, False, 0, *self._moved(x), elements, x.mem, 0)

    def store(self, x: Store) -> Entry:
        if x.x_size == 0:
            return _nothing(Unit.ST)
        return (Unit.ST, True, True, 0, *self._moved(x), x.y_size * x.x_size, x.mem, 0)

    def gemm(self, x: Gemm) -> Entry:
        uops = self._uops(x)
        key = (x.mode, x.iter_out, x.iter_in, x.dst_out, x.dst_in, uops.tobytes())
        entry = self._known.get(key)
        if entry is None:
            steps = steps_of(x)
            cycles = 1 + steps + self.config.gemm_fill + self._stalls_of(x, uops)
            entry = (Unit.CMP, False, False, cycles, 0, 0, 0, -1, 0 if x.mode is GemmMode.ZERO else steps)
            self._known[key] = entry
        return entry

    def alu(self, x: Alu) -> Entry:
        each = 1 if x.use_imm else 2
        self._uops(x)
        return (Unit.CMP, False, False, each * steps_of(x) + self.config.alu_fill, 0, 0, 0, -1, 0)

    def finish(self, x: Finish) -> Entry:
        return _nothing(Unit.CMP)

    def tokens(self, x: Instruction, unit: Unit) -> tuple[tuple[int, ...], tuple[int, ...]]:
        key = (unit, x.pop_prev, x.pop_next, x.push_prev, x.push_next)
        found = self._tokens.get(key)
        if found is None:
            before, after = _NEIGHBOURS[unit]
            pops = [_queue(n, unit) for n, flag in ((before, x.pop_prev), (after, x.pop_next)) if flag]
            pushes = [_queue(unit, n) for n, flag in ((before, x.push_prev), (after, x.push_next)) if flag]
            found = self._tokens[key] = (tuple(pops), tuple(pushes))
        return found

    def _moved(self, x: Load | Store) -> tuple[int, int]:
        """Bytes, and the bursts that they are cut into."""
        nbytes = x.y_size * x.x_size * self._sizes[x.mem]
        # Rows that follow each other without a gap are one run.
        together = x.x_stride == x.x_size or x.y_size == 1
        runs, run = (1, nbytes) if together else (x.y_size, x.x_size * self._sizes[x.mem])
        return nbytes, runs * -(-run // self.config.burst_bytes)

    def _uops(self, x: Gemm | Alu) -> npt.NDArray[np.uint32]:
        if x.uop_end > len(self.uops) and x.uop_end > x.uop_bgn:
            raise outside("uop", x.uop_bgn, x.uop_end - 1, len(self.uops))
        return self.uops[x.uop_bgn : x.uop_end]

    def _stalls_of(self, x: Gemm, uops: npt.NDArray[np.uint32]) -> int:
        """Cycles that a GEMM waits for its own sums.

        A step that adds to an accumulator starts no sooner than ``acc_latency`` cycles after the last step that wrote
        it; one that only writes (ZERO, the first product of SET) never waits.
        """
        if x.mode is GemmMode.ZERO or not len(uops):
            return 0
        dst_slot, _, _, first_slot = self._uop_slots
        dst = (uops >> dst_slot.low) & ((1 << dst_slot.width) - 1)
        if not _reuses(x, dst.tolist(), self.config.acc_latency):
            return 0
        first = uops >> first_slot.low if x.mode is GemmMode.SET else np.zeros_like(uops)
        dst -= dst.min()
        key = (x.iter_out, x.iter_in, x.dst_out, x.dst_in, dst.tobytes(), first.tobytes())
        stalls = self._stalls.get(key)
        if stalls is None:
            stalls = _walked_stalls(x, dst.tolist(), first.tolist(), self.config.acc_latency)
            self._stalls[key] = stalls
        return stalls

    def _load_uops(self, x: Load) -> None:
        first, last = x.sram_base, x.sram_base + x.y_size * x.x_size - 1
        if last >= len(self.uops):
            raise outside("uop", first, last, len(self.uops))
        content = self.dram.rows(x.dram_base, x.y_size, x.x_size, x.x_stride, (), np.uint32)
        self.uops[first : last + 1].reshape(content.shape)[...] = content


def _nothing(unit: Unit) -> Entry:
    return (unit, False, False, NOP_CYCLES, 0, 0, 0, -1, 0)


def _queue(producer: Unit | None, consumer: Unit | None) -> int:
    for number, (_, *ends) in enumerate(QUEUES):
        if ends == [producer, consumer]:
            return number
    unit = consumer if producer is None else producer
    assert unit is not None
    side = "next" if unit is Unit.ST else "previous"
    raise DeviceError(f"{unit.name} has no {side} unit to exchange tokens with")


def _walked_stalls(x: Gemm, indices: list[int], starts: list[int], latency: int) -> int:
    """The stalls of a GEMM that adds, step by step, but for iterations of the inner loop that are alike.

    Args:
        x: the instruction; its loops.
        indices: accumulators of its micro-ops.
        starts: whether they start sums.
        latency: of the accumulator.
    """
    known: dict[tuple[bool, _Recent], tuple[int, _Recent]] = {}
    total = 0
    recent: _Recent = ()
    for i in range(x.iter_out):
        j = 0
        while j < x.iter_in:
            entering = recent
            outer = i == 0
            if (outer, entering) not in known:
                known[outer, entering] = _inner_stalls(indices, starts if outer else None, entering, latency)
            stalls, leaving = known[outer, entering]
            recent = _moved(leaving, x.dst_in)
            # From here on every pass is like this one.
            passes = x.iter_in - j if recent == entering else 1
            total += passes * stalls
            j += passes
        if i + 1 < x.iter_out:
            # Back from one step beyond the inner loop to the start of the next outer one.
            recent = _moved(recent, x.dst_out - x.iter_in * x.dst_in)
    return total


def _reuses(x: Gemm, dst: list[int], latency: int) -> bool:
    """Whether any two steps less than the latency apart may write the same accumulator."""
    reach = latency - 1
    if len(dst) <= reach:
        return True  # they may be several iterations apart: to be looked at step by step
    if any(any(map(eq, dst[apart:], dst)) for apart in range(1, latency)):
        return True
    # From one iteration into the next: of the inner loop, or of the outer one.
    shifts = [x.dst_in] if x.iter_in > 1 else []
    shifts += [x.dst_out - (x.iter_in - 1) * x.dst_in] if x.iter_out > 1 else []
    return any(
        dst[-back] == dst[ahead] + shift
        for shift in shifts
        for back in range(1, latency)
        for ahead in range(latency - back)
    )


# Accumulators written within the latency, as (index, cycles since), sorted.
_Recent = tuple[tuple[int, int], ...]


def _moved(recent: _Recent, by: int) -> _Recent:
    """Seen from a loop iteration whose accumulators are ``by`` further on."""
    return tuple((index - by, age) for index, age in recent)


def _inner_stalls(dst: list[int], starts: list[int] | None, recent: _Recent, latency: int) -> tuple[int, _Recent]:
    """One pass over the micro-ops: the cycles it waits, and what it leaves behind."""
    written = {index: -age for index, age in recent}
    now = 0  # the cycle in which the next step could begin
    for number, index in enumerate(dst):
        if index in written and not (starts and starts[number]):
            now = max(now, written[index] + latency)
        written[index] = now
        now += 1
    left = sorted((index, now - when) for index, when in written.items() if now - when < latency)
    return now - len(dst), tuple(left)
