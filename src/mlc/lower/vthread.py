"""Virtual threads: iterations of a loop interleaved in one stream, so that units that run at the same time overlap.

In: ``For(kind=VTHREAD)``. Out: none left. ``for t in vthread(2): f(t); g(t)`` becomes ``f(0); f(1); g(0); g(1)``; loops
around ``f`` and ``g`` are shared, and a buffer that threads fill differently gets a leading dimension, a slot a thread.

For a target with :class:`Units`, tokens are put in first (TVM, section "explicit memory latency hiding"): each thread
is serialised by itself, so what overlaps is one thread's load with another's arithmetic.

* ``a; b`` on different units: ``a; push(a, b); pop(a, b); b``.
* A loop that begins on unit f and ends on unit l: an iteration begins with ``pop(l, f)`` and ends with ``push(l, f)``,
  since what f overwrites has to be free; one ``push`` before the loop, one ``pop`` after it.
* Units without a queue between them send tokens through others.

Every thread sends the same tokens in the same order, and statements are interleaved together with theirs. So the k-th
push to a queue and the k-th pop from it belong to one thread.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from mlc.errors import LowerError
from mlc.ir.expr import index_vars, loads
from mlc.ir.index import Linear, Var, as_index
from mlc.ir.loop import (
    Access,
    Allocate,
    Buffer,
    Evaluate,
    For,
    ForKind,
    ForRange,
    If,
    Prefetch,
    Seq,
    Stmt,
    Store,
    is_nothing,
    rebuild,
    seq,
    sub_statements,
    walk,
)
from mlc.lower.rewrite import exprs_of, map_places, places_of, substitute_stmt


@dataclass(frozen=True)
class Units:
    """The units of an accelerator, each of which runs its own statements in order.

    Args:
        classify: the unit that a store or an intrinsic runs on; ``None`` where there is none.
        queues: pairs of units that can send tokens to each other.
    """

    classify: Callable[[Stmt], str | None]
    queues: tuple[tuple[str, str], ...]

    def route(self, a: str, b: str) -> tuple[str, ...]:
        """Units that a token from ``a`` to ``b`` passes, both ends included; as few as possible.

        Raises:
            LowerError: no queues lead there.
        """
        paths: list[tuple[str, ...]] = [(a,)]
        seen = {a}
        for path in paths:
            if path[-1] == b:
                return path
            for x, y in self.queues:
                for here, there in ((x, y), (y, x)):
                    if here == path[-1] and there not in seen:
                        seen.add(there)
                        paths.append((*path, there))
        raise LowerError(f"vthread: no queues lead from unit {a} to unit {b}")


def vthread(s: Stmt, units: Units | None = None) -> Stmt:
    """Interleave virtual threads, with tokens in between where there are units.

    Raises:
        LowerError: a statement has no unit, units are not connected, or a branch on values spans units.
    """
    if units is None:
        return _plain(s)
    part = _Tokens(units).part(_outwards(s))
    return _flat(seq(part.stmts())) if part is not None else s


def _plain(s: Stmt) -> Stmt:
    s = rebuild(s, _plain)
    return _interleaved(s) if type(s) is For and s.kind is ForKind.VTHREAD else s


# -- tokens ------------------------------------------------------------------------------------------------------------
@dataclass(slots=True, eq=False, repr=False)
class _Group(Seq):
    """Statements of one unit with their tokens: what interleaving keeps together."""


@dataclass(slots=True)
class _Part:
    """A statement that begins on one unit and ends on one.

    Args:
        enter: the unit that it begins on.
        leave: the unit that it ends on.
        content: statements, all of one unit where ``single``, and parts, in order.
        single: whether ``enter`` does everything.
        buffer: what is allocated around it, if anything.
        before: tokens that it waits for.
        after: tokens that it sends.
    """

    enter: str
    leave: str
    content: list[Stmt | _Part]
    single: bool = False
    buffer: Buffer | None = None
    before: list[Stmt] = field(default_factory=list)
    after: list[Stmt] = field(default_factory=list)

    def wait(self, tokens: Sequence[Stmt]) -> None:
        """Take tokens as late as possible: right before the first statement."""
        first = next(c for c in self.content if isinstance(c, _Part) or not is_nothing(c))
        if isinstance(first, _Part):
            first.wait(tokens)
        else:
            self.before += tokens

    def send(self, token: Stmt) -> None:
        """Send a token as early as possible: right after the last statement."""
        last = self.content[-1]
        if isinstance(last, _Part):
            last.send(token)
        else:
            self.after.append(token)

    def stmts(self) -> list[Stmt]:
        """The part as statements, tokens in groups with those of one unit."""
        inner: list[Stmt] = []
        for c in self.content:
            inner += c.stmts() if isinstance(c, _Part) else [c]
        if self.buffer is not None:
            inner = [Allocate(self.buffer, Seq(tuple(inner)))]
        if self.single:
            return [_Group((*self.before, *inner, *self.after))]
        return [*_grouped(self.before), *inner, *_grouped(self.after)]


def _grouped(tokens: Sequence[Stmt]) -> list[Stmt]:
    return [_Group(tuple(tokens))] if tokens else []


class _Tokens:
    def __init__(self, units: Units) -> None:
        self.units = units

    def on(self, s: Stmt) -> set[str]:
        """The units that run a statement."""
        found: set[str] = set()
        for leaf in walk(s):
            if type(leaf) is Store or (type(leaf) is Evaluate and not is_nothing(leaf)):
                unit = self.units.classify(leaf)
                if unit is None:
                    raise LowerError(f"vthread: no unit runs\n{leaf!r}")
                found.add(unit)
        return found

    def part(self, s: Stmt) -> _Part | None:
        """A statement with its tokens; nothing where nothing is done."""
        units = self.on(s)
        if not units:
            return None
        if len(units) == 1 and not any(type(x) is Allocate or _is_thread(x) for x in walk(s)):
            (unit,) = units
            return _Part(unit, unit, [s], single=True)
        match s:
            case Seq():
                return self.sequence(s.stmts)
            case For():
                return self.loop(s)
            case If():
                return self.part(_sunk(s))
            case Allocate():
                inner = self.part(s.body)
                assert inner is not None
                return _Part(inner.enter, inner.leave, [inner], buffer=s.buffer)
            case _:
                raise LowerError(f"vthread: these iterations are counted at run time, on several units:\n{s!r}")

    def sequence(self, stmts: Sequence[Stmt]) -> _Part:
        parts: list[_Part] = []
        facts: list[Stmt] = []  # of what follows
        for c in stmts:
            p = self.part(c)
            if p is None:
                facts.append(c)
                continue
            p.content, facts = [*facts, *p.content], []
            last = parts[-1] if parts else None
            if last is not None and last.single and p.single and last.leave == p.enter:
                last.content += p.content
                continue
            if last is not None and last.leave != p.enter:
                send, relay, wait = self.token(last.leave, p.enter)
                last.send(send)
                p.wait([*relay, wait])
            parts.append(p)
        return parts[0] if len(parts) == 1 else _Part(parts[0].enter, parts[-1].leave, [*parts])

    def loop(self, s: For) -> _Part:
        inner = self.part(s.body)
        assert inner is not None
        enter, leave = inner.enter, inner.leave
        if _is_thread(s):
            body = For(s.var, s.extent, s.kind, Seq(tuple(inner.stmts())))
            return _Part(enter, leave, [_interleaved(body)])
        before: list[Stmt] = []
        after: list[Stmt] = []
        if enter != leave:
            send, relay, wait = self.token(leave, enter)
            before, after = _grouped([send]), _grouped([*relay, wait])
            inner.wait([*relay, wait])
            inner.send(send)
        loop = For(s.var, s.extent, s.kind, Seq(tuple(inner.stmts())), s.thread)
        return _Part(enter, leave, [*before, loop, *after])

    def token(self, a: str, b: str) -> tuple[Stmt, list[Stmt], Stmt]:
        """What unit ``a`` sends, what units on the way hand on, and what unit ``b`` waits for."""
        path = self.units.route(a, b)
        hops = list(pairwise(path))
        relay: list[Stmt] = []
        for come, go in pairwise(hops):
            relay += [Evaluate("pop", come), Evaluate("push", go)]
        return Evaluate("push", hops[0]), relay, Evaluate("pop", hops[-1])


def _is_thread(s: Stmt) -> bool:
    return type(s) is For and s.kind is ForKind.VTHREAD


def _sunk(s: If) -> Stmt:
    """A condition on several statements becomes one on each."""
    if s.orelse is not None or loads(s.cond):
        raise LowerError(f"vthread: a branch that only a run decides, or with two sides, spans units:\n{s!r}")
    body = s.then
    if isinstance(body, If):
        return If(s.cond, _sunk(body))
    if isinstance(body, Seq):
        return Seq(tuple([c if is_nothing(c) else If(s.cond, c) for c in body.stmts]))
    return rebuild(body, lambda c: If(s.cond, c))


def _outwards(s: Stmt) -> Stmt:
    """Move loops over threads out of the loops that hold nothing else: threads then overlap across their iterations."""
    s = rebuild(s, _outwards)
    if type(s) is For and s.kind is ForKind.SERIAL:
        facts, last = (s.body.stmts[:-1], s.body.stmts[-1]) if type(s.body) is Seq and s.body.stmts else ((), s.body)
        if isinstance(last, For) and _is_thread(last) and all(map(is_nothing, facts)):
            inner = _outwards(For(s.var, s.extent, s.kind, seq([*facts, last.body]), s.thread))
            return For(last.var, last.extent, last.kind, inner)
    return s


def _flat(s: Stmt) -> Stmt:
    """Groups become part of the sequences around them."""
    return seq([_flat(c) for c in s.stmts]) if isinstance(s, Seq) else rebuild(s, _flat)


# -- interleaving ------------------------------------------------------------------------------------------------------
def _interleaved(loop: For) -> Stmt:
    """The iterations of one loop over threads, interleaved."""
    grouped = any(isinstance(x, _Group) for x in walk(loop.body))
    inside = [x.buffer for x in walk(loop.body) if type(x) is Allocate]
    private = set(inside) if grouped else _private(loop, set(inside))
    slots = {b: Buffer(b.name, (loop.extent, *b.shape), b.dtype, b.scope) for b in inside if b in private}
    body = _Interleave(loop, slots, grouped).run(loop.body)
    if grouped:  # one unit may still read a buffer while another fills the next one: they must not share memory
        for b in reversed(slots.values()):
            body = Allocate(b, body)
    return body


class _Interleave:
    """One loop over threads.

    Args:
        loop: the loop.
        slots: buffers with a slot a thread, by those that they replace.
        grouped: whether groups tell what is repeated for every thread; otherwise each statement that differs is.
    """

    def __init__(self, loop: For, slots: dict[Buffer, Buffer], grouped: bool) -> None:
        self.var, self.count = loop.var, loop.extent
        self.slots = slots
        self.grouped = grouped

    def run(self, s: Stmt) -> Stmt:
        match s:
            case _Group():
                return Seq(tuple([_Group(tuple([self.copy(c, t) for c in s.stmts])) for t in range(self.count)]))
            case Seq():
                return Seq(tuple([self.run(c) for c in s.stmts]))
            case Allocate() if s.buffer in self.slots:
                body = self.run(s.body)
                return body if self.grouped else Allocate(self.slots[s.buffer], body)
            case Store() | Evaluate() | Prefetch() | If() | ForRange() if self.differs(s):
                return seq([self.copy(s, t) for t in range(self.count)])
            case _:
                return rebuild(s, self.run)

    def differs(self, s: Stmt) -> bool:
        """Whether threads do not all do the same in a statement, its own sub-statements left aside."""
        return not self.grouped and _differs(s, self.var, self.slots)

    def copy(self, s: Stmt, thread: int) -> Stmt:
        """What one thread does."""

        slots = {b: self.slots[b] for b in self.slots.keys() - {x.buffer for x in walk(s) if type(x) is Allocate}}

        def place(b: Buffer, indices: tuple[Linear, ...]) -> tuple[Buffer, tuple[Linear, ...]]:
            return (slots[b], (as_index(thread), *indices)) if b in slots else (b, indices)

        return map_places(substitute_stmt(s, {self.var: thread}), place)


def _differs(s: Stmt, thread: Var, private: Collection[Buffer]) -> bool:
    places = places_of(s)
    used = {v for _, indices in places for ix in indices for v in ix.vars()}
    used |= {v for e in exprs_of(s) for v in index_vars(e)}
    return thread in used or any(b in private for b, _ in places)


def _written(s: Store | Evaluate) -> list[Buffer]:
    if isinstance(s, Store):
        return [s.buffer]
    operands = [a.buffer for a in s.args if type(a) is Access]
    return operands if s.intrinsic is None else operands[:1]


def _private(loop: For, inside: set[Buffer]) -> set[Buffer]:
    """Buffers inside a loop over threads whose contents differ between threads."""
    found: set[Buffer] = set()

    def fill(s: Stmt, differs: bool) -> None:
        differs |= _differs(s, loop.var, found)
        if differs and isinstance(s, (Store, Evaluate)):
            found.update(b for b in _written(s) if b in inside)
        for c in sub_statements(s):
            fill(c, differs)

    before = -1
    while before < len(found):
        before = len(found)
        fill(loop.body, False)
    return found
