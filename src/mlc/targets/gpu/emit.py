"""Launches of a kernel as functions in a C-like language.

Index arithmetic is written out where it is used: the compilers of these languages move it to where it belongs, and
unroll what a ``#pragma`` says. A store of a vector is one access, as are the loads of it that lie next to each other;
what is computed between is written lane by lane.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from math import prod

import numpy as np

from mlc.errors import CodegenError
from mlc.ir import loop
from mlc.ir.expr import (
    Const,
    Expr,
    Load,
    Select,
    const,
    index_vars,
    loads,
    rewrite,
    select,
    substitute_vars,
)
from mlc.ir.index import Linear, Var, dynamics, substitute, weighted
from mlc.ir.intrinsic import Kind
from mlc.ir.types import DType, u16
from mlc.lower.overlap import copy_of
from mlc.lower.rewrite import places_of, substitute_stmt
from mlc.lower.threads import grid_of, launches
from mlc.targets.gpu.scalars import Scalars, is_narrow
from mlc.targets.gpu.texts import bare, is_lazy
from mlc.targets.gpu.values import Named, Values
from mlc.targets.gpu.vectors import Whole, registers_of

SHARED_UNIT = 16  # bytes


@dataclass(frozen=True)
class Launch:
    """A function that runs as a grid of blocks of threads.

    Args:
        name: of the function.
        operands: what its parameters are: numbers of the kernel's parameters, or, from there on, of its buffers.
        grid: blocks along x, y and z.
        block: threads of each.
        shared: bytes of shared memory that it asks for, besides
        declared: those that its function declares.
    """

    name: str
    operands: tuple[int, ...]
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int = 0
    declared: int = 0


@dataclass(frozen=True)
class Emitted:
    """A kernel's text.

    Args:
        text: its functions.
        launches: in order.
        params: bytes of each parameter.
        buffers: bytes of each that lives from launch to launch.
        wide: parameters that are accessed otherwise than one element at a time, so that where they begin matters.
    """

    text: str
    launches: tuple[Launch, ...]
    params: tuple[int, ...]
    buffers: tuple[int, ...]
    wide: frozenset[int]


def emit(fn: loop.Function, scalars: Scalars) -> Emitted:
    """A kernel in the language of ``scalars``, which learns of the functions that it needs.

    Raises:
        CodegenError: something that the language cannot express.
    """
    kept = _kept(fn.body)
    known = {id(b): k for k, b in enumerate((*fn.params, *kept))}
    texts: list[str] = []
    found: list[Launch] = []
    for k, s in enumerate(launches(fn.body)):
        loops, _, body = grid_of(s)
        used = dict.fromkeys(b for b in _buffers(body) if id(b) in known)
        emitter = _Emitter(scalars, list(used), set(_written(body)))
        name = f"{fn.name}_{k}"
        grid, block = (_extents(loops, kind) for kind in ("blockIdx", "threadIdx"))
        flat = any(n > most for n, most in zip(grid, scalars.dialect.blocks, strict=True))
        texts.append(emitter.function(name, s, grid if flat else None, block))
        launched = (prod(grid), 1, 1) if flat else grid
        if launched[0] > scalars.dialect.blocks[0]:
            raise CodegenError(f"a grid of {prod(grid)} blocks, {scalars.dialect.blocks[0]} are the most")
        found.append(
            Launch(name, tuple(known[id(b)] for b in used), launched, block, emitter.dynamic, emitter.declared)
        )
    params, buffers = (tuple(b.nbytes for b in held) for held in (fn.params, kept))
    wide = {id(b) for x in loop.walk(fn.body) if not _by_elements(x) for b, _ in places_of(x)}
    return Emitted(
        "\n".join(texts), tuple(found), params, buffers, frozenset(k for k, b in enumerate(fn.params) if id(b) in wide)
    )


def _by_elements(s: loop.Stmt) -> bool:
    """Whether a statement, apart from those in it, accesses single elements only."""
    return isinstance(s, loop.For | loop.If) or (isinstance(s, loop.Store) and s.lane is None)


def _extents(loops: Mapping[str, loop.For], kind: str) -> tuple[int, int, int]:
    """Of a grid, or of its blocks, along x, y and z."""
    x, y, z = (loops[axis].extent if (axis := f"{kind}.{d}") in loops else 1 for d in "xyz")
    return x, y, z


def _kept(s: loop.Stmt) -> list[loop.Buffer]:
    """Buffers around launches."""
    if isinstance(s, loop.Allocate) and s.buffer.scope == "global":
        return [s.buffer, *_kept(s.body)]
    return [b for c in s.stmts for b in _kept(c)] if isinstance(s, loop.Seq) else []


def _buffers(s: loop.Stmt) -> list[loop.Buffer]:
    return [b for x in loop.walk(s) for b, _ in places_of(x)]


def _written(s: loop.Stmt) -> list[int]:
    return [id(x.buffer) for x in loop.walk(s) if isinstance(x, loop.Store)]


class _Emitter(Values):
    """One function while it is written."""

    def __init__(self, scalars: Scalars, params: Sequence[loop.Buffer], written: set[int]) -> None:
        super().__init__(scalars)
        self.params = params
        self.written = written
        self.private: set[int] = set()  # arrays of a thread
        self.bits: dict[int, loop.Buffer] = {}  # arrays of narrow floats as such of integers
        self.dynamic = 0  # bytes of shared memory that a launch asks for
        self.declared = 0  # and that the function declares
        self.picks: frozenset[Var] = frozenset()  # variables of loops that pick elements of vectors

    def function(self, name: str, s: loop.Stmt, grid: tuple[int, int, int] | None, block: tuple[int, int, int]) -> str:
        """A launch; where there is a ``grid``, its blocks are counted along x alone."""
        params = []
        for b in self.params:
            form = self.dialect.parameter if id(b) in self.written else self.dialect.constant
            self.arrays[id(b)] = self.fresh(b.name)
            params.append(form.format(type=self.scalars.stored(b.dtype), name=self.arrays[id(b)]))
        loops, shared, body = grid_of(s)
        self.declare(shared)
        for axis, lp in loops.items():
            self.names[lp.var] = self.fresh(lp.var.name)
            index = self.dialect.index[axis] if grid is None else self.flat(axis, grid)
            self.line(f"const int {self.names[lp.var]} = {index};")
        self.registers, self.picks = registers_of(body, self.dialect.math)
        self.statement(body)
        x, y, z = block
        head = self.dialect.kernel.format(x=x, y=y, z=z, threads=x * y * z)
        return "\n".join([f"{head} {name}({', '.join(params)}) {{", *self.lines, "}", ""])

    def declare(self, shared: Sequence[loop.Buffer]) -> None:
        """Shared arrays, by themselves or, where they are too large for that, as parts of one."""
        if sum(map(shared_bytes, shared)) > self.dialect.most_shared:
            self.line(self.dialect.dynamic)
        for b in shared:
            kind, name = self.scalars.stored(b.dtype), self.fresh(b.name)
            self.arrays[id(b)] = name
            if sum(map(shared_bytes, shared)) > self.dialect.most_shared:
                self.line(self.dialect.part.format(type=kind, name=name, at=self.dynamic))
                self.dynamic += shared_bytes(b)
            else:
                self.line(self.dialect.shared.format(type=kind, name=name, size=max(1, b.size)))
                self.declared += shared_bytes(b)

    def flat(self, axis: str, grid: tuple[int, int, int]) -> str:
        """Where a thread stands along an axis, where blocks are counted along x alone."""
        if not axis.startswith("blockIdx"):
            return self.dialect.index[axis]
        at, (x, y, _) = self.dialect.index["blockIdx.x"], grid
        return {"x": f"{at} % {x}", "y": f"{at} / {x} % {y}", "z": f"{at} / {x * y}"}[axis[-1]]

    # -- statements ------------------------------------------------------------------------------------------------
    def statement(self, s: loop.Stmt) -> None:
        self.known = {}
        match s:
            case loop.Seq():
                for c in s.stmts:
                    self.statement(c)
            case loop.For() if s.var in self.picks:
                for k in range(s.extent):
                    self.statement(substitute_stmt(s.body, {s.var: k}))
            case loop.For():
                times = _times(s.body)
                if (s.kind is loop.ForKind.UNROLLED or times) and self.dialect.unroll:
                    self.line(f"{self.dialect.unroll} {times or ''}".rstrip())
                elif self.dialect.loop:
                    self.line(self.dialect.loop)
                self.repeat(s, "0", str(s.extent))
            case loop.ForRange():
                begin = self.value(s.begin)
                self.repeat(s, f"(int){begin}", f"(int){self.value(s.end)}")
            case loop.If():
                self.line(f"if ({bare(self.value(s.cond))}) {{")
                self.inside(s.then)
                if s.orelse is not None:
                    self.line("} else {")
                    self.inside(s.orelse)
                self.line("}")
            case loop.Allocate():
                name = self.arrays[id(s.buffer)] = self.fresh(s.buffer.name)
                self.private.add(id(s.buffer))
                kind, size = self.scalars.stored(s.buffer.dtype), max(1, s.buffer.size)
                if n := self.registers.get(id(s.buffer)):
                    kind, size = self.dialect.vector.format(type=self.scalars.type(s.buffer.dtype), n=n), size // n
                self.line(f"{kind} {name}[{size}];")
                self.statement(s.body)
            case loop.Store():
                self.store(s)
            case loop.Barrier():
                self.line(self.dialect.barrier)
            case loop.Shuffle():
                if not self.dialect.shuffle:
                    raise CodegenError(f"threads cannot exchange what they have in this language:\n{s!r}")
                given = self.dialect.shuffle.format(value=self.place(s.source, s.at), flip=s.flip)
                self.line(f"{self.place(s.buffer, s.indices)} = {given};")
            case loop.Commit():
                self.line(f"{self.copies('commit')}();")
            case loop.Wait():
                self.line(f"{self.copies(f'wait_{s.groups}')}();")
            case loop.Evaluate() if s.intrinsic is None:
                pass  # facts for other generators
            case loop.Evaluate():
                self.collective(s)
            case _:
                raise CodegenError(f"no text for\n{s!r}")

    def repeat(self, s: loop.For | loop.ForRange, begin: str, end: str) -> None:
        name = self.names[s.var] = self.fresh(s.var.name)
        self.line(f"for (int {name} = {begin}; {name} < {end}; ++{name}) {{")
        self.inside(s.body)
        self.line("}")

    def inside(self, s: loop.Stmt) -> None:
        self.depth += 1
        self.statement(s)
        self.depth -= 1

    def store(self, s: loop.Store) -> None:
        if s.asynchronous:
            self.copy(s)
            return
        s = self.as_bits(s)
        if s.lane is not None:
            self.vector(s, s.lane)
            return
        text = self.value(s.value) if id(s.buffer) in self.registers else self.kept(s.value, s.buffer.dtype)
        self.line(f"{self.place(s.buffer, s.indices)} = {bare(text)};")

    def copies(self, name: str) -> str:
        """A function for asynchronous copies."""
        text = self.dialect.copies.get(f"mlc_{name}")
        if text is None:
            raise CodegenError(f"this language has no asynchronous copies ({name})")
        self.scalars.functions.setdefault(f"mlc_{name}", f"{self.dialect.device} {text}")
        return f"mlc_{name}"

    def copy(self, s: loop.Store) -> None:
        """An asynchronous store: memory to memory."""
        found = copy_of(s)
        if found is None:
            raise CodegenError(f"no asynchronous copy:\n{s!r}")
        source, cond = found
        size = (s.lane.hi + 1 if s.lane is not None else 1) * s.buffer.dtype.itemsize
        first = {} if s.lane is None else {s.lane: 0}
        places = [
            f"{self.arrays[id(b)]} + {self.index(weighted([substitute(ix, first) for ix in indices], b.strides()))}"
            for b, indices in ((s.buffer, s.indices), (source.source, source.indices))
        ]
        if isinstance(cond, Const):
            self.line(f"{self.copies(f'copy_{size}')}({', '.join(places)});")
        else:
            self.line(f"{self.copies(f'copy_{size}_or_zero')}({', '.join((*places, bare(self.value(cond))))});")

    def as_bits(self, s: loop.Store) -> loop.Store:
        """A store of narrow floats that are only moved, as one of their bits."""
        t = s.buffer.dtype
        held = any(id(b) in self.registers for b, _ in places_of(s))
        if not is_narrow(t) or not _is_moved(s.value, t) or held:
            return s

        def own(b: loop.Buffer) -> loop.Buffer:
            if id(b) not in self.bits:
                found = self.bits[id(b)] = loop.Buffer(b.name, b.shape, u16, b.scope)
                if id(b) in self.private:
                    self.private.add(id(found))
            found = self.bits[id(b)]
            self.arrays[id(found)] = self.arrays[id(b)]  # a loop that is written out declares the array anew
            return found

        def moved(e: Expr) -> Expr:
            match e:
                case Load():
                    return Load(own(e.source), e.indices)
                case Const():
                    return const(int(np.asarray(e.value, t.numpy).view(np.uint16)), u16)
                case Select():
                    return select(e.cond, moved(e.a), moved(e.b))
            raise CodegenError(f"{type(e).__name__} is no move")

        return loop.Store(own(s.buffer), s.indices, moved(s.value), s.lane)

    def collective(self, s: loop.Evaluate) -> None:
        """What the threads of a warp do together."""
        assert s.intrinsic is not None
        kind, out, *ins = s.args
        if kind == Kind.RESET:
            op = s.intrinsic.op
            assert op.combiner is not None
            (first,) = op.combiner.identity([s.intrinsic.behaviour.dtype])
            for at in product(*map(range, s.intrinsic.behaviour.shape)):
                place = out.offset + sum(k * step for k, step in zip(at, out.strides, strict=True))
                self.line(f"{self.arrays[id(out.buffer)]}[{bare(self.index(place))}] = {self.scalars.const(first)};")
            return
        found = self.dialect.collectives.get(s.name)
        if found is None:
            raise CodegenError(f"this language has nothing for {s.name}")
        for name, text in found.functions.items():
            self.scalars.functions.setdefault(name, text)
        text = found.call
        for d, n in enumerate(s.intrinsic.behaviour.shape):
            text = text.replace(f"{{#{d}}}", str(n))
        for k, a in enumerate((out, *ins)):
            for d, step in enumerate(a.strides):
                text = text.replace(f"{{{k}.{d}}}", str(step))
            text = text.replace(f"{{{k}}}", f"{self.arrays[id(a.buffer)]} + {self.index(a.offset)}")
        self.line(text)

    def vector(self, s: loop.Store, lane: Var) -> None:
        """All lanes of a store; what one condition chooses for all of them is read only where it is chosen."""
        e = s.value
        if isinstance(e, Select) and is_lazy(e) and lane not in index_vars(e.cond) and not loads(e.cond):
            sides = (loop.Store(s.buffer, s.indices, side, lane) for side in (e.a, e.b))
            self.statement(loop.If(e.cond, *sides))
            return
        if self.whole(s, lane):
            return
        n = lane.hi + 1
        base = self.base(s.buffer, s.indices, lane)
        held: dict[int, str] = {}
        for ld in loads(s.value):
            at = self.base(ld.source, ld.indices, lane)
            if at is not None:
                name = self.fresh(f"{ld.source.name}_v")
                kind = self.dialect.vector.format(type=self.scalars.stored(ld.dtype), n=n)
                self.line(f"const {kind} {name} = {self.dialect.load.format(n=n, type=kind, at=at)};")
                held[id(ld)] = name
        values = []
        for k in range(n):

            def own(e: Expr, k: int = k) -> Expr:
                if id(e) in held:
                    text = self.dialect.lane.format(value=held[id(e)], k=f"{k:x}")
                    return Load(Named(self.scalars.loaded(text, e.dtype), e.dtype), ())
                return e

            self.known = {}
            value = substitute_vars(rewrite(s.value, own), {lane: k})
            in_register = id(s.buffer) in self.registers
            values.append(self.value(value) if in_register else self.kept(value, s.buffer.dtype))
            if base is None:
                place = self.place(s.buffer, [substitute(ix, {lane: k}) for ix in s.indices])
                self.line(f"{place} = {bare(values.pop())};")
        if base is not None:
            kind = self.dialect.vector.format(type=self.scalars.stored(s.buffer.dtype), n=n)
            element = self.scalars.stored(s.buffer.dtype)
            made = self.dialect.make.format(vector=kind, type=element, values=", ".join(values))
            self.line(self.dialect.store.format(n=n, type=kind, at=base, value=made))

    def whole(self, s: loop.Store, lane: Var) -> bool:
        """All lanes of a store as one expression, where the language has that."""
        math, b = self.dialect.math, s.buffer
        if math is None:
            return False
        base = None if id(b) in self.registers else self.base(b, s.indices, lane)
        whole = Whole(self, lane, math)
        half = is_narrow(b.dtype) and base is not None
        if (id(b) not in self.registers and base is None) or (half and b.scope != "global") or not whole.can(s.value):
            return False
        self.known = {}
        text = bare(whole.text(s.value, halved=half))
        if base is None:
            first = weighted(s.indices, b.strides()).without(lane)
            self.line(f"{self.register(b, first)} = {text};")
        elif half:
            self.line(math.store_half.format(n=whole.n, at=base, value=text))
        else:
            self.line(self.dialect.store.format(n=whole.n, type=whole.type, at=base, value=text))
        return True

    def base(self, b: loop.Buffer, indices: Sequence[Linear], lane: Var) -> str | None:
        """A pointer to the first lane's element, where lanes lie next to each other and begin at a whole vector."""
        n = lane.hi + 1
        offset = weighted(indices, b.strides())
        if n not in self.dialect.vectors or dynamics(offset) or offset.coefficient(lane) != 1:
            return None
        if id(b) in self.private:
            return None  # its elements are registers
        first = offset.without(lane)
        if not first.multiple_of(n) or b.dtype.kind == "b":
            return None
        return f"{self.arrays[id(b)]} + {self.index(first)}"


def shared_bytes(b: loop.Buffer) -> int:
    """Bytes of an array in shared memory, each of which begins at a whole vector."""
    return max(1, -(-b.nbytes // SHARED_UNIT)) * SHARED_UNIT


def _is_moved(e: Expr, t: DType) -> bool:
    """Whether a value of a type is one that lies somewhere, or a constant, whichever is chosen."""
    if isinstance(e, Select):
        return _is_moved(e.a, t) and _is_moved(e.b, t)
    return isinstance(e, (Load, Const)) and e.dtype is t


def source_of(scalars: Scalars, texts: Sequence[str]) -> str:
    """A whole text: what comes first, functions in use, and kernels."""
    parts = [scalars.dialect.preamble, *scalars.functions.values(), "", *texts]
    return "\n".join(p for p in parts if p) + "\n"


def _times(body: loop.Stmt) -> int:
    """How often a loop's body is to be written out in a row (``pragma.unroll``); 0 where nothing is said."""
    first = body.stmts[0] if isinstance(body, loop.Seq) and body.stmts else body
    if isinstance(first, loop.Evaluate) and first.name == "pragma.unroll":
        (times,) = first.args
        assert isinstance(times, int)
        return times
    return 0
