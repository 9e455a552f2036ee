"""A checker of kernels: what it lets pass neither races, nor leaves a buffer, nor waits for threads that do not come.

It goes by the loop AST alone and knows nothing of how it came about. For every kernel, as it is printed:

* every index lies in its buffer, by ranges and the conditions around it;
* every barrier is reached by all threads of a block, or by none;
* what the threads of a warp do together, they all come to, each with the operands of its place among them; what they
  exchange is private, and the other one is there;
* whatever a thread reads or writes in shared memory is separated by a barrier from what another one writes there;
* what is copied asynchronously nobody touches, not even the same thread, until that has waited for it, and nobody else
  until a barrier behind that;
* global memory that one thread of a launch writes, no other thread of that launch touches.

What it cannot decide counts as wrong. Where the reference interpreter finds a fault, on whatever data, so does it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import NoReturn

from mlc.errors import VerifyError
from mlc.ir.index import Atom, Linear, Quotient, Remainder, Var, as_index, substitute, weighted
from mlc.ir.intrinsic import TensorIntrinsic
from mlc.ir.loop import (
    BLOCK_AXES,
    THREAD_AXES,
    Allocate,
    Barrier,
    Buffer,
    Commit,
    Evaluate,
    For,
    ForRange,
    Function,
    If,
    Seq,
    Shuffle,
    Stmt,
    Store,
    Wait,
    dense_strides,
    walk,
)
from mlc.lower.barriers import always_meet
from mlc.lower.facts import Fact, Facts, facts_of, is_inside
from mlc.lower.lanes import WARP
from mlc.lower.overlap import copy_of
from mlc.lower.sharing import Threads, Touch, thread_dependent
from mlc.lower.threads import PRIVATE, grid_of, is_launch, launches

LONGEST = 16  # iterations of a loop that an asynchronous copy may be under way


def prove(fn: Function) -> None:
    """Check a kernel.

    Args:
        fn: with barriers.
    Raises:
        VerifyError: the first fault, with the statement; or what could not be shown to be none.
    """
    for s in launches(fn.body):
        loops, shared, body = grid_of(s)
        if not is_launch(s):
            _Walk(fn, Threads(()), ()).run(s, (), [])
            continue
        _Walk(fn, Threads.of(loops, THREAD_AXES), shared).run(body, (), [])
        _sources_stay(fn, body)
        grid = Threads.of(loops, (*BLOCK_AXES, *THREAD_AXES))
        _global_races(fn, grid, body)


@dataclass(eq=False)
class _Walk:
    """A walk along the program of one block's threads.

    Attributes:
        open: variables of the loops around the present statement.
        divergent: whether not all threads may be there.
        past: for the variable of a loop, one that stands for iterations that are over.
        known: pairs of accesses that have been compared.
    """

    fn: Function
    threads: Threads
    shared: Sequence[Buffer]
    open: list[Var] = field(default_factory=list)
    divergent: bool = False
    past: dict[Var, Var] = field(default_factory=dict)
    known: set[object] = field(default_factory=set)

    def run(self, s: Stmt, facts: Facts, pending: Sequence[Touch]) -> list[Touch]:
        """Checks a statement.

        Args:
            s: the statement.
            facts: what holds around it.
            pending: accesses to shared memory since the last barrier.
        Returns:
            the same, after it.
        """
        if isinstance(s, Barrier):
            if self.divergent:
                self._fail("a barrier that not all threads reach", s)
            return [t for t in pending if t.age is not None]
        if isinstance(s, Commit):
            return [t if t.age is None else replace(t, age=t.age + 1) for t in pending]
        if isinstance(s, Wait):
            return [replace(t, age=None) if t.age is not None and t.age > s.groups else t for t in pending]
        if isinstance(s, Seq):
            found = list(pending)
            for c in s.stmts:
                found = self.run(c, facts, found)
            return found
        if isinstance(s, Allocate):
            return self.run(s.body, facts, pending)
        if isinstance(s, For) and is_launch(s):
            self._fail("a loop over threads inside of threads", s)
        if isinstance(s, Evaluate) and s.intrinsic is not None:
            self._together(s, s.intrinsic)
        if isinstance(s, Shuffle):
            self._exchange(s)
        found = list(pending)
        for t in self.threads.touches(s, facts):
            found = self._touch(t, found)
        if isinstance(s, If):
            return self._branch(s, facts, found)
        if isinstance(s, (For, ForRange)):
            return self._loop(s, facts, found)
        return found

    def _together(self, s: Evaluate, what: TensorIntrinsic) -> None:
        """Checks what the threads of a warp do together."""
        lane = self.threads.lane
        if not what.collective:
            self._fail("an intrinsic of no thread's", s)
        if self.divergent:
            self._fail("what a warp does together, and not all threads reach", s)
        if lane is None or lane.hi + 1 != WARP:
            self._fail(f"what a warp does together, in blocks that are not {WARP} threads wide", s)
        for t, a in zip((what.behaviour, *what.inputs), s.args[1:], strict=False):
            want = what.operand(t)
            if (place := want.lanes) is None:
                continue
            first = substitute(a.offset, {lane: 0})
            if not first.multiple_of(want.align) or any(n != 1 and n % want.align for n in a.strides):
                self._fail(f"{a!r}, taken as {t.name}, does not begin at multiples of {want.align}", s)
            if any(substitute(a.offset, {lane: k}) != first + place(k, a.strides) for k in range(WARP)):
                self._fail(f"{a!r}, taken as {t.name}, does not lie where the threads of a warp have theirs", s)

    def _exchange(self, s: Shuffle) -> None:
        """Checks what threads of a warp give each other."""
        lane = self.threads.lane
        width = 1 if lane is None else lane.hi + 1
        if self.divergent:
            self._fail("an exchange between threads that not all of them reach", s)
        if s.flip & (s.flip - 1) or not 0 < s.flip < min(width, WARP) or width & (width - 1):
            self._fail(f"an exchange with threads that are not there, in blocks {width} threads wide,", s)
        if s.buffer.scope not in PRIVATE or s.source.scope not in PRIVATE:
            self._fail("an exchange of what threads have in common", s)

    def _touch(self, t: Touch, pending: list[Touch]) -> list[Touch]:
        for ix, n in zip(t.indices, t.buffer.shape, strict=True):
            if not is_inside(ix, n, t.facts):
                self._fail(f"{'a store' if t.write else 'a load'} that may leave {t.buffer!r} at {ix}", t.stmt)
        if t.buffer not in self.shared:
            return pending
        for before in (*pending, t):
            pair = (_key(before), _key(t), tuple(self.open))
            if pair not in self.known:
                self.known.add(pair)
                copied = before.age is not None and before is not t
                if self.threads.conflict(before, t, self.open, one=copied) is not False:
                    now = f"{t.buffer.name} is {'written' if t.write else 'read'} where"
                    done = "written" if before.write else "read"
                    why = (
                        f"{now} a copy that nobody has waited for may be under way"
                        if copied
                        else f"{now} another thread may have {done} it since the last barrier"
                    )
                    self._fail(f"{why}, in\n{before.stmt!r}\nand", t.stmt)
        return [*pending, t]

    def _branch(self, s: If, facts: Facts, pending: Sequence[Touch]) -> list[Touch]:
        around = self.divergent
        self.divergent |= thread_dependent(s, self.threads)
        sides = [self.run(s.then, (*facts, *facts_of(s.cond)), pending)]
        if s.orelse is None:
            sides.append(list(pending))
        else:
            sides.append(self.run(s.orelse, (*facts, *facts_of(s.cond, holds=False, given=facts)), pending))
        self.divergent = around
        return _distinct([t for side in sides for t in side])

    def _loop(self, s: For | ForRange, facts: Facts, pending: Sequence[Touch]) -> list[Touch]:
        around = self.divergent
        self.divergent |= thread_dependent(s, self.threads)
        self.open.append(s.var)
        first = self.run(s.body, facts, pending)
        own = [t for t in first if all(t is not p for p in pending)]
        over = {s.var: self.past.setdefault(s.var, Var(s.var.name, 0, s.var.hi))}
        last: list[Touch] = []
        seen: set[object] = set()
        for _ in range(LONGEST):
            own = [t for t in own if _key(t) not in seen]
            if not own or s.var.hi == 0:
                break
            seen |= {_key(t) for t in own}
            carried = _distinct([self._carried(t, s, over) for t in own])
            found = self.run(s.body, facts, carried)
            last += found
            # the rest is as it was the first time; copies grow older
            own = [t for t in found if isinstance(t.stmt, Store) and t.stmt.asynchronous]
        else:
            self._fail("copies that are never waited for", s)
        self.open.pop()
        self.divergent = around
        skipped = pending if isinstance(s, ForRange) else ()  # which may go around no time at all
        return _distinct([t.renamed(over) if s.var in t.vars() else t for t in (*skipped, *first, *last)])

    def _carried(self, t: Touch, s: For | ForRange, over: dict[Var, Var]) -> Touch:
        """An access of one iteration of a loop as the next one sees it."""
        waits = t.age is not None and any(isinstance(c, Wait) for c in walk(s.body))
        if waits or always_meet(s.body):  # what is left is the last iteration's
            return t.renamed({s.var: as_index(s.var) - 1}, (Fact(as_index(s.var), 1, s.var.hi + 1),))
        if over[s.var] in t.vars():
            return t
        # of copies, not even the same thread may touch what an earlier iteration began
        earlier = () if t.age is None else (Fact(as_index(s.var) - over[s.var], 1, s.var.hi + 1),)
        return t.renamed(over, earlier)

    def _fail(self, what: str, s: Stmt) -> NoReturn:
        raise VerifyError(f"{self.fn.name}: {what} in\n{s!r}")


def _key(t: Touch) -> tuple[object, ...]:
    return t.buffer, t.indices, t.write, t.facts, t.age


def _distinct(touches: Sequence[Touch]) -> list[Touch]:
    """Those that differ; the first of equals."""
    return list({_key(t): t for t in reversed(touches)}.values())[::-1]


def tells_apart(fn: Function, launch: Stmt) -> bool:
    """Whether the indices alone tell which thread of a launch touches what is written in global memory.

    It is sure of less than :func:`prove`, and counts no elements.

    Args:
        fn: the kernel.
        launch: in it.
    """
    loops, _, body = grid_of(launch)
    return not any(_unlike(fn, Threads.of(loops, (*BLOCK_AXES, *THREAD_AXES)), body))


def _unlike(fn: Function, grid: Threads, body: Stmt) -> Iterator[tuple[Touch, Touch]]:
    """Writes to global memory with accesses to the same buffer, where indices alone do not tell the threads."""
    outside = _outside(fn)
    touched = [t for t in _all(grid, body, ()) if t.buffer.scope not in PRIVATE and t.buffer in outside]
    for t in touched:
        if t.write:
            yield from ((t, o) for o in touched if o.buffer is t.buffer and not _tells_threads(t, o, grid))


def _sources_stay(fn: Function, body: Stmt) -> None:
    """Nothing that is copied asynchronously is written by the launch."""
    stores = [s for s in walk(body) if isinstance(s, Store)]
    written = {s.buffer for s in stores}
    for s in stores:
        if not s.asynchronous:
            continue
        found = copy_of(s)
        if found is None:
            raise VerifyError(f"{fn.name}: no copy from global to shared memory, in\n{s!r}")
        if found[0].source in written:
            raise VerifyError(f"{fn.name}: what is copied may change before it is, in\n{s!r}")


def _global_races(fn: Function, grid: Threads, body: Stmt) -> None:
    """Threads of a launch keep out of each other's way in global memory."""
    for t, other in _unlike(fn, grid, body):
        if grid.conflict(t, other, ()) is not False:
            raise VerifyError(
                f"{fn.name}: {t.buffer.name} is written where another thread of the launch may "
                f"{'write' if other.write else 'read'} it, in\n{other.stmt!r}\nand\n{t.stmt!r}"
            )


