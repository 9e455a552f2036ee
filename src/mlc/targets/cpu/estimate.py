"""Cycles of a kernel on a processor that need not be at hand, and what bounds them, from its loops and the record.

Straight code between loops takes as long as the busiest of what it needs: multiply-adds, loads, stores, instructions
that the core starts, or the latency of sums that wait for themselves. Loops repeat that. What a kernel reads and writes
comes at the bandwidth of the smallest cache that holds all of it, in part while it computes. So these are the cycles of
a kernel whose caches work as its schedule means them to; see :mod:`mlc.targets.cpu.cost` for the assumptions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any

from mlc.fields import Fields, as_number, as_object, as_text
from mlc.ir import loop
from mlc.ir.expr import Binary, Call, Cast, Load, Select, walk
from mlc.ir.index import Linear, Var, weighted
from mlc.ir.intrinsic import Kind
from mlc.ir.types import DType
from mlc.targets.cpu.cost import HIDDEN, bandwidth
from mlc.targets.cpu.record import Cpu

_OPERATIONS = {"exp": 14, "log": 16, "tanh": 20, "erf": 24, "sigmoid": 18, "sin": 20, "cos": 20, "pow": 34, "sqrt": 6}
"""Operations on vectors that a function takes; one where it is not named."""
_AROUND = 3  # instructions around an iteration: the counter, an address, the jump


@dataclass(frozen=True)
class Estimate:
    """What a call of a kernel is expected to take on one core.

    Args:
        cycles: of the core.
        bound: what most of them are spent waiting for: ``multiply-adds``, ``loads``, ``stores``, ``instructions``,
            ``latency`` or ``memory``.
        busy: cycles by what they would be if there were nothing else.
    """

    cycles: float
    bound: str
    busy: dict[str, float]

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: object, where: str) -> Estimate:
        """Raises :class:`~mlc.errors.PackageError` at what is none."""
        fields = Fields(value, where)
        found = cls(
            fields.take("cycles", as_number),
            fields.take("bound", as_text),
            dict(fields.take("busy", lambda items, place: as_object(items, place, as_number))),
        )
        fields.end()
        return found


def estimate(fn: loop.Function, record: Cpu) -> Estimate:
    """The expected cycles of a function."""
    times: dict[str, float] = {}
    _Walk(record, times).visit(fn.body, 1.0)
    computing = sum(times.values())
    nbytes = sum(b.nbytes for b in fn.params)
    memory = nbytes / bandwidth(nbytes, record)
    busy = {name: round(cycles, 1) for name, cycles in sorted(times.items())} | {"memory": round(memory, 1)}
    bound = "memory" if memory > computing or not times else max(times, key=lambda name: times[name])
    cycles = max(computing, memory) + (1 - HIDDEN) * min(computing, memory)
    return Estimate(round(cycles, 1), bound, busy)


class _Walk:
    """Adds up the time of straight code, by what bounds it."""

    def __init__(self, record: Cpu, times: dict[str, float]) -> None:
        self.record, self.times = record, times

    def visit(self, s: loop.Stmt, times: float) -> None:
        """A statement that is carried out so often."""
        straight = _Straight(self.record)
        for inner, repeated in straight.take(s):
            self.visit(inner, times * repeated)
        bound, cycles = straight.cycles()
        if cycles:
            self.times[bound] = self.times.get(bound, 0.0) + cycles * times


class _Straight:
    """What code without loops of its own needs; an element that is read twice is loaded once."""

    def __init__(self, record: Cpu) -> None:
        self.record = record
        self.multiply_adds, self.stores, self.instructions = 0.0, 0.0, 0.0
        self.read: dict[tuple[int, tuple[Linear, ...], int], float] = {}
        self.chains: Counter[tuple[int, tuple[Linear, ...]]] = Counter()

    def take(self, s: loop.Stmt) -> Iterator[tuple[loop.Stmt, float]]:
        """Counts a statement; gives what is repeated in it, and how often."""
        if isinstance(s, loop.Seq):
            for part in s.stmts:
                yield from self.take(part)
        elif isinstance(s, loop.Allocate):
            yield from self.take(s.body)
        elif isinstance(s, loop.For):
            self.instructions += 0.0 if s.kind is loop.ForKind.UNROLLED else _AROUND * s.extent
            yield s.body, s.extent
        elif isinstance(s, loop.ForRange):
            yield s.body, 1.0  # as often as the data say
        elif isinstance(s, loop.If):
            self.instructions += 2
            yield s.then, 1.0
        elif isinstance(s, loop.Store):
            self._store(s)
        elif isinstance(s, loop.Evaluate) and s.intrinsic is not None and s.args[0] is Kind.UPDATE:
            self._update(s)
        elif isinstance(s, loop.Prefetch):
            self.read[id(s), (), 0] = 1.0
            self.instructions += 1

    def cycles(self) -> tuple[str, float]:
        """What bounds the code, and the cycles that it takes."""
        needs = {
            "multiply-adds": self.multiply_adds / self.record.fmas,
            "loads": sum(self.read.values()) / self.record.loads,
            "stores": self.stores,
            "instructions": self.instructions / self.record.issue,
            "latency": self.record.fma_latency * float(max(self.chains.values(), default=0)),
        }
        bound = max(needs, key=lambda name: needs[name])
        return bound, needs[bound]

    def _vectors(self, dtype: DType, lanes: int) -> float:
        return max(1.0, lanes / self.record.lanes_of(dtype)) if lanes > 1 else 1.0

    def _part(self, dtype: DType, lanes: int) -> float:
        """Of the time of a whole vector that one of so many lanes takes, where that is computed in two halves."""
        return 0.5 if self.record.halves and 2 * lanes <= self.record.lanes_of(dtype) else 1.0

    def _transfers(self, buffer: loop.Buffer, indices: tuple[Linear, ...], lane: Var | None) -> float:
        """Vectors or, where neighbours in a vector are none in memory, elements of an access."""
        if lane is None:
            return 1.0
        apart = weighted(indices, buffer.strides()).coefficient(lane)
        lanes = lane.hi - lane.lo + 1
        if apart not in (0, 1):
            return float(lanes)
        return self._part(buffer.dtype, lanes) * (self._vectors(buffer.dtype, lanes) if apart else 1.0)

    def _store(self, s: loop.Store) -> None:
        lanes = 1 if s.lane is None else s.lane.hi - s.lane.lo + 1
        adds_to_itself = False
        for part in walk(s.value):
            if isinstance(part, Load):
                self._load(part.source, part.indices, s.lane)
                adds_to_itself = adds_to_itself or part.source is s.buffer
                continue
            amount, share = self._vectors(part.dtype, lanes), self._part(part.dtype, lanes)
            if isinstance(part, Binary):
                fused = part.op in ("add", "sub") and any(
                    isinstance(x, Binary) and x.op == "mul" for x in (part.a, part.b)
                )
                each = self.record.fma_operations if part.op == "mul" else 1
                self._compute(0.0 if fused else amount * each, share)
            elif isinstance(part, Call):
                self._compute(amount * _OPERATIONS.get(part.fn, 1), share)
            elif isinstance(part, (Cast, Select)):
                self.instructions += amount
        if s.buffer.scope != "register":
            vectors = self._transfers(s.buffer, s.indices, s.lane)
            self.stores += vectors
            self.instructions += vectors
        elif adds_to_itself:
            self.chains[id(s.buffer), s.indices] += 1

    def _compute(self, operations: float, share: float = 1.0) -> None:
        self.multiply_adds += operations * share
        self.instructions += operations

    def _load(self, buffer: loop.Buffer, indices: tuple[Linear, ...], lane: Var | None, times: int = 1) -> None:
        key = (id(buffer), indices, 0 if lane is None else lane.hi)
        if buffer.scope != "register" and key not in self.read:
            self.read[key] = times * self._transfers(buffer, indices, lane)
            self.instructions += 0.0 if self.record.memory_operand else self.read[key]

    def _update(self, s: loop.Evaluate) -> None:
        """An instruction that adds up products."""
        dots = (*self.record.dots, *self.record.block_dots, *self.record.bit_dots)
        dot = next((d for d in dots if d.intrinsic is s.intrinsic), None)
        rows = 1 if dot is None else dot.rows
        self._compute(rows * (1.0 if dot is None else dot.operations))
        result, *operands = s.args[1:]
        self.chains[id(result.buffer), result.indices] += 1
        for access in operands:
            self._load(access.buffer, access.indices, None, rows)
