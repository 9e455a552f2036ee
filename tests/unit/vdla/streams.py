"""Random valid streams, and ways to break them.

Tokens are put in by a plain and slow method of its own, so that what tests with it can judge the compiler's: for every
instruction, the newest access by each other unit that it conflicts with, found in dictionaries of single elements.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

import numpy as np

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
    Unit,
    element_bytes,
    nop,
    pack_uop,
    unpack_uop,
)
from mlc.vdla.isa.fields import MEMORIES
from mlc.vdla.program import BufferSpec, Program

Element = tuple[str, int]  # a memory, or "dram", and an element, or a byte's address over 16
Queue = tuple[Unit, Unit]

# The corner of each memory that random streams use; small, so that accesses meet.
INP, WGT, ACC, UOP = 24, 8, 24, 16


def touched(program: Program) -> Iterator[tuple[set[Element], set[Element]]]:
    """What every instruction reads and writes, element by element, micro-ops excepted (only CMP touches those)."""
    uops: dict[int, tuple[int, ...]] = {}
    known = list(zip(*(field.tolist() for field in unpack_uop(program.uops, program.config)), strict=True))
    places = program.default_places()
    for at, x in enumerate(program.instructions):
        reads: set[Element] = set()
        writes: set[Element] = set()
        if isinstance(x, Load | Store) and x.x_size:
            size, sram = element_bytes(x.mem, program.config), MEMORIES[x.mem].sram
            base = places[program.relocations[at]]
            rows = [x.dram_base + r * x.x_stride for r in range(x.y_size)]
            elements = [start + c for start in rows for c in range(x.x_size)]
            dram = {("dram", b // 16) for e in elements for b in range(base + e * size, base + (e + 1) * size, 4)}
            if isinstance(x, Store):
                reads, writes = {(sram, x.sram_base + k) for k in range(len(elements))}, dram
            else:
                count = (x.pad_top + x.y_size + x.pad_bottom) * (x.pad_left + x.x_size + x.pad_right)
                reads, writes = dram, {(sram, x.sram_base + k) for k in range(count)}
                if x.mem is Mem.UOP:
                    uops.update((x.sram_base + k, known[e]) for k, e in enumerate(elements))
                    writes = set()
        elif isinstance(x, Gemm | Alu):
            for dst, src, wgt, _ in (uops[k] for k in range(x.uop_bgn, x.uop_end)):
                for i, j in product(range(x.iter_out), range(x.iter_in)):
                    d = ("acc", dst + i * x.dst_out + j * x.dst_in)
                    s = src + i * x.src_out + j * x.src_in
                    writes.add(d)
                    if isinstance(x, Alu):
                        reads |= {d} if x.use_imm else {d, ("acc", s)}
                    elif x.mode is not GemmMode.ZERO:
                        reads |= {d, ("inp", s), ("wgt", wgt + i * x.wgt_out + j * x.wgt_in)}
        yield reads, writes


@dataclass
class _Tokens:
    """Streams that get their tokens: what each unit knows, and who last touched what."""

    stream: list[Instruction] = field(default_factory=list)
    clocks: list[dict[Unit, int]] = field(default_factory=list)  # of each instruction, itself included
    known: dict[Unit, dict[Unit, int]] = field(default_factory=lambda: {u: dict.fromkeys(Unit, -1) for u in Unit})
    written: dict[Element, dict[Unit, int]] = field(default_factory=dict)
    read: dict[Element, dict[Unit, int]] = field(default_factory=dict)

    def put(self, x: Instruction, need: dict[Unit, int]) -> None:
        """Appends an instruction that must run after the instructions in ``need``."""
        unit, known = x.unit, self.known[x.unit]
        wanted = {v: i for v, i in need.items() if v is not unit and i > known[v]}
        for v in [v for v in wanted if abs(v - unit) == 2]:
            self.put(nop(Unit.CMP), {v: wanted.pop(v)})
            wanted[Unit.CMP] = len(self.stream) - 1
        for v, i in wanted.items():
            others = [self.clocks[j] for w, j in wanted.items() if w is not v]
            if any(clock[v] >= i for clock in others):
                continue  # another token says that too
            setattr(self.stream[i], "push_next" if unit > v else "push_prev", True)
            setattr(x, "pop_prev" if v < unit else "pop_next", True)
            for w in Unit:
                known[w] = max(known[w], self.clocks[i][w])
        known[unit] = len(self.stream)
        self.stream.append(x)
        self.clocks.append(dict(known))

    def needs(self, x: Instruction, reads: set[Element], writes: set[Element]) -> dict[Unit, int]:
        """The newest conflicting instruction on each unit."""
        need = dict.fromkeys(Unit, -1)
        for element in reads | writes:
            for v, i in self.written.get(element, {}).items():
                need[v] = max(need[v], i)
        for element in writes:
            for v, i in self.read.get(element, {}).items():
                need[v] = max(need[v], i)
        return need

    def touch(self, reads: set[Element], writes: set[Element]) -> None:
        """Notes what the last instruction did."""
        at = len(self.stream) - 1
        for state, elements in ((self.read, reads), (self.written, writes)):
            for element in elements:
                state.setdefault(element, {})[self.stream[at].unit] = at


def with_tokens(program: Program) -> Program:
    """The program, which has no tokens and no FINISH yet, with the fewest tokens that make it valid, and FINISH."""
    tokens = _Tokens()
    relocations = {}
    for at, (reads, writes) in enumerate(touched(program)):
        x = copy.copy(program.instructions[at])
        tokens.put(x, tokens.needs(x, reads, writes))
        tokens.touch(reads, writes)
        if at in program.relocations:
            relocations[len(tokens.stream) - 1] = program.relocations[at]
    last = {u: max((i for i, x in enumerate(tokens.stream) if x.unit is u), default=-1) for u in Unit}
    tokens.put(Finish(), last)
    return Program(program.config, tokens.stream, program.uops, program.constants, program.buffers, relocations)


def random_program(rng: np.random.Generator, config: VdlaConfig, length: int = 30) -> Program:
    """A valid program of about ``length`` random instructions after a few that fill the memories.

    Buffers: ``x`` (in), ``w`` (const), ``u`` (uop), ``t`` (temp, stored and loaded again), ``y`` (out).
    """
    uops = pack_uop(
        rng.integers(0, ACC // 3, UOP),
        rng.integers(0, INP // 3, UOP),
        rng.integers(0, WGT // 2, UOP),
        rng.integers(0, 1 + config.ext_gemm_set, UOP),
        config,
    )
    constants = rng.integers(0, 256, WGT * config.wgt_element, np.uint8).tobytes()
    buffers = [
        BufferSpec("x", "in", ACC * config.acc_element),
        BufferSpec("w", "const", len(constants)),
        BufferSpec("u", "uop", 4 * UOP),
        BufferSpec("t", "temp", ACC * config.acc_element),
        BufferSpec("y", "out", ACC * config.acc_element),
    ]
    maker = _Maker(rng, Program(config, [], uops, constants, buffers))
    maker.add(Load(Mem.UOP, 0, 0, 1, UOP, UOP), "u")
    maker.add(Load(Mem.INP, 0, 0, 1, INP, INP), "x")
    maker.add(Load(Mem.WGT, 0, 0, 1, WGT, WGT), "w")
    maker.add(Load(Mem.ACC, 0, 0, 1, ACC, ACC), "x")
    for buffer in ("t", "y"):
        maker.add(Store(Mem.ACC, 0, 0, 1, ACC, ACC), buffer)
    kinds: list[Callable[[], None]] = [
        maker.load,
        maker.load,
        maker.load,
        maker.store,
        maker.store,
        maker.gemm,
        maker.gemm,
    ]
    kinds += [maker.alu] if config.ext_alu else []
    for _ in range(length):
        kinds[rng.integers(len(kinds))]()
    return with_tokens(maker.program)


@dataclass
class _Maker:
    """Appends random instructions that stay within the corners."""

    rng: np.random.Generator
    program: Program

    def add(self, x: Instruction, buffer: str | None = None) -> None:
        """Appends an instruction that moves something from or to a buffer, or computes."""
        if buffer is not None:
            names = [spec.name for spec in self.program.buffers]
            self.program.relocations[len(self.program.instructions)] = names.index(buffer)
        self.program.instructions.append(x)

    def below(self, limit: int) -> int:
        return int(self.rng.integers(limit))

    def load(self) -> None:
        """A load of a random block, with padding where that may be."""
        config = self.program.config
        mem = [Mem.UOP, Mem.WGT, Mem.INP, Mem.INP, Mem.ACC, Mem.ACC8][self.below(6 if config.ext_alu else 5)]
        buffer = {Mem.UOP: "u", Mem.WGT: "w"}.get(mem) or "xt"[self.below(2)]
        room = {Mem.UOP: UOP, Mem.WGT: WGT, Mem.INP: INP}.get(mem, ACC)
        y, x = 1 + self.below(2), 1 + self.below(3)
        pads = [self.below(2) if mem not in (Mem.UOP, Mem.WGT) else 0 for _ in range(4)]
        count = (pads[0] + y + pads[1]) * (pads[2] + x + pads[3])
        if count > room:
            pads, count = [0, 0, 0, 0], y * x
        stride = x + self.below(2)
        held = self.program.buffer(buffer).nbytes // element_bytes(mem, config)
        start = self.below(held - (y - 1) * stride - x + 1)
        self.add(Load(mem, self.below(room - count + 1), start, y, x, stride, *pads), buffer)

    def store(self) -> None:
        """A store of a random block."""
        config = self.program.config
        narrow = config.ext_store_requant and self.below(2)
        y, x = 1 + self.below(2), 1 + self.below(3)
        stride = x + self.below(2)
        mem = Mem.OUT if narrow else Mem.ACC
        buffer = "ty"[self.below(2)]
        held = self.program.buffer(buffer).nbytes // element_bytes(mem, config)
        shift, relu = (self.below(20), bool(self.below(2))) if narrow else (0, False)
        start = self.below(held - (y - 1) * stride - x + 1)
        self.add(Store(mem, self.below(ACC - y * x + 1), start, y, x, stride, shift, relu), buffer)

    def gemm(self) -> None:
        """A GEMM of a few micro-ops."""
        modes = list(GemmMode)[: 3 if self.program.config.ext_gemm_set else 2]
        begin = self.below(UOP)
        dst, src, wgt = self.factors(ACC // 3), self.factors(INP // 3), self.factors(WGT // 4)
        loops = (1 + self.below(3), 1 + self.below(2))
        end = min(UOP, begin + 1 + self.below(3))
        self.add(Gemm(modes[self.below(len(modes))], begin, end, *loops, *dst, *src, *wgt))

    def alu(self) -> None:
        """An ALU instruction; the sources of its micro-ops index the accumulator."""
        use_imm = bool(self.below(2))
        imm = int(self.rng.integers(-40, 40)) if use_imm else 0
        begin = self.below(UOP)
        loops = (1 + self.below(3), 1 + self.below(2))
        end = min(UOP, begin + 1 + self.below(3))
        dst, src = self.factors(ACC // 3), self.factors(ACC // 3)
        self.add(Alu(AluOp(self.below(len(AluOp))), use_imm, imm, begin, end, *loops, *dst, *src))

    def factors(self, room: int) -> tuple[int, int]:
        """An outer and an inner factor that reach at most ``2 * room`` further in three by two iterations."""
        return self.below(room // 2 + 1), self.below(room + 1)


@dataclass
class Slots:
    """Where a pipelined program puts its tiles: bases of the slots, and how many elements each is apart."""

    inp: tuple[int, ...] = (0, 8)
    acc: tuple[int, ...] = (0, 8)


def pipelined_program(
    rng: np.random.Generator, config: VdlaConfig, slots: Slots | None = None, tiles: int = 6, size: int = 8
) -> Program:
    """Two layers, each of ``tiles`` tiles that go through slots in turn: load, multiply, store. No tokens yet.

    The first layer reads ``x`` and writes ``t``, the second reads ``t`` and writes ``y``; each layer loads its own
    weight, and each tile is ``size`` elements.
    """
    slots = slots or Slots()
    pairs = [(a, d) for a in slots.inp for d in slots.acc]
    offsets = np.arange(size)
    uops = np.concatenate([pack_uop(d + offsets, a + offsets, 0, 0, config) for a, d in pairs])
    constants = rng.integers(0, 256, 2 * config.wgt_element, np.uint8).tobytes()
    out = config.acc_element
    program = Program(config, [], uops, constants, [
        BufferSpec("x", "in", tiles * size * config.inp_element),
        BufferSpec("w", "const", len(constants)),
        BufferSpec("u", "uop", 4 * len(uops)),
        BufferSpec("t", "temp", tiles * size * out),
        BufferSpec("y", "out", tiles * size * out),
    ])  # fmt: skip
    maker = _Maker(rng, program)
    maker.add(Load(Mem.UOP, 0, 0, 1, len(uops), len(uops)), "u")
    for layer, (source, target) in enumerate((("x", "t"), ("t", "y"))):
        maker.add(Load(Mem.WGT, 0, layer, 1, 1, 1), "w")
        for tile in range(tiles):
            a, d = tile % len(slots.inp), tile % len(slots.acc)
            kernel = size * (a * len(slots.acc) + d)
            maker.add(Load(Mem.INP, slots.inp[a], tile * size, 1, size, size), source)
            for mode in (GemmMode.ZERO, GemmMode.ACC):
                maker.add(Gemm(mode, kernel, kernel + size, 1, 1, 0, 0, 0, 0, 0, 0))
            maker.add(Store(Mem.ACC, slots.acc[d], tile * size, 1, size, size), target)
    return program


def token_pairs(program: Program) -> list[tuple[int, str, int, str]]:
    """Every token as (pushing instruction, its flag, popping instruction, its flag)."""
    pairs = []
    for producer, consumer in ((0, 1), (1, 0), (1, 2), (2, 1)):
        push, pop = ("push_next", "pop_prev") if producer < consumer else ("push_prev", "pop_next")
        stream = list(enumerate(program.instructions))
        pushes = [i for i, x in stream if x.unit == producer and getattr(x, push)]
        pops = [i for i, x in stream if x.unit == consumer and getattr(x, pop)]
        pairs += [(i, push, j, pop) for i, j in zip(pushes, pops, strict=True)]
    return pairs


def without(program: Program, *flags: tuple[int, str]) -> Program:
    """A copy with some token flags cleared, each given as (instruction, flag)."""
    changed = copy.deepcopy(program)
    for at, flag in flags:
        assert getattr(changed.instructions[at], flag)
        setattr(changed.instructions[at], flag, False)
    return changed


def with_tokens_of(tokened: Program, other: Program) -> Program:
    """``other``, which has the same instructions on other addresses, with the tokens that suit ``tokened``."""
    changed = copy.deepcopy(tokened)
    moved = iter(other.instructions)
    for at, x in enumerate(changed.instructions):
        if isinstance(x, Finish) or (isinstance(x, Load | Store) and not x.x_size):
            continue
        y = copy.copy(next(moved))
        for flag in ("pop_prev", "pop_next", "push_prev", "push_next"):
            setattr(y, flag, getattr(x, flag))
        changed.instructions[at] = y
    changed.uops = other.uops
    return changed
