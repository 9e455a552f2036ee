"""From a loop AST to instructions: loops around instruction nests are run here, nests become instructions.

In: a kernel whose buffers lie in DRAM (``global``) or in the accelerator's memories. What a statement becomes follows
from where its operands lie: a copy from DRAM is a load, a copy or an epilogue to DRAM a store, arithmetic between
accumulators ALU instructions, the matrix product's intrinsic a GEMM. Out: steps, appended to a stream.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from mlc.errors import ScheduleError
from mlc.ir.expr import Cast, Expr, Load, Select, Within, loads
from mlc.ir.index import Var
from mlc.ir.intrinsic import Kind
from mlc.ir.loop import (
    Access,
    Allocate,
    Buffer,
    Evaluate,
    For,
    Function,
    If,
    Seq,
    Stmt,
    Store,
    is_nothing,
)
from mlc.ir.types import i8, i32
from mlc.vdla.codegen.constants import ConstantNest, Loaded
from mlc.vdla.codegen.copies import Copy, copy_of
from mlc.vdla.codegen.dma import blocks, contents
from mlc.vdla.codegen.emit import DRAM_BITS, Emitter
from mlc.vdla.codegen.epilogue import Epilogue, Operation
from mlc.vdla.codegen.facts import Facts, check_capacity, copied, elements, is_fill
from mlc.vdla.codegen.kernels import Axis, cut, merge
from mlc.vdla.codegen.memory import UNKNOWN, Instance
from mlc.vdla.codegen.nest import Form, Nest, flat, form, nest_of, range_of, ranges, tangled
from mlc.vdla.codegen.placement import Placement, place_buffers
from mlc.vdla.codegen.stream import Step, mask_of, places
from mlc.vdla.codegen.structural import is_token
from mlc.vdla.config import VdlaConfig
from mlc.vdla.intrinsics import ACC, scopes
from mlc.vdla.isa.instruction import GemmMode, Mem

Env = dict[Var, int]
Run = Callable[[Env], None]


@dataclass(frozen=True, eq=False)
class Binding:
    """What a parameter of a kernel is.

    Args:
        buffer: index among the DRAM buffers of the region.
        array: its values, where they are known at compile time; loads of it are repacked.
    """

    buffer: int
    array: np.ndarray | None = None


def emit(emitter: Emitter, fn: Function, bindings: Sequence[Binding], slots: Mapping[str, int] | None = None) -> None:
    """Append a kernel that is emitted but once; arguments and errors as for :class:`Statements`."""
    arrays = {b: bound.array for b, bound in zip(fn.params, bindings, strict=True) if bound.array is not None}
    Statements(fn, emitter.config, arrays, slots).emit(emitter, [bound.buffer for bound in bindings])


class Statements:
    """A kernel's statements as functions of the variables of the loops around them.

    They are made once, and emitted as often as wanted: a search over regions does that for thousands of programs.

    Args:
        fn: the kernel, lowered.
        config: the accelerator.
        arrays: the values of those parameters that are constants; loads of them are repacked.
        slots: how many places a buffer of a memory has, which it takes in turn; where a memory is left out, its buffers
            take what is free around the whole memory, and a load of what the memory holds is left out.
    Raises:
        ScheduleError: the accelerator cannot do it, or its memories are too small.
    """

    def __init__(
        self,
        fn: Function,
        config: VdlaConfig,
        arrays: Mapping[Buffer, np.ndarray],
        slots: Mapping[str, int] | None = None,
    ) -> None:
        self.fn, self.config, self.arrays, self.slots = fn, config, arrays, slots or {}
        self.scopes = scopes(config)
        self.facts = Facts(fn)
        check_capacity(fn, config, slots, self.facts)
        self._run = self._statement(fn.body, ())
        # while it is emitted: where to, the DRAM buffer of every parameter, and where on-chip buffers lie
        self._emitter: Emitter | None = None
        self.buffers: Mapping[Buffer, int] = {}
        self.instances: dict[Buffer, Instance] = {}
        self.placed = Placement()

    def emit(self, emitter: Emitter, buffers: Sequence[int]) -> None:
        """Append the kernel.

        Args:
            emitter: the stream, for the same accelerator.
            buffers: DRAM buffers of the parameters, by index.
        Raises:
            ScheduleError: the memories are too small, or the kernel's tokens cannot be kept.
        """
        self._emitter, self.buffers = emitter, dict(zip(self.fn.params, buffers, strict=True))
        self.instances = {}
        # ends of memories in turn, so that a layer's first loads need not wait for the last products of the one before
        last = emitter.layer % 2 == 0
        self.placed = place_buffers(self.fn, self.facts, emitter.scopes, emitter.memories, self.slots, last=last)
        self._run({})
        self._emitter = None

    @property
    def e(self) -> Emitter:
        """The stream to which the kernel is being appended."""
        assert self._emitter is not None
        return self._emitter

    # -- memory -------------------------------------------------------------------------------------------------
    def _base(self, buffer: Buffer) -> int:
        """First element of an on-chip buffer, which gets its place now if it has none."""
        return self.e.memories[buffer.scope].place(self._instance(buffer))

    def _instance(self, buffer: Buffer) -> Instance:
        return self.instances[self.facts.of(buffer)]

    # -- statements ---------------------------------------------------------------------------------------------
    def _statement(self, s: Stmt, around: tuple[Var, ...]) -> Run:
        if is_nothing(s):
            return _nothing
        nest = nest_of(s)
        if nest is not None:
            return self._nest(nest, around)
        if isinstance(s, For):
            return _loop(s.var, s.extent, self._statement(s.body, (*around, s.var)))
        if isinstance(s, Seq):
            parts = [self._statement(c, around) for c in s.stmts]

            def sequence(env: Env) -> None:
                for run in parts:
                    run(env)

            return sequence
        if isinstance(s, If):
            return self._branch(s, around)
        if isinstance(s, Allocate):
            return self._allocate(s, around)
        raise ScheduleError(f"{s!r}: the accelerator has no such statement")

    def _branch(self, s: If, around: tuple[Var, ...]) -> Run:
        checks = [range_of(g, ()) for g in ranges(s.cond)]
        then = self._statement(s.then, around)
        orelse = self._statement(s.orelse, around) if s.orelse is not None else _nothing

        def branch(env: Env) -> None:
            (then if all(c.limits(env, 1)[1] for c in checks) else orelse)(env)

        return branch

    def _allocate(self, s: Allocate, around: tuple[Var, ...]) -> Run:
        buffer = s.buffer
        if buffer.scope not in self.scopes:
            raise ScheduleError(f"{buffer!r}: the accelerator has no memory {buffer.scope!r}")
        body = self._statement(s.body, around)
        if buffer in self.facts.root:
            return body
        size = elements(buffer, self.scopes[buffer.scope].lanes)

        def allocate(env: Env) -> None:
            places, within = self.placed.places.get(buffer), self.placed.within.get(buffer)
            it = self.instances[buffer] = Instance(buffer.name, size, places, within)
            body(env)
            self.e.memories[buffer.scope].release(it)
            if buffer.scope == ACC and it.base is not None:
                self.e.pending &= ~(((1 << size) - 1) << it.base)

        return allocate

    # -- nests --------------------------------------------------------------------------------------------------
    def _nest(self, nest: Nest, around: tuple[Var, ...]) -> Run:
        leaf = nest.leaf
        if leaf in self.facts.done:
            return _nothing
        if is_token(leaf):
            return self._token(leaf, nest)
        peeled = self._peel(nest)
        inside = Nest(leaf, nest.loops[peeled:], nest.guards, [(d - peeled, k, v) for d, k, v in nest.facts])
        if isinstance(leaf, Evaluate):
            if leaf.intrinsic is None or leaf.intrinsic.name != "vdla.gemm":
                raise ScheduleError(f"{leaf!r}: the accelerator has no such instruction")
            run = self._gemm(inside, around)
        elif leaf in self.facts.epilogues:
            run = self._store(inside, self.facts.epilogues[leaf], (*around, *(v for v, _ in nest.loops[:peeled])))
        else:
            run = self._load(inside, once=not peeled and around == self.facts.around.get(leaf.buffer))
        for var, extent in reversed(nest.loops[:peeled]):
            run = _loop(var, extent, run)
        return run

    def _token(self, leaf: Stmt, nest: Nest) -> Run:
        if nest.loops or nest.guards:
            alone: ScheduleError | None = ScheduleError(f"{leaf!r}: a token alone in a loop, or under a condition")
        else:
            alone = None
        assert isinstance(leaf, Evaluate)

        def token(env: Env) -> None:
            if self.e.given is None:
                return
            if alone is not None:
                raise alone
            self.e.given.token(leaf)

        return token

    def _peel(self, nest: Nest) -> int:
        """How many outer loops of a nest have to be run here, since no instruction has such addresses or checks."""
        at = {v: k for k, (v, _) in enumerate(nest.loops)}
        leaf = nest.leaf
        forms = []
        guards = list(nest.guards)
        if isinstance(leaf, Store):
            forms += list(leaf.indices)
            if not self._is_constant(leaf.value):
                for ld in loads(leaf.value):
                    forms += list(ld.indices)
                guards += _zero_guards(leaf.value)
        else:
            forms += [ix for a in leaf.args if isinstance(a, Access) for ix in a.indices]
        peeled = 0
        for ix in (*forms, *(g.index for g in guards)):
            peeled = max([peeled, *(at[v] + 1 for v in tangled(ix) if v in at)])
        for g in guards:
            inside = sorted(at[v] for v in g.index.vars() if at.get(v, -1) >= peeled)
            if len(inside) > 1:
                peeled = inside[-2] + 1
        return peeled

    def _is_constant(self, value: Expr) -> bool:
        """Whether a value is known at compile time, whatever its form."""
        return all(ld.source in self.arrays for ld in loads(value))

    def _limits(self, nest: Nest) -> Callable[[Env], list[tuple[int, int]] | None]:
        """The iterations of each loop that count; ``None`` for none at all."""
        loops = [v for v, _ in nest.loops]
        whole = [(0, n) for _, n in nest.loops]
        checks = [range_of(g, loops) for g in nest.guards]

        def limits(env: Env) -> list[tuple[int, int]] | None:
            if not checks:
                return whole
            out = list(whole)
            for c in checks:
                if c.loop < 0:
                    if not c.limits(env, 1)[1]:
                        return None
                    continue
                begin, end = c.limits(env, nest.loops[c.loop][1])
                out[c.loop] = max(out[c.loop][0], begin), min(out[c.loop][1], end)
            return None if any(b >= e for b, e in out) else out

        return limits

    def _gemm(self, nest: Nest, around: tuple[Var, ...]) -> Run:
        kind, *operands = nest.leaf.args  # type: ignore[union-attr]
        if nest.leaf in self.facts.more:
            if kind == Kind.RESET:
                return _nothing
            kind = Kind.UPDATE
        loops = [v for v, _ in nest.loops]
        forms = [self._elements(a, loops) for a in operands]
        steps = list(zip(*(f.steps for f in forms), strict=True)) if loops else []
        limits = self._limits(nest)
        buffers = [a.buffer for a in operands]
        lead = nest.fact("gemm_lead")
        axes_of: dict[tuple[tuple[int, int], ...], tuple[Axis, ...]] = {}

        def one(env: Env, at: list[tuple[int, int]]) -> None:
            key = tuple(at)
            axes = axes_of.get(key)
            if axes is None:
                axes = axes_of[key] = merge([Axis(e - b, *_three(s)) for (b, e), s in zip(at, steps, strict=True)])
            bases = [
                self._base(buffer) + f.at(env) + sum(b * s for (b, _), s in zip(at, f.steps, strict=True) if b)
                for buffer, f in zip(buffers, forms, strict=True)
            ]
            self._product(kind, axes, *bases)

        def run(env: Env) -> None:
            at = limits(env)
            if at is None:
                return
            # what is said of a loop that is none here says nothing
            if lead is not None and lead[0] > 0 and kind != Kind.RESET and not any(env[v] for v in around):
                k, n = lead[0] - 1, int(lead[1])  # type: ignore[call-overload]
                begin, end = at[k]
                for b in range(begin, end, n):
                    one(env, [*at[:k], (b, min(b + n, end)), *at[k + 1 :]])
                return
            one(env, at)

        return run

    def _elements(self, a: Access, loops: Sequence[Var]) -> Form:
        """Where an operand of the matrix product lies, in elements."""
        scope = self.scopes.get(a.buffer.scope)
        if scope is None:
            raise ScheduleError(f"{a!r} lies in {a.buffer.scope}, the matrix product wants it in a memory of its own")
        return form(flat(a.buffer, a.indices), loops).divided(scope.lanes, (), repr(a))

    def _product(self, kind: Kind, axes: tuple[Axis, ...], dst: int, src: int = 0, wgt: int = 0) -> None:
        e = self.e
        starts = e.config.ext_gemm_set
        mask = e.kernels.written(axes, dst)
        if kind != Kind.UPDATE:
            if starts:
                e.pending |= mask
            else:
                cleared = merge([Axis(a.extent, a.dst, 0) for a in axes if a.dst])
                e.product(GemmMode.ZERO, e.kernels.elementwise(cleared, dst, 0))
            if kind == Kind.RESET:
                return
        if (of := cut(axes, e.config, starts)) is not None:
            a, rest = axes[of], (*axes[:of], *axes[of + 1 :])
            for k in range(a.extent):
                self._product(Kind.UPDATE, rest, dst + k * a.dst, src + k * a.src, wgt + k * a.wgt)
            return
        set_all = bool(e.pending & mask) and e.pending & mask == mask
        if set_all:
            e.pending &= ~mask
        elif e.pending & mask:
            e.clear(mask)
        e.product(GemmMode.SET if set_all else GemmMode.ACC, e.kernels.product(axes, dst, src, wgt, set_all))

    # -- transfers ----------------------------------------------------------------------------------------------
    def _load(self, nest: Nest, once: bool) -> Run:
        """A copy onto the chip; ``once`` says whether it is the only one in the life of its buffer."""
        store = nest.leaf
        assert isinstance(store, Store)
        target = store.buffer
        if target.scope not in self.scopes or not is_fill(store):
            raise ScheduleError(f"{store!r}: no instruction copies this")
        value, mem = copied(store.value), self.scopes[target.scope].mem
        if value is not None:
            if value.source not in self.fn.params:
                raise ScheduleError(f"{store!r}: {value.source.name} is no parameter")
            mem = self._moved(mem, value.source, target)
        moved, limits = self._loaded(nest, value), self._limits(nest)
        rows = self._rows(nest, value)
        # nothing else is ever written where the buffer lies, so it may lie where its contents are
        alone = once and target in self.facts.constant

        def run(env: Env) -> None:
            at = limits(env)
            if at is None:
                return
            e = self.e
            memory, pure = e.memories[target.scope], alone and e.given is None
            buffer = -1 if value is None else self.buffers[value.source]
            it, found = self._instance(target), moved(env, at)
            if pure and it.base is None and memory.find(it, found.offsets + found.sram, found.names):
                return
            if pure and it.base is None and it.places is None and rows is not None:
                k, step = rows
                if there := memory.overlap(it, step, found.offsets + found.sram, found.names):
                    at = [*at[:k], (at[k][0] + there, at[k][1]), *at[k + 1 :]]
                    found = moved(env, at)
            base = memory.place(it) + found.sram
            if target.scope == ACC and e.pending:
                e.pending &= ~mask_of(places(base + found.offsets))
            dram = found.dram if found.values is None else e.constants.store(buffer, found.values)
            for block in found.blocks:
                e.add(Step(block.load(mem, base, dram), buffer if block.rows else -1))
            memory.wrote(base + found.offsets, found.names if pure else UNKNOWN)
            e.loaded.add(buffer)

        return run

    def _loaded(self, nest: Nest, value: Load | None) -> Callable[[Env, list[tuple[int, int]]], Loaded]:
        """What a nest loads in one iteration around it, given the iterations of its loops that count.

        Args:
            nest: a copy onto the chip.
            value: what it reads; ``None`` where it writes nothing but zeros.
        """
        store = nest.leaf
        assert isinstance(store, Store)
        lanes, held = self.scopes[store.buffer.scope].lanes, flat(store.buffer, store.indices)
        loops = [v for v, _ in nest.loops]
        fact = nest.fact("dma_copy")
        split = fact[1] if fact is not None and type(fact[1]) is int else 0
        if value is not None and value.source in self.arrays:
            constant = ConstantNest(nest, store.value, self.arrays[value.source], form(held, loops), lanes)
            return lambda env, at: constant.load(env, at, split)
        copy = copy_of(nest, held, held if value is None else flat(value.source, value.indices), lanes)
        zeros = [range_of(g, loops) for g in _zero_guards(store.value)]
        if any(z.loop in copy.lanes for z in zeros):
            raise ScheduleError(f"{store!r}: zeros within an element of {lanes}")

        def moved(env: Env, at: list[tuple[int, int]]) -> Loaded:
            dims, sram, dram = copy.dims(env, at, zeros, nest)
            if value is None:
                dims = tuple(replace(d, lo=0, hi=0) for d in dims)
                offsets, numbers = contents(dims)
                return Loaded(sram, offsets, numbers, blocks(dims, split))
            offsets, numbers = contents(dims)
            names = np.where(numbers < 0, -1, numbers + (dram + (self.buffers[value.source] << DRAM_BITS)))
            return Loaded(sram, offsets, names, blocks(dims, split), dram)

        return moved

    def _rows(self, nest: Nest, value: Load | None) -> tuple[int, int] | None:
        """The loop of a copy over what lies farthest apart on the chip, and how many elements that is.

        ``None`` for constants, whose loads bring whatever comes next.
        """
        if value is None or value.source in self.arrays:
            return None
        store = nest.leaf
        assert isinstance(store, Store)
        held, lanes = flat(store.buffer, store.indices), self.scopes[store.buffer.scope].lanes
        copy = copy_of(nest, held, flat(value.source, value.indices), lanes)
        steps = [(s, k) for k, s in zip(copy.loops, copy.sram.steps, strict=True) if nest.loops[k][1] > 1]
        if not steps:
            return None
        step, k = max(steps)
        return k, step

    def _moved(self, mem: Mem, source: Buffer, target: Buffer) -> Mem:
        """What a load or store between two buffers moves."""
        config = self.config
        if mem is not Mem.ACC:
            return mem
        wide, narrow = (source, target) if source.scope != "global" else (target, source)
        if narrow.dtype is i32 and wide.dtype is i32:
            return Mem.ACC
        if narrow.dtype is not i8 or wide.dtype is not i32:
            raise ScheduleError(f"no instruction moves {source!r} to {target!r}")
        if narrow is source:
            if not config.ext_alu:
                raise ScheduleError(f"{source.name} is widened on its way into accumulators: that needs ext_alu")
            return Mem.ACC8
        if not config.ext_store_requant:
            raise ScheduleError(f"{target.name} is narrowed on its way out: that needs ext_store_requant")
        return Mem.OUT

    # -- what follows a product ---------------------------------------------------------------------------------
    def _store(self, nest: Nest, epilogue: Epilogue, around: tuple[Var, ...]) -> Run:
        store, root = nest.leaf, epilogue.root
        assert isinstance(store, Store)
        if root.source.scope != ACC:
            raise ScheduleError(f"{store!r}: {root.source.name} is not in {ACC}")
        held, stored = flat(root.source, root.indices), flat(store.buffer, store.indices)
        copy = copy_of(nest, held, stored, self.scopes[ACC].lanes)
        limits = self._limits(nest)
        operations = [self._operation(o, nest, copy, around) for o in epilogue.operations]
        out: Mem | None = None
        if store.buffer.scope == "global":
            if store.buffer not in self.fn.params:
                raise ScheduleError(f"{store!r}: {store.buffer.name} is no parameter")
            out = self._moved(Mem.ACC, root.source, store.buffer)
            if (out is Mem.OUT) != epilogue.narrow:
                raise ScheduleError(f"{store!r}: what is stored as i8 is clamped first")
        fact = nest.fact("dma_copy")
        split = fact[1] if fact is not None and type(fact[1]) is int else 0

        def run(env: Env) -> None:
            at = limits(env)
            if at is None:
                return
            e = self.e
            if e.given is not None and operations and out is not None:
                raise ScheduleError(
                    f"{store!r}: computes and stores, which are two units; tokens by structure want one"
                )
            for operate in operations:
                operate(env, at)
            if out is None:
                return
            dims, sram, dram = copy.dims(env, at, (), nest)
            buffer = self.buffers[store.buffer]
            base = self._base(root.source) + sram
            if e.pending:
                e.clear(mask_of(places(base + contents(dims)[0])))
            for block in blocks(dims, split):
                e.add(Step(block.store(out, base, dram, epilogue.shift, epilogue.relu), buffer))
            e.stored(buffer)

        return run

    def _operation(
        self, o: Operation, nest: Nest, copy: Copy, around: tuple[Var, ...]
    ) -> Callable[[Env, list[tuple[int, int]]], None]:
        """One operation of an epilogue on the iterations of its nest that count."""
        loops = [v for v, _ in nest.loops]
        if not self.config.ext_alu:
            raise ScheduleError(f"{nest.leaf!r}: {o.op.name} of accumulators needs ext_alu")
        lanes = self.scopes[ACC].lanes
        forms = []
        for ld in (o.target, o.source):
            if ld is None:
                continue
            if ld.source.scope != ACC:
                raise ScheduleError(f"{nest.leaf!r}: {ld.source.name} is not in {ACC}")
            f = form(flat(ld.source, ld.indices), loops)
            if [f.steps[k] for k in copy.lanes] != [copy.lane_steps[k] for k in copy.lanes]:
                raise ScheduleError(f"{ld!r} does not read whole elements of {lanes}")
            forms.append(f.divided(lanes, copy.lanes, repr(ld)))
        target = forms[0]
        again = set(around) - self.facts.filled(o.target.source)
        if 0 in target.steps or not again <= target.fixed.vars():
            raise ScheduleError(f"{nest.leaf!r}: {o.op.name} would be applied to {o.target!r} more than once")
        buffers = [ld.source for ld in (o.target, o.source) if ld is not None]

        def operate(env: Env, at: list[tuple[int, int]]) -> None:
            some = [at[k] for k in copy.loops]
            bases = [
                self._base(b) + f.at(env) + sum(lo * s for (lo, _), s in zip(some, f.steps, strict=True))
                for b, f in zip(buffers, forms, strict=True)
            ]
            steps = zip(*(f.steps for f in forms), strict=True)
            axes = merge([Axis(hi - lo, *_two(s)) for (lo, hi), s in zip(some, steps, strict=True)])
            self.e.operate(o, self.e.kernels.elementwise(axes, *_two(bases)))

        return operate


def _two(values: Sequence[int]) -> tuple[int, int]:
    return values[0], values[1] if len(values) > 1 else 0


def _three(values: Sequence[int]) -> tuple[int, int, int]:
    return values[0], values[1] if len(values) > 1 else 0, values[2] if len(values) > 2 else 0


def _zero_guards(e: Expr) -> list[Within]:
    """The checks that fail where a copied value is zero."""
    if isinstance(e, Select):
        return ranges(e.cond) + _zero_guards(e.a)
    return _zero_guards(e.a) if isinstance(e, Cast) else []


def _nothing(env: Env) -> None:
    pass


def _loop(var: Var, extent: int, body: Run) -> Run:
    def loop(env: Env) -> None:
        for k in range(extent):
            env[var] = k
            body(env)

    return loop
