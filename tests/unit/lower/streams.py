"""Kernels as streams of units that run at the same time: whether tokens order what units share, and their time."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import product

from mlc.ir.expr import Const, Expr, Load, Select, Within, children, loads
from mlc.ir.index import Linear, Var, evaluate
from mlc.ir.loop import Access, Allocate, Buffer, Evaluate, For, Function, If, Seq, Stmt, Store

Cell = tuple[int, int]  # a buffer and an element of it


@dataclass
class Step:
    """One statement of a stream: what it touches, or the token that it sends or takes."""

    unit: str
    reads: set[Cell] = field(default_factory=set)
    writes: set[Cell] = field(default_factory=set)
    push: tuple[str, str] | None = None
    pop: tuple[str, str] | None = None


def stream(fn: Function, unit_of: Callable[[Stmt], str | None]) -> list[Step]:
    """Every store, intrinsic and token of a kernel, in order of execution."""
    return list(_steps(fn.body, {}, unit_of))


def _steps(s: Stmt, env: dict[Var, int], unit_of: Callable[[Stmt], str | None]) -> Iterator[Step]:
    match s:
        case For():
            for k in range(s.extent):
                yield from _steps(s.body, {**env, s.var: k}, unit_of)
        case Seq():
            for c in s.stmts:
                yield from _steps(c, env, unit_of)
        case Allocate():
            yield from _steps(s.body, env, unit_of)
        case If():
            side = s.then if _holds(s.cond, env) else s.orelse
            if side is not None:
                yield from _steps(side, env, unit_of)
        case Evaluate(name="push"):
            yield Step(s.args[0], push=s.args)
        case Evaluate(name="pop"):
            yield Step(s.args[1], pop=s.args)
        case Store():
            unit = unit_of(s)
            assert unit is not None
            yield Step(unit, _loaded(s.value, env), {_cell(s.buffer, s.indices, env)})
        case Evaluate() if s.intrinsic is not None:
            unit = unit_of(s)
            assert unit is not None
            kind, *operands = s.args
            tensors = (s.intrinsic.behaviour, *s.intrinsic.inputs)
            out, *ins = (_box(a, t.shape, env) for a, t in zip(operands, tensors, strict=False))
            yield Step(unit, set().union(*ins, out if kind == "update" else set()), out)
        case _:
            assert isinstance(s, Evaluate), s


def _holds(cond: Expr, env: dict[Var, int]) -> bool:
    if isinstance(cond, Within):
        return cond.lo <= evaluate(cond.index, env) < cond.hi
    assert not loads(cond), cond
    return bool(cond.value) if isinstance(cond, Const) else all(_holds(c, env) for c in children(cond))


def _loaded(e: Expr, env: dict[Var, int]) -> set[Cell]:
    if isinstance(e, Select):
        return _loaded(e.a if _holds(e.cond, env) else e.b, env)
    if isinstance(e, Load):
        return {_cell(e.source, e.indices, env)}
    return set().union(*(_loaded(c, env) for c in children(e)))


def _cell(b: Buffer, indices: tuple[Linear, ...], env: dict[Var, int]) -> Cell:
    return id(b), sum(evaluate(ix, env) * n for ix, n in zip(indices, b.strides(), strict=True))


def _box(a: Access, shape: tuple[int, ...], env: dict[Var, int]) -> set[Cell]:
    buffer, first = _cell(a.buffer, a.indices, env)
    places = product(*(range(n) for n in shape))
    return {(buffer, first + sum(i * n for i, n in zip(at, a.strides, strict=True))) for at in places}


def races(steps: list[Step]) -> list[str]:
    """What tokens leave open: tokens that do not match, and accesses in conflict that nothing orders."""
    found: list[str] = []
    clocks: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    queues: dict[tuple[str, str], deque[dict[str, int]]] = defaultdict(deque)
    written: dict[Cell, tuple[str, int]] = {}
    readers: dict[Cell, dict[str, int]] = defaultdict(dict)
    for k, step in enumerate(steps):
        clock = clocks[step.unit]
        clock[step.unit] = k + 1
        if step.push is not None:
            queues[step.push].append(dict(clock))
        if step.pop is not None:
            if not queues[step.pop]:
                found.append(f"{k}: nothing to take from {step.pop}")
                continue
            for unit, at in queues[step.pop].popleft().items():
                clock[unit] = max(clock[unit], at)

        def after(unit: str, at: int, clock: dict[str, int] = clock) -> bool:
            return clock[unit] >= at

        for cell in step.reads | step.writes:
            if cell in written and not after(*written[cell]):
                found.append(f"{k}: {step.unit} does not wait for the write {written[cell]}")
        for cell in step.writes:
            found += [f"{k}: {step.unit} overwrites what {r} reads" for r in readers[cell].items() if not after(*r)]
            written[cell], readers[cell] = (step.unit, k + 1), {}
        for cell in step.reads:
            readers[cell][step.unit] = k + 1
    return found + [f"tokens are left in {q}" for q, tokens in queues.items() if tokens]


def duration(steps: list[Step]) -> int:
    """Time until all units are done, a statement taking one unit of time and a token none."""
    at: dict[str, int] = defaultdict(int)
    queues: dict[tuple[str, str], deque[int]] = defaultdict(deque)
    for step in steps:
        if step.pop is not None:
            at[step.unit] = max(at[step.unit], queues[step.pop].popleft())
        elif step.push is not None:
            queues[step.push].append(at[step.unit])
        else:
            at[step.unit] += 1
    return max(at.values())
