"""Instruction nests: the loops around one statement, addresses split into what changes inside and what does not."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from mlc.errors import ScheduleError
from mlc.ir.expr import TRUE, Const, Expr, Within, conjuncts
from mlc.ir.index import ZERO, Linear, Var, evaluate
from mlc.ir.loop import Buffer, Evaluate, For, If, Seq, Stmt, Store, is_nothing, sub_statements

Env = Mapping[Var, int]


@dataclass(slots=True, eq=False)
class Nest:
    """The loops around one leaf, outermost first, the conditions under which it counts, and facts about loops."""

    leaf: Store | Evaluate
    loops: list[tuple[Var, int]] = field(default_factory=list)
    guards: list[Within] = field(default_factory=list)
    facts: list[tuple[int, str, object]] = field(default_factory=list)  # inside how many loops, key, value

    def fact(self, key: str) -> tuple[int, object] | None:
        """Where a fact stands, and its value."""
        return next(((depth, value) for depth, k, value in self.facts if k == key), None)


def leaves(s: Stmt) -> Iterator[Store | Evaluate]:
    """Statements that become instructions, in order."""
    if type(s) is Store or (type(s) is Evaluate and not s.name.startswith("pragma.")):
        yield s
        return
    for c in sub_statements(s):
        yield from leaves(c)


def nest_of(s: Stmt) -> Nest | None:
    """The nest that a statement is; ``None`` where it has several leaves, or allocates."""
    nest: list[tuple[Var, int]] = []
    guards: list[Within] = []
    facts: list[tuple[int, str, object]] = []
    while True:
        if isinstance(s, For):
            nest.append((s.var, s.extent))
            s = s.body
        elif isinstance(s, If) and s.orelse is None:
            guards += ranges(s.cond)
            s = s.then
        elif isinstance(s, Seq):
            facts += [
                (len(nest), c.name.removeprefix("pragma."), c.args[0])
                for c in s.stmts
                if isinstance(c, Evaluate) and c.name.startswith("pragma.")
            ]
            rest = [c for c in s.stmts if not is_nothing(c)]
            if len(rest) != 1:
                return None
            (s,) = rest
        elif isinstance(s, (Store, Evaluate)):
            return Nest(s, nest, guards, facts)
        else:
            return None


def ranges(cond: Expr) -> list[Within]:
    """A conjunction of range checks.

    Raises:
        ScheduleError: it is something else.
    """
    out: list[Within] = []
    for c in conjuncts(cond):
        if c is TRUE or (isinstance(c, Const) and c.value):
            continue
        if not isinstance(c, Within):
            raise ScheduleError(f"{c!r}: conditions in accelerator code are ranges of indices")
        out.append(c)
    return out


@dataclass(slots=True, eq=False)
class Form:
    """An index as a part that the loops around a nest fix, plus a step for each loop of the nest.

    Attributes:
        fixed: over variables around the nest.
        steps: one a loop of the nest.
    """

    fixed: Linear
    steps: tuple[int, ...]

    def at(self, env: Env) -> int:
        """The fixed part."""
        fixed = self.fixed
        total = fixed.const
        for atom, c in fixed.terms.items():
            value = env.get(atom) if type(atom) is Var else None
            if value is None:
                return int(evaluate(fixed, env))
            total += c * value
        return total

    def divided(self, lanes: int, inside: Collection[int], what: str) -> Form:
        """An offset in numbers as one in elements, without the loops within an element.

        Args:
            lanes: numbers in an element.
            inside: the loops within one.
            what: for messages.
        Raises:
            ScheduleError: it does not always begin an element.
        """
        steps = [s for k, s in enumerate(self.steps) if k not in inside]
        if not self.fixed.multiple_of(lanes) or any(s % lanes for s in steps):
            raise ScheduleError(f"{what} does not begin at elements of {lanes}")
        return Form(self.fixed // lanes, tuple(s // lanes for s in steps))


def form(index: Linear, loops: Sequence[Var]) -> Form:
    """Split an index; every loop must occur in it as a plain multiple, see :func:`tangled`."""
    steps = {v: 0 for v in loops}
    fixed: dict = {}  # type: ignore[type-arg]
    for atom, c in index.terms.items():
        if type(atom) is Var and atom in steps:
            steps[atom] = c
        else:
            fixed[atom] = c
    return Form(Linear(fixed, index.const), tuple(steps.values()))


def tangled(index: Linear) -> set[Var]:
    """Variables that occur inside a quotient or remainder."""
    return {v for atom in index.terms if type(atom) is not Var for v in Linear({atom: 1}, 0).vars()}


def flat(buffer: Buffer, indices: Sequence[Linear]) -> Linear:
    """Offset of an element from the begin of its buffer, in numbers."""
    total = ZERO
    for ix, step in zip(indices, buffer.strides(), strict=True):
        total = total + ix * step
    return total


@dataclass(slots=True, eq=False)
class Range:
    """A range check within a nest: ``lo <= index < hi``, where at most one loop of the nest matters."""

    form: Form
    lo: int
    hi: int
    loop: int  # -1 where none matters

    def limits(self, env: Env, extent: int) -> tuple[int, int]:
        """The iterations of its loop that pass, within ``[0, extent)``; an empty range has its end at its begin."""
        base = self.form.at(env)
        if self.loop < 0:
            return (0, extent) if self.lo <= base < self.hi else (0, 0)
        step = self.form.steps[self.loop]
        if step > 0:
            begin, end = -((base - self.lo) // step), -((base - self.hi) // step)
        else:
            begin, end = (base - self.hi) // -step + 1, (base - self.lo) // -step + 1
        begin = min(max(begin, 0), extent)
        return begin, max(begin, min(end, extent))


def range_of(guard: Within, loops: Sequence[Var]) -> Range:
    """A check as limits of a loop; at most one of ``loops`` may occur in it."""
    f = form(guard.index, loops)
    moving = [k for k, s in enumerate(f.steps) if s]
    assert len(moving) <= 1
    return Range(f, guard.lo, guard.hi, moving[0] if moving else -1)
