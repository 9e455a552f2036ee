"""Races, reads of nothing, and accesses out of bounds, found by one walk over the stream.

Of every on-chip element, and of every 16-byte granule of DRAM, the state is the last instruction that wrote it and, for
each unit, the last that read it. An access is in order when the clock of its instruction has reached the conflicting
ones. Each memory is written by one unit only, and a unit runs in order, so two writes never race.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from mlc.errors import ProgramError
from mlc.vdla.check.access import Accesses, accesses
from mlc.vdla.check.places import Block, Places, State, end_of, granules, nth, read, run, write
from mlc.vdla.check.tokens import Clock
from mlc.vdla.check.violation import Kind, Violation
from mlc.vdla.isa import Alu, Finish, Gemm, Load, Mem, Store, Unit, element_bytes, handlers, is_nop, memory_depth
from mlc.vdla.isa.fields import MEMORIES
from mlc.vdla.program import Program

GRANULE = 16  # bytes of DRAM that share one state

# States of `written`; an instruction's is 1 + its index, as clocks have it. What was never written is later than any
# clock, so that one comparison of the greatest state in sight finds both faults.
_NEVER, _INITIALLY = np.iinfo(np.int32).max, 0


class _Memory:
    """The state of one memory."""

    def __init__(self, name: str, size: int, writer: Unit, readers: Sequence[Unit], initially: int) -> None:
        self.name = name
        self.writer = writer
        self.written: State = np.zeros(size, np.int32) if initially == 0 else np.full(size, initially, np.int32)
        self.readers = {unit: np.zeros(size, np.int32) for unit in readers if unit is not writer}


class Walk:
    """One walk; ``violations`` is what it found, at most ``limit`` of them.

    Args:
        program: what to walk over; verified.
        clocks: of each of its instructions.
        races: whether to report races, which is of no use where tokens do not match.
        limit: where to stop.
    """

    def __init__(self, program: Program, clocks: Sequence[Clock], *, races: bool, limit: int) -> None:
        self.program = program
        self.config = program.config
        self.clocks = clocks
        self.races = races
        self.limit = limit
        self.violations: list[Violation] = []
        self.handlers = handlers(self, "_")
        self.places = program.default_places()
        self.srams = {
            name: _Memory(name, getattr(self.config, f"{name}_depth"), writer, readers, _NEVER)
            for name, writer, readers in _SRAMS
        }
        self.dram = self._dram()
        self.outputs = {
            number: np.zeros(spec.nbytes, np.bool_) for number, spec in enumerate(program.buffers) if spec.kind == "out"
        }
        self.uops = np.zeros(self.config.uop_depth, np.uint32)
        self.contents: dict[int, npt.NDArray[np.uint32] | None] = {}
        self.plans: dict[tuple[Any, ...], Accesses] = {}

    def walk(self) -> list[Violation]:
        """The violations, in the order of the stream."""
        for at, instruction in enumerate(self.program.instructions):
            self.handlers[type(instruction)](at, instruction)
            if len(self.violations) >= self.limit:
                break
        else:
            self._unwritten()
        return self.violations

    def _cover(self, written: npt.NDArray[np.bool_], store: Store) -> None:
        """Marks the bytes of an output that a store writes."""
        size = element_bytes(store.mem, self.config)
        first = store.dram_base * size + np.arange(store.y_size) * (store.x_stride * size)
        if store.x_stride == store.x_size:
            written[first[0] : first[-1] + store.x_size * size] = True
        else:
            written[first[:, None] + np.arange(store.x_size * size)] = True

    def _unwritten(self) -> None:
        """Reports outputs with bytes that no store has reached."""
        for number, written in self.outputs.items():
            if not written.all():
                missing = len(written) - int(written.sum())
                what = f"{missing} of the {len(written)} bytes of output {self.program.buffers[number].name!r}"
                what += f" are never written, byte {int(written.argmin())} the first of them"
                self._report(Kind.UNWRITTEN, None, max(len(self.program.instructions) - 1, 0), what)

    def _load(self, at: int, load: Load) -> None:
        if is_nop(load):
            return
        rows = load.pad_top + load.y_size + load.pad_bottom
        count = rows * (load.pad_left + load.x_size + load.pad_right)
        if not self._fits(at, load.mem, load.sram_base, count):
            return
        if load.y_size and (source := self._dram_places(at, load)) is not None:
            self._read(at, load.unit, self.dram, source)
        if count:
            sram = self.srams[MEMORIES[load.mem].sram]
            self._write(at, sram, run(load.sram_base, count))
        if load.mem is Mem.UOP:
            self._load_uops(at, load)

    def _store(self, at: int, store: Store) -> None:
        count = store.y_size * store.x_size
        if not count or not self._fits(at, store.mem, store.sram_base, count):
            return
        self._read(at, Unit.ST, self.srams["acc"], run(store.sram_base, count))
        number = self.program.relocations.get(at)
        if number is not None and (spec := self.program.buffers[number]).kind not in ("out", "temp"):
            self._report(Kind.READONLY, None, at, f"buffer {spec.name!r} of kind {spec.kind} is stored to")
        elif (target := self._dram_places(at, store)) is not None:
            self._write(at, self.dram, target)
            if number in self.outputs:
                self._cover(self.outputs[number], store)

    def _gemm(self, at: int, gemm: Gemm) -> None:
        self._compute(at, gemm, _GEMM_KEY(gemm))

    def _alu(self, at: int, alu: Alu) -> None:
        self._compute(at, alu, _ALU_KEY(alu))

    def _finish(self, at: int, instruction: Finish) -> None:
        """Touches no memory."""

    def _compute(self, at: int, instruction: Gemm | Alu, key: tuple[Any, ...]) -> None:
        begin, end = instruction.uop_bgn, instruction.uop_end
        if begin == end:
            return
        self._read(at, Unit.CMP, self.srams["uop"], run(begin, end - begin))
        uops = self.uops[begin:end]
        key = (*key, uops.tobytes())
        plan = self.plans.get(key)
        if plan is None:
            try:
                plan = accesses(instruction, uops, self.config)
            except ProgramError as error:
                plan = Accesses(beyond=error.message)
            self.plans[key] = plan
        if plan.beyond:
            self._report(Kind.BOUNDS, None, at, plan.beyond)
        for memory, places in plan.reads:
            self._read(at, Unit.CMP, self.srams[memory], places)
        for memory, places in plan.writes:
            self._write(at, self.srams[memory], places)

    def _read(self, at: int, unit: Unit, memory: _Memory, places: Places) -> None:
        last = read(memory.written, places)
        if not last.size:
            return
        known = at if unit is memory.writer else self.clocks[at][memory.writer]
        if last.max() > known:
            if last.max() == _NEVER:
                place = nth(places, int(last.argmax()))
                self._report(Kind.UNINIT, None, at, f"{self._at(memory, place)} is read, and nothing wrote it")
            last = np.where(last == _NEVER, _INITIALLY, last)
            if last.max() > known:
                self._race(Kind.RAW, at, memory, places, last, unit)
        if unit is not memory.writer:
            write(memory.readers[unit], places, at + 1)

    def _write(self, at: int, memory: _Memory, places: Places) -> None:
        for unit, readers in memory.readers.items():
            last = read(readers, places)
            if last.max() > self.clocks[at][unit]:
                self._race(Kind.WAR, at, memory, places, last, unit)
        write(memory.written, places, at + 1)

    def _race(self, kind: Kind, at: int, memory: _Memory, places: Places, last: State, reader: Unit) -> None:
        """Reports a race with the latest of the conflicting instructions."""
        if not self.races:
            return
        position = int(last.argmax())
        where = self._at(memory, nth(places, position))
        if kind is Kind.RAW:
            what = f"{reader.name} may read {where} before {memory.writer.name} has written it"
        else:
            what = f"{memory.writer.name} may overwrite {where} before {reader.name} has read it"
        self._report(kind, int(last.flat[position]) - 1, at, what)

    def _fits(self, at: int, mem: Mem, start: int, count: int) -> bool:
        depth = memory_depth(mem, self.config)
        if start + count > depth:
            what = f"{MEMORIES[mem].sram}[{start}:{start + count}] of {depth} elements"
            self._report(Kind.BOUNDS, None, at, what)
        return start + count <= depth

    def _load_uops(self, at: int, load: Load) -> None:
        """Keeps what micro-ops now lie on chip, so that later instructions can be understood."""
        number = self.program.relocations.get(at)
        if number is None:
            return  # reported already
        words = self._words(number)
        if words is None:
            self._report(Kind.UNKNOWN, None, at, "the micro-ops come from a buffer whose contents are not known")
            return
        index = load.dram_base + load.x_stride * np.arange(load.y_size)[:, None] + np.arange(load.x_size)
        if not index.size or index.max() < len(words):
            self.uops[load.sram_base : load.sram_base + index.size] = words[index].ravel()

    def _words(self, number: int) -> npt.NDArray[np.uint32] | None:
        """A buffer's contents as micro-ops, or None where the program does not have them."""
        if number not in self.contents:
            data = self.program.contents(self.program.buffers[number])
            words = None if data is None else np.frombuffer(data[: len(data) // 4 * 4], "<u4").astype(np.uint32)
            self.contents[number] = words
        return self.contents[number]

    def _dram_places(self, at: int, move: Load | Store) -> Places | None:
        """The granules that a transfer touches, or None after reporting that it leaves its buffer or has none."""
        size = element_bytes(move.mem, self.config)
        start, pitch, width = move.dram_base * size, move.x_stride * size, move.x_size * size
        end = start + (move.y_size - 1) * pitch + width
        number = self.program.relocations.get(at)
        if number is None:
            self._report(Kind.ABSOLUTE, None, at, f"byte {start} of DRAM, whatever lies there: nothing relocates it")
            return None
        spec, base = self.program.buffers[number], self.places[number]
        if end > spec.nbytes:
            self._report(Kind.BOUNDS, None, at, f"byte {end - 1} of buffer {spec.name!r}, which has {spec.nbytes}")
            return None
        found = granules(base + start, move.y_size, pitch, width, GRANULE)
        self._grow(end_of(found) if isinstance(found, Block) else int(found[-1]) + 1)
        return found

    def _dram(self) -> _Memory:
        """DRAM as it is before the program: buffers that it has to fill itself hold nothing yet."""
        specs = list(zip(self.places, self.program.buffers, strict=True))
        end = max((place + spec.nbytes for place, spec in specs), default=0)
        dram = _Memory("dram", -(-end // GRANULE), Unit.ST, tuple(Unit), _INITIALLY)
        for place, spec in specs:
            if spec.kind in ("out", "temp"):
                dram.written[place // GRANULE : -(-(place + spec.nbytes) // GRANULE)] = _NEVER
        return dram

    def _grow(self, size: int) -> None:
        """Makes DRAM's state longer where the last row's pitch reaches further."""
        if size > len(self.dram.written):
            missing = max(size - len(self.dram.written), len(self.dram.written) // 2)  # seldom, so in large steps
            self.dram.written = np.pad(self.dram.written, (0, missing))
            self.dram.readers = {unit: np.pad(state, (0, missing)) for unit, state in self.dram.readers.items()}

    def _at(self, memory: _Memory, place: int) -> str:
        """A place as reports call it."""
        if memory is not self.dram:
            return f"{memory.name}[{place}]"
        byte = place * GRANULE
        for start, spec in zip(self.places, self.program.buffers, strict=True):
            if start - GRANULE < byte < start + spec.nbytes:
                return f"byte {max(byte - start, 0)} of buffer {spec.name!r}"
        raise AssertionError(f"byte {byte} of DRAM belongs to no buffer")

    def _report(self, kind: Kind, first: int | None, second: int, what: str) -> None:
        self.violations.append(Violation(kind, first, second, what))


def _srams() -> tuple[tuple[str, Unit, tuple[Unit, ...]], ...]:
    """Each on-chip memory with the unit that writes it and those that read it, by the table of memories."""
    result = []
    for name in ("inp", "wgt", "uop", "acc"):
        users = [info for info in MEMORIES.values() if info.sram == name]
        (writer,) = {info.load for info in users if info.load is not None}
        stores = {info.store for info in users if info.store is not None}
        result.append((name, writer, (Unit.CMP, *stores)))
    return tuple(result)


_SRAMS = _srams()
_GEMM_KEY = attrgetter("mode", "iter_out", "iter_in", "dst_out", "dst_in", "src_out", "src_in", "wgt_out", "wgt_in")
_ALU_KEY = attrgetter("use_imm", "iter_out", "iter_in", "dst_out", "dst_in", "src_out", "src_in")