def _outside(fn: Function) -> set[Buffer]:
    """What is there before a launch: parameters, and what the kernel allocates around its launches."""
    found = set(fn.params)
    stack = [fn.body]
    while stack:
        s = stack.pop()
        if isinstance(s, Allocate):
            found.add(s.buffer)
            stack.append(s.body)
        elif isinstance(s, Seq):
            stack += s.stmts
    return found


def _all(grid: Threads, s: Stmt, facts: Facts) -> Iterator[Touch]:
    yield from grid.touches(s, facts)
    if isinstance(s, If):
        yield from _all(grid, s.then, (*facts, *facts_of(s.cond)))
        if s.orelse is not None:
            yield from _all(grid, s.orelse, (*facts, *facts_of(s.cond, holds=False, given=facts)))
    elif isinstance(s, Seq):
        for c in s.stmts:
            yield from _all(grid, c, facts)
    elif isinstance(s, (For, ForRange, Allocate)):
        yield from _all(grid, s.body, facts)


def _tells_threads(t: Touch, other: Touch, grid: Threads) -> bool:
    """Whether an element's place tells which thread touches it, by the structure of the indices that are both's."""
    pins = [
        {(v, f.lo) for v in grid.vars for f in x.facts if f.index == as_index(v) and f.hi - f.lo == 1}
        for x in (t, other)
    ]
    pinned = {v for v, _ in pins[0] & pins[1]}
    known: set[Atom] = set()
    forms = [f for pair in zip(t.indices, other.indices, strict=True) if (f := _common(*pair)) is not None]
    if t.indices == other.indices:
        forms.append(_place(t))
    before = (-1, -1)
    while (len(known), len(forms)) > before:
        before = (len(known), len(forms))
        for form in forms:
            known |= _digits(form, known)
        for a in [a for a in known if isinstance(a, Remainder)]:
            # f % d and g + f // d, with g + f // d known by itself or as a form, tell d*g + f
            quotient = a.quotient
            if quotient is not None:
                over = [f for f in forms if f.terms.get(quotient) == 1]
                over += [Linear({quotient: 1}, 0)] if quotient in known else []
                wholes = [(f - Linear({quotient: 1}, 0)) * a.divisor + a.form for f in over]
                forms += [f for f in wholes if f not in forms]
    return all(v.hi == 0 or v in known or v in pinned for v in grid.vars)


