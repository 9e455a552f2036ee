"""What holds for a kernel whatever its loops do: which buffers share memory, what needs no instruction, capacity."""

from __future__ import annotations

from collections.abc import Mapping

from mlc.errors import ScheduleError
from mlc.ir.expr import Cast, Const, Expr, Load, Select, loads
from mlc.ir.index import Var
from mlc.ir.loop import Allocate, Buffer, Evaluate, For, Function, Stmt, Store, sub_statements
from mlc.ir.types import i32
from mlc.vdla.codegen.epilogue import Epilogue, Operation, read_epilogue
from mlc.vdla.codegen.nest import flat, leaves
from mlc.vdla.config import VdlaConfig
from mlc.vdla.intrinsics import scopes
from mlc.vdla.isa.instruction import AluOp


class Facts:
    """What holds for a kernel whatever its loops do.

    Attributes:
        root: the buffer whose memory another one shares: a sum or an epilogue overwrites its first operand.
        epilogues: of stores of values that are computed.
        done: statements that need no instruction.
        more: uses of the matrix product that add to what is there, and clear nothing.
        writers: the statements that write a buffer, in order.
        products: buffers that the matrix product writes.
        around: loops around the allocation of a buffer.
        loops: loops around a statement that becomes instructions.
        constant: on-chip buffers that are loaded once and not written otherwise.
    """

    def __init__(self, fn: Function) -> None:
        self.root: dict[Buffer, Buffer] = {}
        self.epilogues: dict[Store, Epilogue] = {}
        self.done: set[Stmt] = set()
        self.more: set[Stmt] = set()
        self.writers: dict[Buffer, list[Stmt]] = {}
        self.around: dict[Buffer, tuple[Var, ...]] = {}
        self.loops: dict[Stmt, tuple[Var, ...]] = {}
        self._enclose(fn.body, ())
        statements = list(leaves(fn.body))
        order: dict[Stmt, int] = {s: k for k, s in enumerate(statements)}
        for s in statements:
            target = s.buffer if isinstance(s, Store) else s.args[1].buffer if s.intrinsic is not None else None
            if target is not None:
                self.writers.setdefault(target, []).append(s)
        self.products = {b for b, ss in self.writers.items() if any(isinstance(s, Evaluate) for s in ss)}
        for s in statements:
            if isinstance(s, Store) and any(ld.source.scope != "global" for ld in loads(s.value)):
                self._epilogue(s, order)
        shared = {self.of(b) for b in self.root} | set(self.root)
        changed = {self.of(o.target.source) for e in self.epilogues.values() for o in e.operations}
        self.constant = {
            b
            for b, ss in self.writers.items()
            if len(ss) == 1 and b.scope != "global" and is_fill(ss[0]) and b not in shared | changed
        }

    def _enclose(self, s: Stmt, around: tuple[Var, ...]) -> None:
        if isinstance(s, Allocate):
            self.around[s.buffer] = around
        elif isinstance(s, (Store, Evaluate)):
            self.loops[s] = around
        for c in sub_statements(s):
            self._enclose(c, (*around, s.var) if isinstance(s, For) else around)

    def of(self, b: Buffer) -> Buffer:
        """The buffer whose memory a buffer has."""
        while b in self.root:
            b = self.root[b]
        return b

    def filled(self, b: Buffer) -> set[Var]:
        """Loops around the statement that fills the memory of a buffer: in each of their iterations it is new."""
        root = self.of(b)
        return {*self.loops[self.writers[root][0]]} if root in self.writers else {*self.around[root]}

    def _epilogue(self, s: Store, order: Mapping[Stmt, int]) -> None:
        found = read_epilogue(s.value)
        self.epilogues[s] = found
        root = found.root.source
        held = flat(root, found.root.indices)
        kept: list[Operation] = []
        for o in found.operations:
            if o.op is AluOp.ADD and o.source is not None and o.target is found.root:
                other = o.source.source
                untouched = all(k.op is AluOp.ADD and k.target is found.root for k in kept)
                alike = other is not root and flat(other, o.source.indices) == held
                if untouched and alike and self._one_memory(root, other, order):
                    continue
            kept.append(o)
        found.operations = kept
        if s.buffer.scope != "global":
            if flat(s.buffer, s.indices) != held:
                raise ScheduleError(f"{s!r}: accumulators are worked on in place, at the place of the first operand")
            self.root[s.buffer] = self.of(root)
            if not kept:
                self.done.add(s)

    def _one_memory(self, a: Buffer, b: Buffer, order: Mapping[Stmt, int]) -> bool:
        """Let a product go on from what is there already, another product or a tensor, instead of adding both later."""
        first, second = self.of(a), self.of(b)
        if first is second:
            return True  # that is so in another copy of the same statement
        late = max(a, b, key=lambda t: order[self.writers[t][0]])
        if late not in self.products or self.around.get(first) != self.around.get(second):
            return False
        self.more.update(self.writers[late])
        self.root[second] = first
        return True


def is_fill(s: Stmt) -> bool:
    """Whether a statement copies from DRAM to the chip, or writes zeros there."""
    if not isinstance(s, Store) or s.buffer.scope == "global":
        return False
    return copied(s.value) is not None or (isinstance(s.value, Const) and s.value.value == 0)


def copied(e: Expr) -> Load | None:
    """The load of DRAM that a value is, widened or with zeros outside of a range maybe."""
    if isinstance(e, Select) and isinstance(e.b, Const) and e.b.value == 0:
        return copied(e.a)
    if isinstance(e, Cast) and e.dtype is i32 and isinstance(e.a, (Load, Select)):
        return copied(e.a)
    return e if isinstance(e, Load) and e.source.scope == "global" else None


def check_capacity(
    fn: Function, config: VdlaConfig, slots: Mapping[str, int] | None = None, facts: Facts | None = None
) -> dict[str, int]:
    """On-chip elements that a kernel needs at once, by scope; cheap enough to ask before anything else.

    Raises:
        ScheduleError: a memory is too small, or a buffer does not consist of whole elements.
    """
    known = facts if facts is not None else Facts(fn)
    memory = scopes(config)

    def most(s: Stmt) -> dict[str, int]:
        if isinstance(s, Allocate) and s.buffer.scope in memory:
            need = most(s.body)
            if s.buffer not in known.root:
                n = (slots or {}).get(s.buffer.scope, 1) * elements(s.buffer, memory[s.buffer.scope].lanes)
                need[s.buffer.scope] = need.get(s.buffer.scope, 0) + n
            return need
        parts = [most(c) for c in sub_statements(s)]
        return {k: max(p.get(k, 0) for p in parts) for p in parts for k in p}

    need = most(fn.body)
    for name, n in need.items():
        if n > memory[name].depth:
            raise ScheduleError(f"{fn.name}: the buffers in {name} take {n} elements, it has {memory[name].depth}")
    return need


def elements(buffer: Buffer, lanes: int) -> int:
    """Elements of an on-chip buffer."""
    if buffer.size % lanes:
        raise ScheduleError(f"{buffer!r} is not made of elements of {lanes}")
    return buffer.size // lanes
