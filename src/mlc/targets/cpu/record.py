"""What a processor with vectors offers to a schedule and to the cost model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from mlc.ir.types import DType, f16
from mlc.ops.bits import PLANES, Weights
from mlc.targets.cpu.bits import BitCounter
from mlc.targets.cpu.dot import Dot
from mlc.targets.cpu.matrix import MatrixUnit

# Cycles that a sum of half vectors waits beyond the latency of a multiply-add: of two of these a cycle, what a load is
# late is late for good (measured on Zen 4: tiles of 8 × 1 take 1.8 times as long as 8 multiply-adds, of 7 × 2 1.15).
LATE = 3

CPU_FOLDER = Path("/sys/devices/system/cpu")


@dataclass(frozen=True)
class Cpu:
    """The record of a processor: every tile size of its schedules follows from it.

    Bandwidths are what one core sustains when it reads vectors one after another, in bytes a cycle; from the
    first-level cache that is ``loads`` vectors.

    Args:
        cpu: LLVM processor name.
        features: LLVM feature flags, each with its sign.
        lanes: of a vector register, f32 unless ``lane_bytes`` says otherwise.
        registers: number of vector registers.
        l1: bytes of first-level data cache.
        l2: bytes of second-level cache of a core.
        l3: bytes of third-level cache that a program may hope for.
        l2_bandwidth: bytes a cycle from the second-level cache.
        l3_bandwidth: bytes a cycle from the third-level cache.
        memory_bandwidth: bytes a cycle from memory.
        loads: vector loads or broadcasts from the first-level cache a cycle.
        fmas: vector multiply-adds a cycle (a multiplication and an addition each where there is no fused one).
        fma_latency: cycles until the sum of a multiply-add can be added to.
        fma_operations: operations that a multiply-add takes: 1 where it is fused.
        memory_operand: whether a multiply-add can take a vector straight from memory, without a register for it.
        broadcast_operand: whether it can take a number from memory as all lanes of an operand.
        elements: bytes of the elements that vectors are filled with, ascending. Narrower ones take the lanes of the
            narrowest: more of them would only spill.
        dot: the instruction that adds up products of bytes, if there is one.
        word_dot: the one that adds up products of bytes widened to 16 bits, where that is faster.
        narrow_dot: the one for weights of i7, where that is faster.
        taps_dot: the one for data of each lane's own, where that pays.
        bf16_dot: the instruction that adds up products of bf16, if there is one.
        block_dots: those that multiply blocks of two rows by two columns, of bytes or bf16.
        matrices: units that multiply whole matrices, of bytes or bf16.
        rows: of data that an instruction takes at once, by as many columns; see :meth:`adding`.
        stored_dot: how floats are multiplied by bf16 of memory, where that is faster than to widen vector by vector.
        bit_counter: how it multiplies numbers of one or two bits, if it does.
        permutes_bytes: whether an instruction puts the bytes of two vectors in any order.
        half_sums: whether sums of products of f16 are kept in f16; then all of f16 goes by vectors filled with it.
        lane_bytes: bytes of a lane.
        terms: of a row that are read as one vector, in whose lanes products find them; 1 where each is spread over a
            register of its own as it is read.
        issue: operations that the core starts a cycle.
        in_order: whether an operation waits for those before it, so that code has to be in a good order.
        cores: cores that share the third-level cache.
        cache_line: bytes that caches hold together.
        launch: cycles that a step of a model takes beside its work: the call, and threads that wait for each other.
        halves: whether it multiplies a vector in two halves, and half of one in half the time.
    """

    cpu: str
    features: tuple[str, ...]
    lanes: int
    registers: int
    l1: int = 32 << 10
    l2: int = 256 << 10
    l3: int = 8 << 20
    l2_bandwidth: float = 28
    l3_bandwidth: float = 14
    memory_bandwidth: float = 5
    loads: int = 2
    fmas: int = 2
    fma_latency: int = 4
    fma_operations: int = 1
    memory_operand: bool = False
    broadcast_operand: bool = False
    elements: tuple[int, ...] = (4, 8)
    dot: Dot | None = None
    word_dot: Dot | None = None
    narrow_dot: Dot | None = None
    taps_dot: Dot | None = None
    bf16_dot: Dot | None = None
    stored_dot: Dot | None = None
    block_dots: tuple[Dot, ...] = ()
    matrices: tuple[MatrixUnit, ...] = ()
    rows: int = 1
    bit_counter: BitCounter | None = None
    permutes_bytes: bool = False
    half_sums: bool = False
    lane_bytes: int = 4
    terms: int = 1
    issue: int = 4
    in_order: bool = False
    cores: int = 4
    cache_line: int = 64
    launch: int = 1000
    halves: bool = False

    @property
    def vector_bytes(self) -> int:
        return self.lanes * self.lane_bytes

    @property
    def vector_bits(self) -> int:
        return self.vector_bytes * 8

    def in_halves(self, sums: DType) -> Cpu:
        """The record as what computes in f16 knows it: twice the lanes.

        Args:
            sums: their type; those that are wider take two registers.

        >>> from mlc.ir.types import f16, f32
        >>> record = Cpu("generic", (), lanes=4, registers=32)
        >>> [(r.lanes, r.registers, r.vector_bits) for r in (record.in_halves(f16), record.in_halves(f32))]
        [(8, 32, 128), (8, 16, 128)]
        """
        registers = self.registers * f16.itemsize // sums.itemsize
        lanes = self.vector_bytes // f16.itemsize
        terms = lanes // 2 if sums is f16 else 1
        return replace(self, lanes=lanes, registers=registers, lane_bytes=f16.itemsize, terms=terms)

    def in_half_vectors(self) -> Cpu:
        """The record as what computes in half vectors knows it: as many lanes a cycle.

        >>> half = Cpu("generic", (), lanes=16, registers=32, fmas=1, loads=1, halves=True).in_half_vectors()
        >>> half.lanes, half.fmas, half.loads, half.vector_bytes
        (8, 2, 2, 32)
        """
        lanes, latency = self.lanes // 2, self.fma_latency + LATE
        return replace(self, lanes=lanes, fmas=2 * self.fmas, loads=2 * self.loads, fma_latency=latency, halves=False)

    def lanes_of(self, dtype: DType) -> int:
        """Lanes that a vector has for elements of a type.

        >>> from mlc.ir.types import f32, f64, i8
        >>> record = Cpu("generic", (), lanes=4, registers=32)
        >>> [record.lanes_of(t) for t in (i8, f32, f64)]
        [4, 4, 2]
        """
        size = min((n for n in self.elements if n >= dtype.itemsize), default=self.elements[-1])
        return self.vector_bytes // size

    def dot_of(self, x: DType, w: DType, bits: Weights | None = None) -> Dot | None:
        """How products of such operands are summed up several at once; ``None`` where each takes an instruction.

        Args:
            x, w: types of data and weights.
            bits: what planes of weights stand for, where both are words of bits.
        """
        if bits is not None:
            return None if self.bit_counter is None else _bit_dot(self.bit_counter, PLANES[x], PLANES[w], bits)
        return next((d for d in self.dots if d.types[:2] == (x, w)), None)

    def block_dot_of(self, x: DType, w: DType) -> Dot | None:
        """How two rows of such operands are multiplied by two columns at once, if there is an instruction for it."""
        return next((d for d in self.block_dots if d.types[:2] == (x, w)), None)

    def matrices_of(self, x: DType, w: DType) -> MatrixUnit | None:
        """The unit that multiplies whole matrices of such operands, if there is one."""
        return next((unit for unit in self.matrices if unit.types == (x, w)), None)

    @property
    def dots(self) -> tuple[Dot, ...]:
        """The instructions whose data are the same in all lanes."""
        known = (self.dot, self.word_dot, self.narrow_dot, self.bf16_dot, self.stored_dot)
        return tuple(d for d in known if d is not None)

    @property
    def bit_dots(self) -> tuple[Dot, ...]:
        """All products of words of bits."""
        counter, planes = self.bit_counter, sorted(PLANES.values())
        if counter is None:
            return ()
        return tuple(_bit_dot(counter, of_x, of_w, kind) for of_x in planes for of_w in planes for kind in Weights)

    def adding(self, dot: Dot | None) -> Cpu:
        """The record as sums by an instruction know it.

        Products that another one adds need registers themselves; where it takes two rows at once, tiles have an even
        number of them.
        """
        if dot is None or (not dot.held and dot.rows == 1 and not self.block_dots):
            return self
        blocks = (dot,) if dot.rows > 1 else ()
        return replace(self, registers=self.registers - dot.held, rows=dot.rows, block_dots=blocks)

    @property
    def bytes_gain(self) -> float:
        """How many products of bytes the processor can take for one of floats, whatever brings their operands."""
        dot = self.word_dot or self.dot
        return 1.0 if dot is None else dot.terms * self.fma_operations / dot.operations


@lru_cache
def _bit_dot(counter: BitCounter, of_x: int, of_w: int, weights: Weights) -> Dot:
    return counter.dot(of_x, of_w, weights)


def with_this_machine(record: Cpu, folder: Path = CPU_FOLDER) -> Cpu:
    """The record with the cache sizes and cores that the operating system reports; unchanged where it does not."""
    sizes: dict[str, Any] = {}
    for cache in sorted(folder.glob("cpu0/cache/index*")):
        try:
            level, kind, size = ((cache / f).read_text().strip() for f in ("level", "type", "size"))
        except OSError:
            continue
        amount = re.fullmatch(r"(\d+)([KM])", size)
        if kind != "Instruction" and level in ("1", "2", "3") and amount is not None and int(amount[1]) > 0:
            sizes[f"l{level}"] = int(amount[1]) << (10 if amount[2] == "K" else 20)
    return replace(record, cores=os.cpu_count() or record.cores, **sizes)
