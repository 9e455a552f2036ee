"""Which part of an on-chip memory each buffer of a kernel may have.

Buffers of memories with slots have that many places each. In the other memories the buffer through which most passes
goes round; what else there is stands at one end with two places each, or it would cut the way round into pieces too
small for tiles to be loaded ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from mlc.ir.loop import Allocate, Buffer, For, Function, Stmt, sub_statements
from mlc.vdla.codegen.facts import Facts, elements
from mlc.vdla.codegen.memory import Memory
from mlc.vdla.intrinsics import Scope


@dataclass(slots=True, eq=False)
class Placement:
    """Where buffers may lie.

    Attributes:
        places: first elements of those that have places of their own.
        within: the range, begin and end, of those that go round.
    """

    places: dict[Buffer, tuple[int, ...]] = field(default_factory=dict)
    within: dict[Buffer, tuple[int, int]] = field(default_factory=dict)


@dataclass(slots=True, eq=False)
class _Found:
    """A buffer, how large it is, how often it is made, and what lies before it in its nest of buffers."""

    buffer: Buffer
    size: int
    times: int
    before: int


def place_buffers(
    fn: Function,
    facts: Facts,
    scopes: Mapping[str, Scope],
    memories: Mapping[str, Memory],
    slots: Mapping[str, int],
    *,
    last: bool,
) -> Placement:
    """Decide for all buffers of a kernel.

    Args:
        fn: the kernel.
        facts: of it.
        scopes: by name.
        memories: by name; those with slots give a range each.
        slots: places a buffer, by memory.
        last: whether buffers beside the one that goes round stand at the end of the memory, or at its begin.
    Raises:
        ScheduleError: the places do not fit.
    """
    found: dict[str, list[_Found]] = {}

    def visit(s: Stmt, times: int, used: Mapping[str, int]) -> None:
        if isinstance(s, Allocate) and s.buffer.scope in scopes and s.buffer not in facts.root:
            scope = s.buffer.scope
            size, before = elements(s.buffer, scopes[scope].lanes), used.get(scope, 0)
            found.setdefault(scope, []).append(_Found(s.buffer, size, times, before))
            used = {**used, scope: before + size * slots.get(scope, 1)}
        for c in sub_statements(s):
            visit(c, times * (s.extent if isinstance(s, For) else 1), used)

    visit(fn.body, 1, {})
    out = Placement()
    for scope, buffers in found.items():
        if scope in slots:
            n = slots[scope]
            begin = memories[scope].reserve(max(f.before + n * f.size for f in buffers))
            for f in buffers:
                out.places[f.buffer] = tuple(begin + f.before + k * f.size for k in range(n))
        else:
            _beside_one(buffers, scopes[scope].depth, last, out)
    return out


def _beside_one(buffers: list[_Found], depth: int, last: bool, out: Placement) -> None:
    """Give all buffers but one places at an end of the memory, if that leaves the one enough room to run ahead."""
    main = max(buffers, key=lambda f: f.size * f.times)
    others = [f for f in buffers if f is not main]
    for n in (2, 1):
        taken = sum(n * f.size for f in others)
        if not others or 2 * taken > depth or depth - taken < 2 * main.size:
            continue
        begin = depth - taken if last else 0
        out.within[main.buffer] = (0, depth - taken) if last else (taken, depth)
        for f in others:
            out.places[f.buffer] = tuple(begin + k * f.size for k in range(n))
            begin += n * f.size
        return
