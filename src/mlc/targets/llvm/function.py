"""A loop AST to the text of one LLVM function, with one more for every parallel region and outlined loop.

* Index arithmetic is emitted where its variables are bound (at the top of the loop that binds the last of them), so
  inner loops hold one pointer and constant offsets.
* ``register`` buffers whose indices are all constants become SSA values carried by loop phis, not left to chance.
* Lanes of a vector store are LLVM vectors: a unit stride is a vector load, a zero stride a broadcast, others gather.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from mlc.errors import CodegenError
from mlc.ir import loop
from mlc.ir.expr import Cast, Load, loads, substitute_vars
from mlc.ir.index import Linear, Var, as_index, substitute
from mlc.ir.intrinsic import Kind
from mlc.ir.types import DType
from mlc.targets.llvm.arith import Val
from mlc.targets.llvm.index import Level
from mlc.targets.llvm.intrinsic import Address, VectorIntrinsic
from mlc.targets.llvm.permission import ALLOW
from mlc.targets.llvm.registers import Accesses, Slot, Slots, outlined
from mlc.targets.llvm.rounding import find_runs, limited_steps, packed_steps, steps_of, together
from mlc.targets.llvm.text import splat
from mlc.targets.llvm.transpose import find_blocks
from mlc.targets.llvm.values import MASKED, ValueEmitter, whole_lines

MAX_STACK = 2 << 20  # bytes of thread-private buffers in one function; what is large is moved before it comes here


class ModuleSink(Protocol):
    """What function emitters share: finished functions, declarations, requests to the math library."""

    keeps_nan: bool
    fixed_product: str
    packed_lanes: int
    masks: bool

    def declare(self, line: str) -> None: ...

    def math(self, fn: str, dtype: str, lanes: int) -> str: ...

    def define(self, text: str) -> None: ...


def emit_function(fn: loop.Function, module: ModuleSink, *, contract: bool = True) -> int:
    """Write a kernel ``void name(ptr params…, ptr scratch, ptr pool)`` into the module.

    Args:
        fn: a verified loop AST.
        module: where the text goes.
        contract: whether ``a*b + c`` may be one fused operation.
    Returns:
        bytes of scratch memory that the kernel needs from its caller, to be 64-byte aligned.
    Raises:
        CodegenError: something this target cannot express.
    """
    emitter = FunctionEmitter(fn, module, contract)
    emitter.kernel()
    return emitter.scratch_bytes


class FunctionEmitter(ValueEmitter):
    """State while one LLVM function is written."""

    def __init__(self, fn: loop.Function, module: ModuleSink, contract: bool) -> None:
        self.fn = fn
        self.module = module
        self.flags = "contract " if contract else ""
        self.keeps_nan = module.keeps_nan
        self.fixed_product = module.fixed_product
        self.packed_lanes = module.packed_lanes
        self.masks = module.masks
        self.places = Accesses(fn.body)
        self.slots = Slots(self.places)
        self.over: dict[int, set[int]] = {}  # results, and the operands that each may lie over
        for operand, result in fn.attrs.get("aliased", ()):
            self.over.setdefault(id(fn.params[result]), set()).add(id(fn.params[operand]))
        self.aliased = {*self.over, *(operand for operands in self.over.values() for operand in operands)}
        self.scratch_bytes = 0
        self.regions = 0
        self.in_parallel = False
        self.counter = 0
        self.slot_dtypes: dict[int, DType] = {}
        self.begin()

    def begin(self) -> None:
        """Start an empty function body."""
        self.lines: list[Any] = []
        self.label = "entry"
        self.levels: list[Level] = [Level(self.lines)]
        self.depth: dict[Var, int] = {}
        self.names: dict[Var, str] = {}
        self.pointers: dict[int, str] = {}
        self.tiles: dict[str, str] = {}  # by name, register buffers that are in memory after all
        self.own = set()
        self.registers: dict[Slot, Val] = {}
        self.matrices = {}
        self.homes = {}
        self.frames: list[dict[str, str]] = [{}]
        self.loaded: dict[int, dict[str, str]] = {}
        self.taken: set[tuple[int, Linear]] = set()  # where intrinsics that share vectors have taken theirs from
        self.stack_bytes = 0
        self.mask = None
        self.conditions = []
        self.masks_around = {}
        self.zero_outside = {}
        self.around = None
        self.column = None
        self.squares = {}

    # -- the sink of arith -------------------------------------------------------------------------------------
    def fresh(self, hint: str = "v") -> str:
        self.counter += 1
        return f"%{hint}{self.counter}"

    def pure(self, text: str) -> str:
        for frame in self.frames:
            if text in frame:
                return frame[text]
        name = self.fresh()
        self.lines.append(f"  {name} = {text}")
        self.frames[-1][text] = name
        return name

    def declare(self, line: str) -> None:
        self.module.declare(line)

    def math(self, fn: str, dtype: str, lanes: int) -> str:
        return self.module.math(fn, dtype, lanes)

    # -- functions ---------------------------------------------------------------------------------------------
    def kernel(self) -> None:
        params = [f"%p{k}" for k in range(len(self.fn.params))]
        for b, p in zip(self.fn.params, params, strict=True):
            self.pointers[id(b)] = p
        self.pointers[-1] = "%scratch"
        self.statement(self.fn.body)
        self.lines.append("  ret void")
        shared = [id(b) in self.aliased for b in self.fn.params]
        args = [f"ptr {'' if k else 'noalias '}noundef {p}" for k, p in zip(shared, params, strict=True)] + [
            "ptr noalias noundef %scratch",
            "ptr noundef %pool",
        ]
        self.module.define(
            f"define internal void @{self.fn.name}({', '.join(args)}) #0 {{\nentry:\n" + _flatten(self.lines) + "\n}\n"
        )

    def statement(self, s: loop.Stmt) -> None:
        match s:
            case loop.Seq():
                around = self.squares
                columns, self.squares = find_blocks(s.stmts, self.places, masks=self.masks), {}
                runs = {} if self.keeps_nan else find_runs(s.stmts, self.places, self.packed_lanes)
                k = 0
                while k < len(s.stmts):
                    count = runs.get(k, 1)
                    if count > 1:
                        self.store_together([c for c in s.stmts[k : k + count] if type(c) is loop.Store])
                    else:
                        self.column = columns.get(k)
                        self.statement(s.stmts[k])
                        self.column = None
                        if type(s.stmts[k]) is not loop.Store:  # it may have written what was read before
                            self.squares = {}
                    k += count
                self.squares = around
            case loop.Store():
                self.store(s)
            case loop.For():
                if s.extent < 1:
                    return
                alone = outlined(s)
                if alone is not None:
                    self.outline(alone)
                elif s.kind is loop.ForKind.PARALLEL and not self.in_parallel:
                    self.parallel(s)
                elif s.kind in (loop.ForKind.SERIAL, loop.ForKind.PARALLEL):
                    self.counted(s.var, "0", str(s.extent), s.body)
                else:
                    raise CodegenError(f"{self.fn.name}: the LLVM targets have no {s.kind} loops")
            case loop.ForRange():
                begin, end = self.eval(s.begin, None).text, self.eval(s.end, None).text
                self.range_loop(s.var, begin, end, s.body)
            case loop.If():
                self.branch(s)
            case loop.Allocate():
                self.allocate(s)
            case loop.Prefetch():
                self.prefetch(s)
            case loop.Evaluate():
                self.intrinsic(s)
            case _:
                raise CodegenError(f"{self.fn.name}: the LLVM targets have no {type(s).__name__}")

    def intrinsic(self, s: loop.Evaluate) -> None:
        if isinstance(s.intrinsic, VectorIntrinsic):
            self.vector_intrinsic(s, s.intrinsic)
        elif s.name == "pragma.reload":
            self.reload()
        elif not s.name.startswith("pragma."):  # a pragma is advice; that of a whole loop, the loop has looked for
            raise CodegenError(f"{self.fn.name}: the LLVM targets have no intrinsic {s.name}")

    def vector_intrinsic(self, s: loop.Evaluate, what: VectorIntrinsic) -> None:
        """The lanes of its result reset or updated, in their register or else in memory."""
        buffer, indices, lane = self.places.of(s)[-1]
        dtype, lanes = what.behaviour.dtype, what.behaviour.size
        slot = self.slots.slot(buffer, indices, lane)
        if slot is None and isinstance(lane, tuple):
            raise CodegenError(f"{self.fn.name}: what {what} sums up is not in registers")
        neighbours = None if isinstance(lane, tuple) else lane
        if slot is not None and what.matrix is not None:
            if not self.matrices:
                self.levels[0].top.append(f"  call void {ALLOW}()")
            self.matrices[slot] = what.matrix
        if s.args[0] == Kind.RESET:
            total = splat(0, dtype, lanes) if what.matrix is None else what.matrix.zero(self)
        else:
            held = self.load(Load(buffer, indices), neighbours) if slot is None else self.held(slot, dtype)
            offsets = [self.places.offset(a.buffer, a.indices) for a in s.args[2:]]
            write = what.write
            if what.write_next is not None:
                x, before = s.args[2].buffer, offsets[0] - s.args[2].strides[0]
                if (id(x), before) in self.taken:
                    offsets[0], write = before, what.write_next
                else:
                    self.taken.add((id(x), offsets[0]))
            at = [
                Address(a.buffer, self.pointer(a.buffer, offset), a.strides)
                for a, offset in zip(s.args[2:], offsets, strict=True)
            ]
            total = write(self, held.text, at)
        if slot is not None:
            self.registers[slot] = Val(total, dtype, lanes)
        else:
            self.write(buffer, self.places.offset(buffer, indices), neighbours, Val(total, dtype, lanes))
            self.forget(buffer)

    def read(self, at: Address, type: str) -> str:
        return self.fetch(at, f"load {type}, ptr {at.text}, align 1")

    def fetch(self, at: Address, text: str) -> str:
        names = self.loaded.setdefault(id(at.buffer), {})
        if text not in names:
            names[text] = self.fresh("l")
            self.lines.append(f"  {names[text]} = {text}")
        return names[text]

    def run(self, text: str) -> None:
        self.lines.append(f"  {text}")

    def reload(self) -> None:
        """What was loaded before is loaded anew where it is asked for again, by LLVM as well.

        Its passes merge equal loads unless something between them may write there: an empty text that is said to.
        """
        for buffer, names in self.loaded.items():
            if names:
                at = self.pointers[buffer]
                self.lines.append(f'  call void asm sideeffect "", "*m,~{{memory}}"(ptr elementtype(i8) {at})')
        self.loaded.clear()
        self.taken.clear()

    def prefetch(self, s: loop.Prefetch) -> None:
        """Fetch a line for reading; LLVM calls the first-level cache 3, the others less."""
        self.declare("declare void @llvm.prefetch.p0(ptr, i32 immarg, i32 immarg, i32 immarg)")
        at = self.pointer(s.buffer, self.places.offset(s.buffer, s.indices))
        self.lines.append(f"  call void @llvm.prefetch.p0(ptr {at}, i32 0, i32 {4 - s.level}, i32 1)")

    # -- control flow ------------------------------------------------------------------------------------------
    @contextmanager
    def frame(self) -> Iterator[None]:
        """Values emitted inside are not visible after; loads before are forgotten on both sides."""
        self.frames.append({})
        self.loaded.clear()
        self.taken.clear()
        try:
            yield
        finally:
            self.frames.pop()
            self.loaded.clear()
            self.taken.clear()

    def block(self, label: str) -> None:
        self.lines.append(f"{label}:")
        self.label = label

    def counted(self, var: Var, begin: str, end: str, body: loop.Stmt) -> None:
        """A counted loop of at least one iteration, tested at its end."""
        self.counter += 1
        n = self.counter
        head, exit_ = f"loop{n}", f"done{n}"
        name = f"%i{n}"
        carried = self.slots.written(body)
        entry_label = self.label
        before = {slot: self.registers.get(slot) for slot in carried}
        self.lines.append(f"  br label %{head}")
        self.block(head)
        phis: list[Any] = []
        self.lines.append(phis)
        inside: dict[Slot, str] = {}
        for slot in carried:
            dtype, lanes = self.slot_type(slot)
            inside[slot] = self.fresh("r")
            self.registers[slot] = Val(inside[slot], dtype, lanes)
        self.levels.append(Level(self.lines, tile=bool(carried)))
        self.depth[var] = len(self.levels) - 1
        self.names[var] = name
        with self.frame():
            self.statement(body)
            self.lines.append(f"  %n{n} = add nuw nsw i64 {name}, 1")
            self.lines.append(f"  %c{n} = icmp eq i64 %n{n}, {end}")
        self.levels.pop()
        del self.depth[var], self.names[var]
        latch = self.label
        phis.append(f"  {name} = phi i64 [ {begin}, %{entry_label} ], [ %n{n}, %{latch} ]")
        for slot in carried:
            old, new = before[slot], self.registers[slot]
            start = old.text if old is not None else "poison"
            held = self.held_type(slot, new)
            phis.append(f"  {inside[slot]} = phi {held} [ {start}, %{entry_label} ], [ {new.text}, %{latch} ]")
        self.lines.append(f"  br i1 %c{n}, label %{exit_}, label %{head}")
        self.block(exit_)

    def range_loop(self, var: Var, begin: str, end: str, body: loop.Stmt) -> None:
        """A loop that may have no iteration at all.

        Raises:
            CodegenError: a buffer of registers is assigned inside.
        """
        if self.slots.written(body):
            raise CodegenError(f"{self.fn.name}: a register buffer is assigned in a loop of unknown length")
        self.counter += 1
        n = self.counter
        self.lines.append(f"  %any{n} = icmp slt i64 {begin}, {end}")
        self.lines.append(f"  br i1 %any{n}, label %some{n}, label %none{n}")
        self.block(f"some{n}")
        self.counted(var, begin, end, body)
        self.lines.append(f"  br label %none{n}")
        self.block(f"none{n}")

    def branch(self, s: loop.If) -> None:
        cond = self.eval(s.cond, None)
        self.counter += 1
        n = self.counter
        merged = list(dict.fromkeys(self.slots.written(s.then) + (self.slots.written(s.orelse) if s.orelse else [])))
        before = dict(self.registers)
        other = f"else{n}" if s.orelse is not None else f"end{n}"
        from_label = self.label
        self.lines.append(f"  br i1 {cond.text}, label %then{n}, label %{other}")
        self.block(f"then{n}")
        with self.frame():
            self.statement(s.then)
        then_label, then_regs = self.label, self.registers
        self.lines.append(f"  br label %end{n}")
        self.registers = dict(before)
        else_label = from_label
        if s.orelse is not None:
            self.block(other)
            with self.frame():
                self.statement(s.orelse)
            else_label = self.label
            self.lines.append(f"  br label %end{n}")
        else_regs = self.registers
        self.block(f"end{n}")
        self.registers = dict(before)
        for slot in merged:
            a, b = then_regs.get(slot), else_regs.get(slot)
            known = a if a is not None else b
            assert known is not None
            name = self.fresh("r")
            left, right = (a.text if a else "poison"), (b.text if b else "poison")
            held = self.held_type(slot, known)
            self.lines.append(f"  {name} = phi {held} [ {left}, %{then_label} ], [ {right}, %{else_label} ]")
            self.registers[slot] = Val(name, known.dtype, known.lanes)

    def held_type(self, slot: Slot, held: Val) -> str:
        """LLVM's type of what a slot holds."""
        return self.matrices[slot].type if slot in self.matrices else held.type

    def slot_type(self, slot: Slot) -> tuple[DType, int]:
        return self.slot_dtypes[slot[0]], slot[2]

    # -- memory ------------------------------------------------------------------------------------------------
    def allocate(self, s: loop.Allocate) -> None:
        b = s.buffer
        if id(b) in self.slots.buffers:
            self.slot_dtypes[id(b)] = b.dtype
            self.statement(s.body)
            self.registers = {k: v for k, v in self.registers.items() if k[0] != id(b)}
            return
        if b.scope == "register" and b.name in self.tiles:  # a copy of a tile, after the first is done with
            self.pointers[id(b)] = self.tiles[b.name]
            self.own.add(id(b))
        if id(b) in self.pointers:  # a copy of a loop body holds the same buffer again, after the first is done with it
            self.statement(s.body)
            return
        nbytes = whole_lines(b)
        self.own.add(id(b))
        if b.scope == "global" and not self.in_parallel:
            offset = self.scratch_bytes
            self.scratch_bytes += nbytes
            self.pointers[id(b)] = self.at_entry(f"getelementptr inbounds i8, ptr %scratch, i64 {offset}")
        else:
            self.stack_bytes += nbytes
            if self.stack_bytes > MAX_STACK:
                raise CodegenError(f"{self.fn.name}: {b!r} and others take {self.stack_bytes} bytes of stack")
            self.pointers[id(b)] = self.at_entry(f"alloca [{nbytes} x i8], align 64")
        if b.scope == "register":
            self.tiles[b.name] = self.pointers[id(b)]
        self.statement(s.body)

    def at_entry(self, text: str) -> str:
        """An instruction at the very top of the function."""
        name = self.fresh("m")
        self.levels[0].top.append(f"  {name} = {text}")
        return name

    def store(self, s: loop.Store) -> None:
        lane = s.lane
        lanes = lane.hi + 1 if lane is not None else 0
        if lane is not None and lanes * s.buffer.dtype.itemsize > MASKED and self._may_overlap(s, lane):
            self.store_long(s, lane)
            return
        value = self.widen(self.eval(s.value, lane), lanes)
        slot = self.slots.slot(s.buffer, s.indices, lane)
        if slot is not None:
            self.registers[slot] = value
            return
        self.write(s.buffer, self.places.offset(s.buffer, s.indices), lane, value)
        self.forget(s.buffer)

    def _may_overlap(self, s: loop.Store, lane: Var) -> bool:
        """Whether neighbours in memory may be written twice: nothing is read where they lie."""
        apart = id(s.buffer) in self.own and all(ld.source is not s.buffer for ld in loads(s.value))
        return apart and self.places.offset(s.buffer, s.indices).coefficient(lane) == 1

    def store_long(self, s: loop.Store, lane: Var) -> None:
        """A vector longer than a register as several, of which the last overlaps; they share what they read in pieces.

        LLVM takes minutes over shuffles of some hundred lanes.
        """
        lanes, count = lane.hi + 1, MASKED // s.buffer.dtype.itemsize
        for begin in (min(k, lanes - count) for k in range(0, lanes, count)):
            part = Var(lane.name, 0, count - 1)
            at = {lane: as_index(part) + begin}
            self.around = range(-begin, lanes - begin)
            value = self.widen(self.eval(substitute_vars(s.value, at), part), count)
            indices = tuple(substitute(ix, at) for ix in s.indices)
            self.write(s.buffer, self.places.offset(s.buffer, indices), part, value)
        self.around = None
        self.forget(s.buffer)

    def store_together(self, stores: Sequence[loop.Store]) -> None:
        """Vectors of bytes that are neighbours in memory, by one store."""
        first, vectors, each = stores[0], [], []
        for s in stores:
            assert type(s.value) is Cast
            assert s.lane is not None
            steps = steps_of(s.value)
            assert steps is not None
            vectors.append(self.widen(self.eval(steps.value, s.lane), s.lane.hi + 1))
            each.append(steps)
        if vectors[0].lanes == self.packed_lanes and len({(t.zero, t.most, t.whole) for t in each}) == 1:
            narrow = packed_steps(self, vectors, each[0])
        else:
            narrow = together(self, [limited_steps(self, v, t) for v, t in zip(vectors, each, strict=True)])
        self.write(first.buffer, self.places.offset(first.buffer, first.indices), first.lane, narrow)
        self.forget(first.buffer)

    def forget(self, buffer: loop.Buffer) -> None:
        """Loads of a buffer that was just written are no longer known; operands that it may lie over share the fate."""
        stale = (id(buffer), *self.over.get(id(buffer), ()))
        for written in stale:
            self.loaded.pop(written, None)
        for block in [b for b in self.squares if id(b.buffer) in stale]:
            del self.squares[block]

    # -- functions of their own --------------------------------------------------------------------------------
    def parallel(self, s: loop.For) -> None:
        """The loop as a function of a range, run by the pool."""
        span = ["i64 noundef %begin", "i64 noundef %end"]
        name, fields, values = self.region(s, "", span, lambda: self.counted(s.var, "%begin", "%end", s.body))
        self.module.define(_thunk(name, fields))
        n = max(1, len(fields))
        ctx = self.at_entry(f"alloca [{n} x i64], align 8")
        for k, (t, held) in enumerate(zip(fields, values, strict=True)):
            at = self.pure(f"getelementptr inbounds i64, ptr {ctx}, i64 {k}")
            self.lines.append(f"  store {t} {held}, ptr {at}, align 8")
        self.lines.append(f"  call void @mlc_parallel(ptr %pool, ptr @{name}.thunk, ptr {ctx}, i64 {s.extent})")
        self.loaded.clear()

    def outline(self, s: loop.For) -> None:
        """The loop as a function that is called here.

        What follows a register tile may take dozens of constants. In one function with the tile, LLVM would load them
        before all loops, keep them in registers, and move accumulators to the stack instead.
        """
        name, fields, values = self.region(s, "noinline ", [], lambda: self.statement(s))
        args = ", ".join(f"{t} {held}" for t, held in zip(fields, values, strict=True))
        self.lines.append(f"  call void @{name}({args})")
        self.loaded.clear()

    def region(
        self, s: loop.For, attributes: str, more: Sequence[str], write: Callable[[], None]
    ) -> tuple[str, list[str], list[str]]:
        """Define a function of the buffers and loop variables that ``s`` uses, and of ``more``.

        Args:
            s: a loop.
            attributes: of the function, each followed by a blank.
            more: further parameters.
            write: emits the body.
        Returns:
            its name, and types and values of its arguments.
        """
        outer_vars = list(self.names)
        passed = _used_buffers(s, self.slots, self.places)
        self.regions += 1
        name = f"{self.fn.name}.r{self.regions}"
        saved = {k: getattr(self, k) for k in _STATE}
        self.begin()
        self.in_parallel = True
        args = []
        for k, b in enumerate(passed):
            self.pointers[id(b)] = f"%b{k}"
            args.append(f"ptr {'' if id(b) in self.aliased else 'noalias '}noundef %b{k}")
        for k, v in enumerate(outer_vars):
            self.names[v], self.depth[v] = f"%o{k}", 0
            args.append(f"i64 noundef %o{k}")
        write()
        self.lines.append("  ret void")
        body = _flatten(self.lines)
        self.module.define(
            f"define internal void @{name}({', '.join([*args, *more])}) {attributes}#0 {{\nentry:\n{body}\n}}\n"
        )
        for field, value in saved.items():
            setattr(self, field, value)
        fields = ["ptr"] * len(passed) + ["i64"] * len(outer_vars)
        return name, fields, [self.pointers[id(b)] for b in passed] + [self.names[v] for v in outer_vars]