def _common(a: Linear, b: Linear) -> Linear | None:
    """A form that both indices are values of; those of strips some constant apart have one more digit, its number."""
    apart = b - a
    if apart.terms:
        return None
    if not apart.const:
        return a
    return (a if apart.const > 0 else b) + as_index(Var("strip", 0, 1)) * abs(apart.const)


def _place(t: Touch) -> Linear:
    """Where an element lies from the begin of its buffer, row-major: of loops that were fused and split one number.

    A remainder ``f % d`` is ``f - d*(f // d)``; where ``f`` is ``g + h // e``, ``f // d`` is ``(e*g + h) // (d*e)``,
    and written like that it meets the quotient that another index is.
    """
    found = weighted(t.indices, dense_strides(t.buffer.shape))
    for _ in range(2 * len(t.indices)):
        atom = next((a for a in found.terms if type(a) is Remainder), None)
        if atom is None:
            break
        over, scale = atom.form, 1
        while inner := next((a for a, c in over.terms.items() if type(a) is Quotient and c == 1), None):
            over, scale = (over - Linear({inner: 1}, 0)) * inner.divisor + inner.form, scale * inner.divisor
        rest = atom.form - over // (scale * atom.divisor) * atom.divisor
        found = found + (rest - Linear({atom: 1}, 0)) * found.terms[atom]
    return found


def _digits(form: Linear, known: set[Atom]) -> set[Atom]:
    """Atoms that the value of a form tells, given those that are known: the digits of a number of mixed radix."""
    open_ = sorted(((abs(c), a) for a, c in form.terms.items() if a not in known), key=lambda x: x[0])
    reach = 0
    for c, a in open_:
        if c <= reach:
            return set()
        reach += c * (a.hi - a.lo)
    return {a for _, a in open_}