_STATE = (
    "lines", "label", "levels", "depth", "names", "pointers", "registers", "frames", "loaded", "stack_bytes", "column",
    "squares", "in_parallel", "tiles", "own", "matrices", "homes",
)  # fmt: skip


def _thunk(name: str, fields: Sequence[str]) -> str:
    """``void(ptr ctx, i64 begin, i64 end)``: unpacks the context, so that the region itself can say ``noalias``."""
    lines = [
        f"define internal void @{name}.thunk(ptr noundef %ctx, i64 noundef %begin, i64 noundef %end) #0 {{",
        "entry:",
    ]
    args = []
    for k, t in enumerate(fields):
        lines.append(f"  %a{k} = getelementptr inbounds i64, ptr %ctx, i64 {k}")
        lines.append(f"  %f{k} = load {t}, ptr %a{k}, align 8")
        args.append(f"{t} %f{k}")
    lines.append(f"  call void @{name}({', '.join([*args, 'i64 %begin', 'i64 %end'])})")
    return "\n".join([*lines, "  ret void", "}", ""])


def _used_buffers(s: loop.Stmt, slots: Slots, places: Accesses) -> list[loop.Buffer]:
    """Buffers in memory that a statement touches but does not allocate, each once, in order of appearance."""
    found: dict[loop.Buffer, None] = {}
    own: set[int] = set()
    for stmt in loop.walk(s):
        if type(stmt) is loop.Allocate:
            own.add(id(stmt.buffer))
        for buffer, _, _ in places.of(stmt):
            if id(buffer) not in slots.buffers and id(buffer) not in own:
                found[buffer] = None
    return list(found)


def _flatten(lines: list[Any]) -> str:
    out: list[str] = []
    stack = [iter(lines)]
    while stack:
        for x in stack[-1]:
            if isinstance(x, list):
                stack.append(iter(x))
                break
            out.append(x)
        else:
            stack.pop()
    return "\n".join(out)
